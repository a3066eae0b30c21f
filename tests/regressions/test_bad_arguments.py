"""Calls with numbers and arguments that cannot be: each is refused, and changes nothing."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from held_engine import Tiered
from kinds import DRAFT, FULL, MAMBA, swa
from published import publish

from unified_tree import Key, LeaseError, OutOfPagesError, PageError, UnifiedTree, UnifiedTreeError, is_compiled
from unified_tree.controllers import DecodeBatch, Lease, PrefixCache
from unified_tree.controllers.pages import tier_pages

KINDS = [FULL, swa(3), MAMBA]

# Numbers and arguments at which a batch of leases failed in other words than the library's, or did not fail at all.


def running(page_size: int = 4) -> tuple[PrefixCache, DecodeBatch, list[Lease]]:
    """Two leases of nine tokens in a batch."""
    cache = PrefixCache([FULL, swa(7)], page_size)
    batch = cache.batch(3, 100)
    leases = [cache.acquire(Key(np.arange(first, first + 9))) for first in (0, 100)]
    for lease in leases:
        cache.allocate(lease, 9)
        cache.commit(lease, 9)
        batch.add(lease)
    return cache, batch, leases


@pytest.mark.parametrize("tokens", [92, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1])
def test_a_length_that_overflows_is_too_long(tokens: int) -> None:
    _, batch, _ = running()
    for call in (batch.allocate, batch.can_allocate):
        with pytest.raises(LeaseError, match="leases of 100"):
            call(tokens)
    assert batch.lengths.tolist() == [9, 9, 0]
    assert batch.can_allocate(91)


def test_a_lease_in_a_larger_batch_is_not_in_this_one() -> None:
    cache, batch, leases = running()
    other = cache.batch(1, 100)
    with pytest.raises(LeaseError, match="not in this batch"):
        other.remove(leases[1])
    assert batch.leases == leases


@pytest.mark.parametrize("sizes", [(1 << 62, 1 << 62), (1, 1 << 62)])
def test_rows_for_which_there_is_no_memory_are_refused(sizes: tuple[int, int]) -> None:
    cache, _, _ = running()
    with pytest.raises(LeaseError, match="no memory"):
        cache.batch(*sizes)


@pytest.mark.parametrize("given", [(["full"],), ("full", True), ("full", np.array([1, 2])), ("full", 1.0), ("full", 1 << 62)])
def test_slots_of_what_means_nothing_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(LeaseError):
        running()[1].slots(*given)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_token_before_the_window_has_no_slot(page_size: int) -> None:
    _, batch, leases = running(page_size)
    batch.allocate(20)
    batch.advance()
    held = 29 // page_size * page_size - 7
    wanted = [
        [-1 if at < held // page_size * page_size else ids[at // page_size] * page_size + at % page_size for at in range(29)]
        for ids in (lease.pages("swa").tolist() for lease in leases)
    ]
    assert batch.slots("swa", 29).tolist() == wanted


def test_a_released_lease_says_nothing_of_the_next_in_its_row() -> None:
    cache, batch, leases = running()
    cache.release(leases[1])
    after = cache.acquire(Key(np.arange(500, 520)))
    cache.allocate(after, 20)
    assert batch.add(after) == 1
    assert (leases[1].length, leases[1].computed) == (9, 9)


def test_the_rows_are_read_only() -> None:
    cache, batch, _ = running()
    for array in (batch.rows, batch.lengths, *batch.tables.values(), cache.batch(1, 1).rows):
        assert not array.flags.writeable


# `commit` publishes place by place, and some of what was wrong was found only after earlier places had been published.

TOKENS = np.arange(12)


@pytest.fixture
def committing() -> tuple[PrefixCache, Lease]:
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
def test_a_commit_with_a_bad_argument_publishes_nothing(committing: tuple[PrefixCache, Lease], change: dict[str, Any]) -> None:
    cache, lease = committing
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


def test_the_names_that_a_commit_leaves_out_may_come_from_a_generator(committing: tuple[PrefixCache, Lease]) -> None:
    cache, lease = committing
    cache.commit(lease, TOKENS, dict(lease.save_pages), without=(name for name in ["draft"]))  # type: ignore[arg-type]
    assert cache.stats().pools["full"].tree == 6
    assert cache.tree.pool("draft").used_pages == 0
    cache.release(lease)


def test_a_commit_of_fewer_tokens_than_were_committed(committing: tuple[PrefixCache, Lease]) -> None:
    cache, lease = committing
    cache.commit(lease, TOKENS, dict(lease.save_pages))
    before = figures(cache, lease)
    for tokens in (5, TOKENS[:5]):
        with pytest.raises(UnifiedTreeError, match="truncate"):
            cache.commit(lease, tokens)
    assert figures(cache, lease) == before
    cache.commit(lease, 12)


# `acquire` undid what it had done for two kinds of error only: a bad checkpoint raised after pages had been pinned and a
# state page taken, so that three such calls emptied a pool of four for good; an unhashable request left a lease that nobody
# had.

PROMPT = np.arange(8)


def books(cache: PrefixCache) -> tuple[object, ...]:
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
        {"checkpoints": np.array(3)},
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
def test_an_acquire_with_a_bad_argument_changes_nothing(arguments: dict[str, Any], tiers: int) -> None:
    if tiers == 2:
        cache = Tiered(KINDS, device=8, counts={"mamba": 4}).cache
    else:
        cache = PrefixCache(KINDS, 2, {"full": 8, "swa": 8, "mamba": 4})
    publish(cache, PROMPT)
    before = books(cache)
    for _ in range(5):
        with pytest.raises(UnifiedTreeError):
            cache.acquire(Key([*PROMPT, 9]), **arguments)
    assert books(cache) == before
    assert cache.acquire(Key([*PROMPT, 9])).cached_tokens == 8


NAMES_OF_NOTHING = [np.bool_(True), np.int64(-1), np.array(3), np.array([3]), np.arange(5), np.zeros((2, 2)), np.array(["a"])]


@pytest.mark.parametrize("without", NAMES_OF_NOTHING, ids=repr)
def test_what_names_no_components_is_refused(without: Any) -> None:
    cache = PrefixCache([*KINDS, DRAFT], 2, {"full": 8, "swa": 8, "mamba": 4})
    lease = cache.acquire(Key(PROMPT))
    for call in (cache.allocate, cache.can_allocate):
        with pytest.raises(LeaseError, match="without"):
            call(lease, 4, without=without)
    assert lease.length == 0


@pytest.mark.parametrize("needs", [None, 3, [], "full", np.array([3])], ids=repr)
def test_needs_that_are_no_mapping_are_refused(needs: Any) -> None:
    with pytest.raises(UnifiedTreeError, match="needs must be a mapping"):
        PrefixCache(KINDS, 2).evict(needs)


@pytest.mark.parametrize("namespace", [None, [], {}, np.arange(3)], ids=repr)
def test_a_namespace_that_is_no_string_has_no_version(namespace: Any) -> None:
    with pytest.raises(LeaseError, match="a namespace must be a string"):
        PrefixCache(KINDS, 2).generation(namespace)


# `acquire` compared each checkpoint with all before it: ten thousand took 0.7 seconds.


def test_of_many_checkpoints_the_deepest_are_saved() -> None:
    cache = PrefixCache(KINDS, 1)
    lengths = list(range(1, 20_001))
    with cache.acquire(Key(np.arange(20_000)), [*lengths, *lengths]) as lease:
        assert lease.save_at == (19_997, 19_998, 19_999, 20_000)


@pytest.mark.parametrize("call", ["lock", "pages", "pages_with_loads", "lock_present"])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("is_loading", [False, True])
def test_an_acquire_that_fails_within_gives_everything_back(
    call: str, after: int, is_loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered = Tiered(KINDS)
    cache = tiered.cache
    tiered.serve("abcdefgh")
    tiered.settle()
    if is_loading:
        tiered.forget()
    face = cache.tree if call in ("lock", "pages") else cache.tree.transfers
    before, original, calls = books(cache), getattr(face, call), 0

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
        assert books(cache) == before
    tiered.end()


@pytest.mark.skipif(is_compiled, reason="compiled code calls no patched function")
def test_an_allocate_that_fails_for_a_state_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(KINDS, 2, {"full": 8, "swa": 8, "mamba": 2})
    publish(cache, PROMPT)
    lease = cache.acquire(Key([9, 9, 9, 9, 9]))
    before = books(cache), lease.length, lease.pages("full").tolist()

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(tier_pages, "evict", fails)
        with pytest.raises(ZeroDivisionError):
            cache.allocate(lease, 4)
    assert (books(cache), lease.length, lease.pages("full").tolist()) == before
    cache.allocate(lease, 4)
    assert set(lease.save_pages) == {4}


# A pool of 2**40 pages raised MemoryError, and one absurd `allocate` on a pool without a limit left it unusable.


@pytest.mark.parametrize("page_count", [1 << 30, 1 << 40, 1 << 62])
def test_a_cache_of_that_many_pages_takes_little_memory(page_count: int) -> None:
    tracemalloc.start()
    cache = PrefixCache(KINDS, 2, dict.fromkeys(["full", "swa", "mamba"], page_count))
    publish(cache, np.arange(9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cache.acquire(Key(np.arange(10))).cached_tokens == 8
    assert peak < 1 << 20


@pytest.mark.parametrize("page_counts", [{}, {"swa": 40}, dict.fromkeys(["full", "swa", "mamba"], 1 << 40)], ids=str)
@pytest.mark.parametrize("tokens", [1 << 40, 1 << 62, (1 << 63) - 1])
def test_an_absurd_length_changes_nothing(page_counts: dict[str, int], tokens: int) -> None:
    cache = PrefixCache(KINDS, 2, page_counts)
    lease = cache.acquire(Key(np.arange(9)))
    cache.allocate(lease, 4)
    before = cache.stats().pools, lease.pages("full").tolist(), lease.length
    with pytest.raises(OutOfPagesError):
        cache.allocate(lease, tokens)
    assert (cache.stats().pools, lease.pages("full").tolist(), lease.length) == before
    cache.allocate(lease, 9)
    cache.commit(lease, np.arange(9), dict(lease.save_pages))
    cache.release(lease)
    assert all(pool.leased == 0 for pool in cache.stats().pools.values())


@pytest.mark.parametrize("page", [1 << 32, 1 << 39, (1 << 40) - 1])
def test_ids_that_cannot_be_kept_track_of(page: int) -> None:
    tree = UnifiedTree([FULL], 2, page_counts={"full": 1 << 40})
    tree.insert(Key([1, 2]), {"full": np.array([7])})
    for ids in ([page], [3, page], list(range(page - 20, page + 1))):
        with pytest.raises(PageError):
            tree.insert(Key(np.arange(2 * len(ids))), {"full": np.array(ids)})
    assert tree.check() == []
    assert tree.insert(Key([1, 2, 3, 4]), {"full": np.array([100_000])}).boundary.length == 4
