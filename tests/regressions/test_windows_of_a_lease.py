"""Window pages of a running request: in its table, under its locks, rebuilt, and freed on the way."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Component, ConfigurationError, Key, Trailing
from unified_tree.controllers import Lease, PrefixCache

TOKENS = np.arange(64)


def test_a_running_request_keeps_its_window() -> None:
    """A commit took window pages that the next token needs out of the lease's table, where the tree had them from an earlier
    one. Found by comparing what a request reads with what was put in (`narrow window 300`, step 89).
    """
    cache = PrefixCache([FULL, swa(3)], 2, {"full": 32, "swa": 32})
    lease = cache.acquire(Key(TOKENS[:16]))
    for length in (16, 18):
        cache.allocate(lease, length)
        cache.commit(lease, TOKENS[:length], resumable=True)
        held = lease.pages("swa")[(length - 3) // 2 :]
        assert (held >= 0).all(), "the next token needs the three before it"
        assert all(cache.tree.pool("swa").ledger.owns(page) for page in held.tolist())
    assert cache.stats().pools["swa"].protected == 4, "whole values: [10, 16) of the prompt and its repeat, [16, 18) behind"
    cache.release(lease)
    assert cache.tree.check() == []


def test_a_late_state_leaves_the_window_lock() -> None:
    """A state committed late, below a window published since, moved the window's lock back, and the window could be evicted.
    Found by comparing what a request reads with what was put in (`everything 0`, step 184).
    """
    cache = PrefixCache([FULL, swa(5), MAMBA], 2, {"full": 32, "swa": 32, "mamba": 8})
    lease = cache.acquire(Key(TOKENS[:12]), checkpoints=[6])
    cache.allocate(lease, 12)
    cache.commit(lease, 12, resumable=True)
    held = lease.pages("swa").tolist()
    cache.commit(lease, 12, {6: lease.save_pages[6]}, resumable=False)
    assert cache.stats().pools["swa"].protected >= 3
    cache.device.free_all(cache.tree.evict({"swa": 32}).freed)
    assert all(cache.tree.pool("swa").ledger.owns(page) for page in held[-3:])
    assert lease.pages("swa").tolist()[-3:] == held[-3:]
    cache.release(lease)
    assert cache.tree.check() == []


# A prompt in chunks kept the windows of each chunk locked as a whole, though its next token needs less: a pool that held a
# window and a chunk turned such prompts away.


@pytest.mark.parametrize("seed", range(20))
def test_what_is_locked_of_spare_windows_is_what_the_next_token_needs(seed: int) -> None:
    rng = Random(seed)
    page, window = rng.choice([1, 2, 4]), rng.randrange(1, 60)
    cache = PrefixCache([FULL, swa(window)], page)
    tokens = np.arange(page * rng.randrange(2, 100) + rng.randrange(page))
    with cache.acquire(Key(tokens)) as lease:
        at = 0
        while at < tokens.size - 1:
            at = min(tokens.size - 1, at + rng.randrange(1, 70))
            cache.allocate(lease, at)
            cache.commit(lease, at, resumable=False)
            end = at // page * page
            needed = end // page - max(0, end - window) // page
            assert cache.stats().pools["swa"].protected == needed
            assert cache.tree.check() == []
    assert cache.stats().pools["swa"].protected == 0


@pytest.mark.parametrize(("chunk", "window"), [(512, 600), (64, 600), (512, 5), (512, 512)])
def test_a_window_and_a_chunk_are_room_enough(chunk: int, window: int) -> None:
    size = 16
    room = -(-window // size) + 1 + chunk // size
    cache = PrefixCache([FULL, swa(window)], size, {"full": 200, "swa": room})
    tokens = np.arange(3000)
    for _ in range(2):
        with cache.acquire(Key(tokens)) as lease:
            for at in [*range(lease.compute_from + chunk, tokens.size, chunk), tokens.size]:
                cache.allocate(lease, at)
                cache.commit(lease, at)
        tokens = tokens + 5000


# A component could say that fewer tokens than its window rebuild the window. The lease's table then had holes within what the
# next token needs. And what is optional, an own window or one in a rebuilt window's pages, counted as rebuilt by a run that
# was long enough for the required ones only.

PROMPT = Key(TOKENS[:41])


def rebuilding(windows: list[Component], page_size: int) -> tuple[PrefixCache, Lease]:
    """A hit of all whole pages, whose windows are gone."""
    cache = PrefixCache([FULL, *windows], page_size)
    with cache.acquire(PROMPT, reserve_tokens=40) as lease:
        cache.commit(lease, 40, resumable=True)
    for window in windows:
        cache.evict({window.name: 40})
    lease = cache.acquire(PROMPT)
    assert (lease.cached_tokens, lease.rebuilt_tokens > 0) == (40 // page_size * page_size, True)
    return cache, lease


def test_a_rebuild_of_less_than_a_window_is_refused() -> None:
    for window in range(1, 12):
        for rebuild in range(1, window):
            with pytest.raises(ConfigurationError, match=f"{rebuild}, but so few tokens do not fill a window of {window}"):
                swa(window, rebuild_tokens=rebuild)


@pytest.mark.parametrize("page_size", [1, 2, 3, 8])
def test_whatever_is_rebuilt_has_no_holes(page_size: int) -> None:
    for window in range(1, 12):
        for rebuild in (window, window + 1, 2 * window):
            cache, lease = rebuilding([swa(window, rebuild_tokens=rebuild), swa(3, rebuild_tokens=3, name="other")], page_size)
            cache.allocate(lease, 41)
            for name, wanted in (("swa", window), ("other", 3)):
                first = (lease.cached_tokens - wanted) // page_size
                assert (lease.pages(name, first) >= 0).all(), (name, window, rebuild)
                assert lease.compute_from <= lease.write_from[name] == first * page_size


def test_an_optional_window_is_not_rebuilt_along_with_a_required_one() -> None:
    cache, lease = rebuilding([swa(3, rebuild_tokens=3), swa(8, required=False, name="draft")], 2)
    cache.allocate(lease, 40)
    assert lease.write_from["draft"] == 40
    assert (lease.pages("draft") < 0).all()
    cache.commit(lease, 40, resumable=True)
    cache.release(lease)
    again = cache.acquire(PROMPT)
    assert (again.compute_from, bool((again.pages("draft") < 0).all())) == (40, True)
    assert cache.tree.check() == []


def test_nor_is_one_in_its_pages() -> None:
    draft = Component(name="draft", coverage=Trailing(3), required=False, shares="swa")
    cache = PrefixCache([FULL, swa(4, rebuild_tokens=4), draft], 2)
    for tokens, drafted in ((20, True), (20, False), (23, False), (30, True)):
        cache.evict({"swa": 40})
        lease = cache.acquire(Key(TOKENS[:21]))
        assert (lease.rebuilt_tokens > 0) == (lease.cached_tokens == 20)
        cache.allocate(lease, tokens)
        cache.commit(lease, TOKENS[:tokens], resumable=True)
        cache.release(lease)
        again = cache.acquire(Key(TOKENS[: tokens + 1]))
        assert again.compute_from == tokens // 2 * 2
        assert (again.pages("draft")[-2:] >= 0).all() == drafted
        cache.release(again)
    assert cache.tree.check() == []


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_what_was_invalidated_keeps_no_windows(commits: bool, in_batch: bool) -> None:
    """A lease whose namespace was invalidated kept every window page from its next save point on, for what it would never
    publish. A small pool was soon full of them, and the lease could not go on though it ran alone. Found by a random mix of
    requests over a store, once in some thousand runs: weights changed between two chunks of a prompt with checkpoints.
    """
    cache = PrefixCache([FULL, swa(5)], 2, {"full": 64, "swa": 8})
    lease = cache.acquire(Key(TOKENS), checkpoints=[12, 40])
    assert lease.next_stop(0) == 12
    cache.allocate(lease, 8)
    cache.commit(lease, TOKENS[:8], resumable=False)
    batch = cache.batch(max_leases=2, max_tokens=64)
    if in_batch:
        batch.add(lease)
    cache.invalidate()
    assert lease.save_at == ()
    assert lease.next_stop(8) is None
    for length in range(12, 65, 4):
        if in_batch:
            batch.allocate(length - lease.length)
        else:
            cache.allocate(lease, length)
        (cache.commit if commits else cache.advance)(lease, length)
        assert (lease.pages("swa") >= 0).sum() <= 4
    cache.release(lease)
    assert cache.acquire(Key(TOKENS)).cached_tokens == 0
    assert cache.tree.check() == []
