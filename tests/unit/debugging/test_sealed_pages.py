"""Pages that were overwritten are found when they are handed out, and nothing else is."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import numpy as np
import pytest
from kinds import DRAFT, FULL, MAMBA, SETS, swa

from unified_tree import Component, Key, Point
from unified_tree.controllers import HostTier, Lease, LoadCost, PrefixCache
from unified_tree.controllers.debugging import SealedPages
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.terms.errors import TransferError

PAGE = 2


class Engine:
    """Writes what it computes into arrays of one row a page: the prefix up to the page's end, by component."""

    def __init__(self, components: list[Component], pages: int = 40) -> None:
        self.components = components
        self.pools = {c.name: np.zeros((pages, 4), np.int64) for c in components}
        self.cache = PrefixCache(components, PAGE, {c.name: pages for c in components if c.shares is None})
        self.seals = SealedPages(self.cache, read_page=lambda component, page: self.pools[component][page])

    def content(self, component: str, tokens: list[int], end: int) -> list[int]:
        return [hash(component) & 0xFFFF, end, hash(tuple(tokens[:end])), sum(tokens[:end])]

    def write(self, lease: Lease, tokens: list[int], begin: int, end: int, without: tuple[str, ...] = ()) -> dict[int, int]:
        for component in self.components:
            name = component.name
            if isinstance(component.coverage, Point) or name in without:
                continue
            ids = lease.pages(component.shares or name)
            for at in range(max(begin, lease.write_from[name]) // PAGE, end // PAGE):
                if ids[at] >= 0:
                    self.pools[name][ids[at]] = self.content(name, tokens, (at + 1) * PAGE)
        states = {length: page for length, page in lease.save_pages.items() if begin < length <= end}
        for length, page in states.items():
            for component in self.components:
                if isinstance(component.coverage, Point):
                    self.pools[component.name][page] = self.content(component.name, tokens, length)
        return states

    def serve(self, tokens: list[int], request: str = "", **options: Any) -> Lease:
        lease = self.cache.acquire(Key(tokens), request=request, reserve_tokens=len(tokens), **options)
        states = self.write(lease, tokens, lease.compute_from, len(tokens))
        self.cache.commit(lease, tokens, states)
        return lease


@pytest.mark.parametrize("name", SETS)
def test_no_right_page_is_called_wrong(name: str) -> None:
    engine = Engine(SETS[name])
    rng = Random(name)
    for turn in range(120):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
        lease = engine.serve(tokens, f"request {turn}")
        if rng.random() < 0.3:
            engine.cache.invalidate()
        engine.cache.release(lease)
    assert engine.seals.wrong_pages == []


@pytest.mark.parametrize("component", ["full", "swa", "mamba", "draft"])
def test_an_overwritten_page_is_found_with_who_published_it(component: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine([FULL, swa(3), MAMBA, DRAFT])
    prompt = list(range(12))
    first = engine.serve(prompt, "first")
    page = int(first.pages(component)[5]) if component != "mamba" else -1
    engine.cache.release(first)
    if component == "mamba":
        page = int(engine.cache.tree.pages(engine.cache.tree.match_prefix(Key(prompt)).device, "mamba")[0])
    engine.pools[component][page] += 1
    with caplog.at_level(logging.ERROR, "unified_tree.debugging"):
        engine.cache.release(engine.serve([*prompt, 99], "second"))
    [wrong] = engine.seals.wrong_pages
    assert (wrong.component, wrong.page, wrong.length_tokens) == (component, page, 12)
    assert (wrong.sealed.writer, wrong.reader) == ("first", "second")
    assert str(wrong) in caplog.text


def test_a_page_found_to_be_known_at_commit_is_compared_too() -> None:
    engine = Engine([FULL])
    prompt = list(range(8))
    late = engine.cache.acquire(Key(prompt), request="late", reserve_tokens=8)
    early = engine.serve(prompt, "early")
    engine.pools["full"][early.pages("full")[1]] += 1
    engine.write(late, prompt, 0, 8)
    engine.cache.commit(late, 8)
    [wrong] = engine.seals.wrong_pages
    assert (wrong.length_tokens, wrong.reader) == (4, "late")


def test_a_preempted_request_is_sealed_and_seals_are_bounded() -> None:
    engine = Engine([FULL])
    prompt = list(range(8))
    lease = engine.cache.acquire(Key(prompt), request="first", reserve_tokens=8)
    engine.write(lease, prompt, 0, 6)
    engine.cache.preempt(lease, 6)
    engine.pools["full"] += 1
    engine.cache.acquire(Key(prompt))
    assert [wrong.length_tokens for wrong in engine.seals.wrong_pages] == [2, 4, 6]
    small = PrefixCache([FULL], PAGE, {"full": 40})
    seals = SealedPages(small, read_page=lambda *_: b"", max_seals=3)
    with small.acquire(Key(prompt), reserve_tokens=8) as lease:
        small.commit(lease, 8)
    assert len(seals._seals) == 3


def test_a_commit_after_a_failed_load_does_not_end_the_sealing() -> None:
    tier = HostTier(page_counts={"full": 40}, engine=NullEngine(), load_cost=LoadCost(flops_per_s=1.0))
    cache = PrefixCache([FULL], PAGE, {"full": 4}, host=tier)
    seals = SealedPages(cache, read_page=lambda *_: b"")
    for first in (0, 100):
        with cache.acquire(Key(range(first, first + 8)), reserve_tokens=8) as lease:
            cache.commit(lease, 8)
        cache.drain()
    lease = cache.acquire(Key(range(9)))
    assert lease.is_loading
    cache.invalidate()
    cache.drain()
    with pytest.raises(TransferError):
        cache.commit(lease, 8)
    cache.release(lease)
    assert cache.observers.all == (seals,) and "observer failed" not in cache.stats().drops
    cache.close()
