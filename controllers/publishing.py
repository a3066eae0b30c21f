"""What `PrefixCache.commit` does: move computed pages from a lease into the tree.

Each place where a window or a state is to be kept gets an insert of its own, in ascending order, and the end gets the last:
so each is a boundary that can be backed up. An insert brings the path's new pages, the window before its end, and its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.errors import LeaseError
from unified_tree.keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.lease import Lease
    from unified_tree.controllers.prefix_cache import PrefixCache
    from unified_tree.receipt import InsertResult


def publish(
    cache: PrefixCache,
    lease: Lease,
    tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
    states: Mapping[int, int],
    without: Sequence[str],
    resumable: bool | None,
) -> None:
    """See PrefixCache.commit."""
    key = _extended_key(lease, tokens)
    if key.length > lease.length:
        raise LeaseError(f"{lease} has pages for {lease.length} tokens, so {key.length} cannot be committed")
    end = key.length // cache.page_size * cache.page_size
    _check_states(cache, lease, states, key.length)
    if lease.generation != cache.generation(key.namespace):
        cache.counters.drop("commit of what was invalidated")
        _computed(cache, lease, key)
        return
    if resumable is None:
        prompt_end = lease.prompt_tokens // cache.page_size * cache.page_size
        resumable = key.length >= lease.prompt_tokens and (lease.save_output or end == prompt_end)
    stops = _stops(cache, lease, states, end, resumable)
    remaining = dict(states)
    for stop in stops:
        due = {length: remaining.pop(length) for length in sorted(remaining) if length <= stop}
        keep_windows = (stop in lease.save_at or resumable) and bool(cache.windows)
        _publish_up_to(cache, lease, key.prefix(stop), keep_windows, due, without)
    _computed(cache, lease, key)


def _computed(cache: PrefixCache, lease: Lease, key: Key) -> None:
    if key.length >= lease.key.length:
        lease.key = key
    cache.advance(lease, key.length)


def _extended_key(lease: Lease, tokens: NDArray[np.integer[Any]] | Sequence[int] | int) -> Key:
    """The key of all tokens computed, which must go on from what is committed."""
    old = lease.key
    if isinstance(tokens, int | np.integer):
        if not 0 <= tokens <= old.length:
            raise LeaseError(f"{lease} knows {old.length} tokens, so {tokens} cannot be committed by number; give the tokens")
        return old.prefix(tokens)
    key = Key(tokens, old.namespace, bigram=old.bigram)
    key.require_tokens(lease.committed)
    if not key.starts_with(old.prefix(min(old.length, key.length, max(lease.committed, lease.computed)))):
        raise LeaseError(f"the tokens committed differ from those of {lease} within its first {lease.computed}")
    return key


def _check_states(cache: PrefixCache, lease: Lease, states: Mapping[int, int], computed: int) -> None:
    """Each state page must be the lease's own for that length, at a page's end; the running state's is where the run is."""
    end = computed // cache.page_size * cache.page_size
    if states and cache.point is None:
        raise LeaseError(f"states were given, but no component has any: {dict(states)}")
    if len(set(states.values())) != len(states):
        raise LeaseError(f"a state page is given twice: {dict(states)}")
    for length, page in states.items():
        if not 0 < length <= end or length % cache.page_size:
            raise LeaseError(
                f"a state at {length} is not at the end of one of the {end // cache.page_size} whole pages computed"
            )
        if page != lease.state_page and page != lease.save_pages.get(length):
            raise LeaseError(
                f"page {page} of {cache.point!r} is not what {lease} saves the state at {length} in; "
                f"it has {lease.save_pages} and, for the running state, {lease.state_page}"
            )
        if page == lease.state_page and length != computed:
            raise LeaseError(f"page {page} holds the running state, which is at {computed} tokens, not {length}")


def _stops(cache: PrefixCache, lease: Lease, states: Mapping[int, int], end: int, resumable: bool) -> list[int]:
    """Lengths to insert up to: where windows are kept, where there are states, and the end."""
    stops = set()
    if cache.windows:
        stops = {length for length in lease.save_at if length <= end and length not in lease.saved}
    stops |= set(states)
    if end > lease.committed or end in states or (resumable and cache.windows and end == lease.committed):
        stops.add(end)
    return sorted(stops - {0})


def _publish_up_to(
    cache: PrefixCache, lease: Lease, key: Key, keep_windows: bool, due: dict[int, int], without: Sequence[str]
) -> None:
    size, stop = cache.page_size, key.length
    last, first = stop // size, min(lease.committed, stop) // size
    pages = {}
    for name in cache.paths:
        table = lease.tables[name]
        if cache.tree.pool(name).component.required or not (table.slice(0, last) < 0).any():
            pages[name] = table.slice(first, last).copy()
    if keep_windows:
        for name, window in cache.windows:
            table = lease.tables[name]
            begin = max(max(0, stop - window) // size, table.held_from, min(table.private_from, last))
            pages[name] = table.slice(begin, last).copy()
    by_component = {cache.point: due} if cache.point is not None and due else {}
    result = cache.tree.insert(key, pages, by_component, after=lease.boundary, without=without, priority=lease.priority)
    keep_windows = keep_windows and all(name in result.canonical for name, _ in cache.windows)
    _give_up(lease, due)
    _rewrite_tables(cache, lease, result, stop, keep_windows)
    cache.take_in(result)
    lease.saved.update(length for length in lease.save_at if length == stop or length in due)
    _move_locks(cache, lease, result, stop, keep_windows)


def _give_up(lease: Lease, states: Mapping[int, int]) -> None:
    """State pages now belong to the tree or are duplicates."""
    given = set(states.values())
    lease.save_pages = {length: page for length, page in lease.save_pages.items() if page not in given}
    if lease.state_page in given:
        lease.state_page = None


def _rewrite_tables(cache: PrefixCache, lease: Lease, result: InsertResult, stop: int, keep_windows: bool) -> None:
    """The lease's tables name the tree's pages from now on."""
    last = stop // cache.page_size
    for name in cache.paths:
        if name in result.canonical:
            table, ids = lease.tables[name], result.canonical[name]
            table.put(last - ids.size, ids)
            table.private_from = max(table.private_from, last)
    if not keep_windows:
        return
    for name, window in cache.windows:
        table, ids = lease.tables[name], result.canonical[name]
        if ids.size:
            table.put(last - ids.size, ids)
        stale = table.drop_front(max(0, stop - window) // cache.page_size)
        table.private_from = max(table.private_from, last)
        cache.device.free(name, stale)


def _move_locks(cache: PrefixCache, lease: Lease, result: InsertResult, stop: int, keep_windows: bool) -> None:
    """Lock what was published before letting go of what was locked."""
    if stop >= lease.committed:
        receipt = cache.tree.lock(result.boundary, components=cache.paths)
        if lease.path_receipt is not None:
            lease.path_receipt.release()
        lease.path_receipt = receipt
        lease.committed = stop
        lease.boundary = result.boundary
    if keep_windows and stop >= lease.window_boundary:  # a state that comes late, below, must not take the lock back there
        receipt = cache.tree.lock(result.boundary, components=[name for name, _ in cache.windows])
        if lease.window_receipt is not None:
            lease.window_receipt.release()
        lease.window_receipt = receipt
        lease.window_boundary = stop
    if cache.controller is not None:
        cache.controller.committed(result.boundary)
