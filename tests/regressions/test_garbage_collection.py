"""Python's garbage collector and deallocation: they visit no node, and end long chains."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa
from waiting import PROGRAM_S

import unified_tree.nodes.node
from unified_tree import Key, UnifiedTree
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

# A full garbage collection stopped a server for most of a second: it visited eight objects a node. Compiled, it visits none,
# and so what goes has to be taken apart by hand.

COMPILED = not str(unified_tree.nodes.node.__file__).endswith(".py")
KINDS = [FULL, swa(4), MAMBA]


def grown(node_count: int) -> UnifiedTree:
    tree = UnifiedTree(KINDS, 1)
    for i in range(node_count):
        tree.insert(Key([7, i]), {"full": np.array([2 * i, 2 * i + 1][i > 0 :]), "swa": np.array([i])}, {"mamba": {2: i}})
    return tree


@pytest.mark.skipif(not COMPILED, reason="interpreted objects are all visited")
def test_tracked_objects_do_not_grow_with_the_tree() -> None:
    counts = []
    for node_count in (100, 5_000):
        tree = grown(node_count)
        gc.collect()
        gc.collect()
        counts.append(len(gc.get_objects()))
        assert tree.node_count > node_count
        del tree
    assert counts[1] - counts[0] < 100


def test_a_tree_that_goes_leaves_no_circles() -> None:
    tree = grown(20)
    nodes = list(tree.state.nodes)
    del tree
    gc.collect()
    assert all(node.parent is None and node.first_child is None and not any(node.device) for node in nodes)


def test_a_node_that_goes_leaves_no_circles() -> None:
    grove = Grove(KINDS)
    grove.put("abcd", [4])
    [node] = grove.tree.state.nodes
    [*values] = node.device
    grove.evict(10)
    assert node.parent is None
    assert not any(node.device)
    assert all(value is not None and value.above is value.before is value.behind is None for value in values)


@pytest.mark.skipif(not COMPILED, reason="the interpreted classes are all known to the collector")
@pytest.mark.parametrize("policy", ["lru", "density"])
@pytest.mark.parametrize("host_pages", [0, 600])
def test_the_collector_knows_no_node(policy: str, host_pages: int) -> None:
    """A commit took 60 ms now and then: one tuple a node, one a visit and three a prompt's first page were on the list of
    Python's garbage collector, which comes by seldom while as much is freed as is made, and then looked at all of them.
    """
    names = [component.name for component in KINDS]
    host = HostTier(page_counts=dict.fromkeys(names, host_pages), engine=NullEngine(remembered=8)) if host_pages else None
    cache = PrefixCache([FULL, swa(8), MAMBA], 4, dict.fromkeys(names, 900), policy=policy, host=host)

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


CHAIN = """
from unified_tree.policies.density.turns import Turn
before = first = Turn(0, 0, 10, None)
for at in range({length}):
    before.by = Turn(at, 0, 10 + at, before)
    before = before.by
del before
del first
"""


NESTED = """
from unified_tree.policies.density.turns import Turn
held = Turn(0, 0, 10, None)
for depth in range({length}):
    held = [held]
del held
"""


TREE = """
from unified_tree import Component, Key, Path, UnifiedTree
tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
for at in range({length}):
    tree.insert(Key([7] * at + [8]), {{"full": range(2 * at, 2 * at + (2 if at else 1))}})
assert tree.node_count >= {length}
del tree
"""


@pytest.mark.parametrize(
    ("what_ends", "length"),
    [(CHAIN, 60), (CHAIN, 300_000), (NESTED, 48), (NESTED, 49), (NESTED, 50), (NESTED, 60), (TREE, 200)],
)
def test_long_chains_end_without_damage(what_ends: str, length: int) -> None:
    """The compiled core lost requests of a replay, seldom: where what ends lay more than fifty objects deep, eight bytes
    before it were overwritten, whosever they were. Python's debugging allocator looks at those; a shallow C stack at the
    recursion.
    """
    code = f"import resource; resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))\n{what_ends.format(length=length)}"
    done = subprocess.run(
        [sys.executable, "-P", "-X", "dev", "-c", code], capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
