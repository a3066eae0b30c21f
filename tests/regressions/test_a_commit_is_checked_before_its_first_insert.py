"""`commit` publishes place by place, and some of what was wrong was found only after earlier places had been published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kinds import DRAFT, FULL, MAMBA, swa

from unified_tree import Key, UnifiedTreeError
from unified_tree.controllers import Lease, PrefixCache

TOKENS = np.arange(12)


@pytest.fixture
def running() -> tuple[PrefixCache, Lease]:
    cache = PrefixCache([FULL, swa(3), MAMBA, DRAFT], 2, {"full": 20, "swa": 20, "mamba": 8})
    lease = cache.acquire(Key(TOKENS), checkpoints=[4, 8])
    cache.allocate(lease, 12)
    return cache, lease


def figures(cache: PrefixCache, lease: Lease) -> tuple[object, ...]:
    stats = cache.stats()
    tables = [lease.pages(name).tolist() for name in ("full", "swa")]
    return cache.tree.dump(), stats.pools, stats.drops, tables, lease.committed, lease.computed, dict(lease.save_pages)


@pytest.mark.parametrize(
    "change",
    [
        {"states": {4: "page", 8.0: "page"}},
        {"states": {4: "page", True: "page"}},
        {"states": {4: "page", 8: 0.5}},
        {"states": {4: "page", 8: float("nan")}},
        {"states": {4: "page", None: "page"}},
        {"states": [4, 8]},
        {"without": "draft"},
        {"without": ["draft", "nope"]},
        {"without": ["draft", "full"]},
        {"without": [["draft"]]},
        {"without": None},
        {"resumable": "no"},
        {"tokens": 12.0},
        {"tokens": float("nan")},
        {"tokens": True},
        {"tokens": None},
        {"tokens": -3},
        {"tokens": 1 << 70},
    ],
    ids=str,
)
def test_nothing_is_published(running: tuple[PrefixCache, Lease], change: dict[str, Any]) -> None:
    cache, lease = running
    arguments: dict[str, Any] = {"tokens": TOKENS, "states": {4: "page", 8: "page"}} | change
    if isinstance(arguments["states"], dict):
        at = {4: lease.save_pages[4]}
        arguments["states"] = {
            length: at.get(length, lease.save_pages[8]) if page == "page" else page
            for length, page in arguments["states"].items()
        }
    before = figures(cache, lease)
    with pytest.raises(UnifiedTreeError):
        cache.commit(lease, **arguments)
    assert figures(cache, lease) == before
    cache.commit(lease, TOKENS, dict(lease.save_pages))
    assert cache.tree.match_prefix(Key(TOKENS)).device.length == 8


def test_names_may_come_from_a_generator(running: tuple[PrefixCache, Lease]) -> None:
    cache, lease = running
    cache.commit(lease, TOKENS, dict(lease.save_pages), without=(name for name in ["draft"]))  # type: ignore[arg-type]
    assert cache.stats().pools["full"].tree == 6
    assert cache.tree.pool("draft").used_pages == 0
    cache.release(lease)


def test_fewer_tokens_than_were_committed(running: tuple[PrefixCache, Lease]) -> None:
    cache, lease = running
    cache.commit(lease, TOKENS, dict(lease.save_pages))
    before = figures(cache, lease)
    for tokens in (5, TOKENS[:5]):
        with pytest.raises(UnifiedTreeError, match="truncate"):
            cache.commit(lease, tokens)
    assert figures(cache, lease) == before
    cache.commit(lease, 12)
