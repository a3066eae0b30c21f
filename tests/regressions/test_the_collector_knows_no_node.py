"""A commit took 60 ms now and then: one tuple a node, one a visit and three a prompt's first page were on the list of Python's
garbage collector, which comes by seldom while as much is freed as is made, and then looked at all of them."""

from __future__ import annotations

import gc

import pytest

import unified_tree.nodes.node
from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

COMPONENTS = (
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(8)),
    Component(name="mamba", coverage=Point()),
)
COMPILED = unified_tree.nodes.node.__file__.endswith((".so", ".pyd"))


@pytest.mark.skipif(not COMPILED, reason="the interpreted classes are all known to the collector")
@pytest.mark.parametrize("policy", ["lru", "density"])
@pytest.mark.parametrize("host_pages", [0, 600])
def test_what_is_kept_is_not_on_its_list(policy: str, host_pages: int) -> None:
    names = [component.name for component in COMPONENTS]
    host = HostTier(page_counts=dict.fromkeys(names, host_pages), engine=NullEngine(remembered=8)) if host_pages else None
    cache = PrefixCache(COMPONENTS, 4, dict.fromkeys(names, 900), policy=policy, host=host)

    def serve(turn: int) -> None:
        head = turn * 7919 % 200
        key = Key([head] * 8 + [1_000 + turn] * 12 * (turn % 3) + [head] * 4, namespace=f"tenant-{turn % 2}")
        lease = cache.acquire(key, checkpoints=[8])
        start = lease.compute_from
        while start < len(key):
            end = lease.next_stop(start) or len(key)
            cache.allocate(lease, end)
            pages = lease.save_pages
            cache.commit(lease, end, {end: pages[end]} if end in pages else None)
            start = end
        cache.release(lease)
        cache.poll()

    for turn in range(3):
        serve(turn)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for turn in range(3, 3_000):
            serve(turn)
        more = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert cache.tree.node_count > 250
    assert more < 100
