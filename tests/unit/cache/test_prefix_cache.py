"""PrefixCache, one request at a time: what a lease holds, publishes, and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kinds import DRAFT, FULL, MAMBA, swa
from published import publish

from unified_tree import Component, ConfigurationError, InsertError, InvalidKeyError, Key, LeaseError, OutOfPagesError, Point
from unified_tree.controllers import Lease, PrefixCache

TOKENS = list(range(100, 140))


def make(components: Sequence[Component], pages: int = 32, **options: Any) -> PrefixCache:
    return PrefixCache(components, 2, {c.name: pages for c in components if c.shares is None}, **options)


def figures(cache: PrefixCache) -> tuple[str, dict[str, tuple[int, int, int]]]:
    """All that an error must leave as it was."""
    pools = cache.stats().pools
    return cache.tree.dump(), {name: (pool.used, pool.leased, pool.protected) for name, pool in pools.items()}


def test_a_state_is_copied_before_it_is_written() -> None:
    cache = make([FULL, MAMBA])
    publish(cache, TOKENS[:8])
    lease = cache.acquire(Key(TOKENS[:10]))
    [copy] = lease.state_copies
    assert lease.cached_tokens == 8
    assert copy.component == "mamba"
    assert copy.target == lease.state_page
    assert copy.source != copy.target
    assert cache.tree.pool("mamba").ledger.owns(copy.source)
    assert not cache.tree.pool("mamba").ledger.owns(copy.target)
    assert cache.stats().pools["mamba"].protected == 1, "the source stays while it may be copied"
    other = cache.acquire(Key(TOKENS[:10]))
    assert other.state_copies[0].source == copy.source
    assert other.state_page != lease.state_page


def test_states_are_saved_where_the_lease_says() -> None:
    cache = make([FULL, MAMBA])
    publish(cache, TOKENS[:8])
    branch = [*TOKENS[:4], 1, 2, 3, 4, 5, 6]
    lease = cache.acquire(Key(branch), checkpoints=[2, 9])
    assert lease.cached_tokens == 0
    assert lease.save_at == (2, 4, 8), "where the branch leaves the tree, and the checkpoints in whole pages"
    cache.allocate(lease, 10)
    assert set(lease.save_pages) == {2, 4, 8}
    cache.commit(lease, branch, dict(lease.save_pages))
    assert lease.save_pages == {}
    cache.release(lease)
    for length in (2, 4, 8):
        assert cache.acquire(Key([*branch[:length], 0])).cached_tokens == length


def test_window_pages_come_back_while_the_request_runs() -> None:
    cache = make([FULL, swa(4)])
    with cache.acquire(Key(TOKENS[:30]), save_output=False) as lease:
        most = 0
        for length in range(2, 31, 2):
            cache.allocate(lease, length)
            cache.advance(lease, length)
            most = max(most, cache.stats().pools["swa"].leased)
        assert most <= 3
        assert lease.pages("swa")[:12].tolist() == [-1] * 12
        assert (lease.pages("swa")[12:] >= 0).all(), "the window before the end, and before a repeat of the prompt goes on"
        assert [lease.page("swa", index) for index in range(16)] == [*lease.pages("swa").tolist(), -1]
        assert cache.stats().pools["full"].leased == 15


def test_a_hit_window_is_unpinned_once_it_has_passed() -> None:
    cache = make([FULL, swa(4)])
    publish(cache, TOKENS[:9])
    lease = cache.acquire(Key(TOKENS[:20]))
    assert lease.cached_tokens == 8
    assert cache.stats().pools["swa"].protected == 2
    cache.allocate(lease, 16)
    cache.advance(lease, 16)
    assert cache.stats().pools["swa"].protected == 0
    assert cache.stats().pools["full"].protected == 4


def test_checkpoints_say_where_windows_are_kept_instead_of_the_end() -> None:
    cache = make([FULL, swa(4)])
    with cache.acquire(Key(TOKENS[:13]), (6,)) as lease:
        cache.allocate(lease, 16)
        cache.commit(lease, TOKENS[:12])
        cache.commit(lease, TOKENS[:16])
    while cache.stats().pools["swa"].tree > 4:
        cache.evict({"swa": 1})  # the spare ones: one is kept at the checkpoint, one at the end of the output
    assert [cache.tree.match_prefix(Key(TOKENS[:n])).device.length for n in (12, 16)] == [6, 16]


def test_a_rebuilt_window_reads_the_cached_path() -> None:
    window = swa(4, rebuild_tokens=4)
    cache = make([FULL, window])
    publish(cache, TOKENS[:20])
    cache.device.free_all(cache.tree.evict({"swa": 9}).freed)
    with cache.acquire(Key(TOKENS[:21])) as lease:
        assert (lease.cached_tokens, lease.compute_from, lease.rebuilt_tokens) == (20, 14, 6)
        assert lease.write_from == {"full": 20, "swa": 16}
        assert cache.stats().hit_tokens == 14
        assert cache.stats().rebuilt_tokens == 6
    plain = make([FULL, window], rebuild=False)
    publish(plain, TOKENS[:20])
    plain.device.free_all(plain.tree.evict({"swa": 9}).freed)
    assert plain.acquire(Key(TOKENS[:21])).cached_tokens == 0


def test_rejected_draft_tokens_are_taken_back() -> None:
    cache = make([FULL, MAMBA])
    lease = cache.acquire(Key(TOKENS[:4]))
    cache.allocate(lease, 4)
    cache.commit(lease, TOKENS[:4])
    cache.allocate(lease, 9)
    assert cache.stats().pools["full"].leased == 3
    cache.truncate(lease, 5)
    assert lease.length == 5
    assert cache.stats().pools["full"].leased == 1
    cache.allocate(lease, 8)
    cache.commit(lease, [*TOKENS[:5], 7, 7, 7])
    assert cache.tree.match_prefix(Key([*TOKENS[:5], 7, 7, 7])).path_length == 8
    for length in (7, 9):
        with pytest.raises(LeaseError, match="can be cut"):
            cache.truncate(lease, length)


def test_a_lease_is_a_context_manager() -> None:
    cache = make([FULL])
    lease = cache.acquire(Key(TOKENS[:4]))
    cache.allocate(lease, 4)
    with pytest.raises(OutOfPagesError), lease:
        cache.allocate(lease, 400)
    assert lease.is_released
    assert cache.stats().pools["full"].used == 0
    with cache.acquire(Key(TOKENS[:4])) as lease:
        cache.release(lease)
    assert lease.is_released, "released by hand already"


@pytest.mark.parametrize("use", ["allocate", "advance", "commit", "truncate", "release"])
def test_a_lease_that_is_over_or_anothers_is_refused(use: str) -> None:
    cache, other = make([FULL]), make([FULL])
    lease = cache.acquire(Key(TOKENS[:4]))
    arguments = {"allocate": (4,), "advance": (0,), "commit": (TOKENS[:0],), "truncate": (0,), "release": ()}[use]
    with pytest.raises(LeaseError, match="belongs to another cache"):
        getattr(other, use)(lease, *arguments)
    cache.release(lease)
    with pytest.raises(LeaseError, match="released before"):
        getattr(cache, use)(lease, *arguments)
    assert cache.stats().leases == 0


@pytest.fixture
def running() -> tuple[PrefixCache, Lease]:
    cache = make([FULL, DRAFT, MAMBA])
    lease = cache.acquire(Key(TOKENS[:8]))
    cache.allocate(lease, 8)
    return cache, lease


@pytest.mark.parametrize(
    ("tokens", "states", "without", "complaint"),
    [
        ([*TOKENS[:9]], {}, [], "has pages for 8 tokens"),
        ([*TOKENS[:5], 1, 2, 3], {}, [], None),
        (TOKENS[:8], {8: 31}, [], "page 31 of 'mamba' is not what"),
        (TOKENS[:8], {3: "save"}, [], "a state at 3"),
        (TOKENS[:8], {10: "save"}, [], "a state at 10"),
        (TOKENS[:6], {8: "save"}, [], "a state at 8"),
        (TOKENS[:8], {0: "save"}, [], "a state at 0"),
        (TOKENS[:8], {6: "save", 8: "save"}, [], "given twice"),
        (TOKENS[:8], {4: "running"}, [], "running state"),
        (TOKENS[:8], {}, ["nope"], "no component 'nope'"),
        (TOKENS[:8], {}, ["full"], "required path"),
        ([1.5], {}, [], "must be integers"),
        ([-1], {}, [], "zero or more"),
    ],
)
def test_a_bad_commit_changes_nothing(
    running: tuple[PrefixCache, Lease], tokens: list[Any], states: dict[int, Any], without: list[str], complaint: str | None
) -> None:
    cache, lease = running
    if complaint is None:  # what is computed says the first five tokens; nothing was, so these may still change
        cache.advance(lease, 8)
        complaint = "differ"
    pages: dict[object, Any] = {"save": lease.save_pages[8], "running": lease.state_page}
    given = {length: pages.get(page, page) for length, page in states.items()}
    before = figures(cache)
    with pytest.raises((LeaseError, InsertError, InvalidKeyError), match=complaint):
        cache.commit(lease, tokens, given, without=without)
    assert figures(cache) == before
    cache.commit(lease, TOKENS[:8], {8: pages["save"]})
    assert cache.tree.match_prefix(Key(TOKENS[:8])).device.length == 8


def test_a_failed_commit_forgets_its_tokens() -> None:
    cache = make([FULL, DRAFT])
    lease = cache.acquire(Key(TOKENS[:4]))
    cache.allocate(lease, 8)
    with pytest.raises(InsertError):
        cache.commit(lease, [*TOKENS[:4], 1, 2, 3, 4], without=["nope"])
    assert (lease.committed, lease.computed, lease.key.length) == (0, 0, 4)
    cache.commit(lease, [*TOKENS[:4], 5, 6, 7, 8])
    assert lease.committed == 8


def test_states_without_a_component_for_them() -> None:
    cache = make([FULL])
    lease = cache.acquire(Key(TOKENS[:4]))
    cache.allocate(lease, 4)
    with pytest.raises(LeaseError, match="no component has any"):
        cache.commit(lease, TOKENS[:4], {4: 0})


@pytest.mark.parametrize(("key", "message"), [(None, "wrap"), ([1, 2], "wrap"), (Key([]), "at least one token")])
def test_acquire_takes_a_key_with_a_token(key: Any, message: str) -> None:
    with pytest.raises(LeaseError, match=message):
        make([FULL]).acquire(key)


def test_what_was_never_allocated_cannot_be_computed() -> None:
    cache = make([FULL])
    lease = cache.acquire(Key(TOKENS[:4]))
    with pytest.raises(LeaseError, match="cannot be computed"):
        cache.advance(lease, 3)


def test_one_component_with_state_pages_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="one Point component"):
        PrefixCache([FULL, MAMBA, Component(name="conv", coverage=Point())], 2)


@pytest.mark.parametrize("short", ["full", "swa", "mamba"])
def test_out_of_pages_changes_nothing(short: str) -> None:
    components = [FULL, swa(4), MAMBA]
    counts = {c.name: 40 for c in components} | {short: {"full": 6, "swa": 3, "mamba": 2}[short]}
    cache = PrefixCache(components, 2, counts)
    publish(cache, TOKENS[:4])
    lease = cache.acquire(Key([1, 2, 3, 4, 5, 6]))
    cache.allocate(lease, 4)
    if short == "mamba":
        cache.allocate(lease, 6)
        assert cache.stats().pools["mamba"].leased == 2
        before = figures(cache)
        with pytest.raises(OutOfPagesError, match="mamba"):
            cache.acquire(Key([9, 9]))
    else:
        before = figures(cache)
        with pytest.raises(OutOfPagesError, match=short):
            cache.allocate(lease, 40)
    assert figures(cache) == before
    assert cache.stats().refused == 1


def test_pages_are_integers_of_the_pool() -> None:
    cache = make([FULL], pages=4)
    with cache.acquire(Key(TOKENS[:8])) as lease:
        cache.allocate(lease, 8)
        ids = lease.pages("full")
        assert ids.dtype == np.int64
        assert sorted(ids) == [0, 1, 2, 3]
