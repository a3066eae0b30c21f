"""`acquire` undid what it had done for two kinds of error only: a bad checkpoint raised after pages had been pinned and a state
page taken, so that three such calls emptied a pool of four for good; an unhashable request left a lease that nobody had.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa

from unified_tree import Key, UnifiedTreeError
from unified_tree.controllers import PrefixCache

TOKENS = np.arange(8)


def figures(cache: PrefixCache) -> tuple[object, ...]:
    stats = cache.stats()
    return stats.pools, stats.leases, stats.requests, cache.tree.dump()


@pytest.mark.parametrize(
    "arguments",
    [
        {"checkpoints": [4, "end"]},
        {"checkpoints": [50.5]},
        {"checkpoints": [-5]},
        {"checkpoints": [None]},
        {"checkpoints": [float("nan")]},
        {"checkpoints": [True]},
        {"checkpoints": 4},
        {"checkpoints": "48"},
        {"priority": "high"},
        {"priority": 1.5},
        {"priority": 1 << 80},
        {"save_output": "no"},
        {"may_load": None},
        {"request": ["a", "list"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("tiers", [1, 2])
def test_bad_arguments_change_nothing(arguments: dict[str, Any], tiers: int) -> None:
    if tiers == 2:
        cache = Tiered([FULL, swa(3), MAMBA], device=8, counts={"mamba": 4}).cache
    else:
        cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 8, "swa": 8, "mamba": 4})
    with cache.acquire(Key(TOKENS)) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, TOKENS, dict(lease.save_pages))
    before = figures(cache)
    for _ in range(5):
        with pytest.raises(UnifiedTreeError):
            cache.acquire(Key([*TOKENS, 9]), **arguments)
    assert figures(cache) == before
    assert cache.acquire(Key([*TOKENS, 9])).cached_tokens == 8


@pytest.mark.parametrize("call", ["lock", "pages", "pages_with_loads", "lock_present"])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("is_loading", [False, True])
def test_an_error_from_within_gives_everything_back(
    call: str, after: int, is_loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered = Tiered([FULL, swa(3), MAMBA])
    cache = tiered.cache
    tiered.serve("abcdefgh")
    tiered.settle()
    if is_loading:
        tiered.forget()
    face = cache.tree if call in ("lock", "pages") else cache.tree.transfers
    before, original, calls = figures(cache), getattr(face, call), 0

    def fails(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise ZeroDivisionError
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(face, call, fails)
        try:
            request = tiered.start("abcdefghi")
        except ZeroDivisionError:
            pass
        else:
            tiered.runner.finish(request)
            return
    tiered.settle()
    assert cache.stats().leases == 0
    assert [pool.leased for pool in cache.stats().pools.values()] == [0, 0, 0]
    assert [pool.protected for pool in cache.stats().pools.values()] == [0, 0, 0]
    if not is_loading:
        assert figures(cache) == before
    tiered.end()


def test_an_allocate_that_fails_for_a_state_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache([FULL, swa(3), MAMBA], 2, {"full": 8, "swa": 8, "mamba": 2})
    with cache.acquire(Key(TOKENS)) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, TOKENS, dict(lease.save_pages))
    lease = cache.acquire(Key([9, 9, 9, 9, 9]))
    before = figures(cache), lease.length, lease.pages("full").tolist()

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(cache.tree, "evict", fails)
        with pytest.raises(ZeroDivisionError):
            cache.allocate(lease, 4)
    assert (figures(cache), lease.length, lease.pages("full").tolist()) == before
    cache.allocate(lease, 4)
    assert set(lease.save_pages) == {4}
