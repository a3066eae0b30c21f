"""What `PrefixCache.commit` does: move computed pages from a lease into the tree.

Each place where a window or a state is to be kept gets an insert of its own, in ascending order, and the end gets the last:
so each is a boundary that can be backed up. An insert brings the path's new pages, the window before its end, and its state.

A commit is checked whole before the first insert, so that none of them can be refused after another was made: the pages are
the lease's own, the path up to what is committed is pinned, and what the caller says was compared with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.arguments import flag, integer, items
from unified_tree.controllers.cache.holding import advance, require_state
from unified_tree.controllers.cache.saving import drop_superseded, output_lengths
from unified_tree.coverage import Path
from unified_tree.errors import InsertError, LeaseError
from unified_tree.keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.receipt import InsertResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A commit that was checked against its lease: nothing in it can be refused any more.

    Attributes:
        key: of all tokens computed.
        states: pages by length, ascending.
        without: components that the pages do not hold.
        resumable: whether windows are kept at the end.
    """

    key: Key
    states: dict[int, int]
    without: tuple[str, ...]
    resumable: bool


def checked(
    cache: PrefixCache,
    lease: Lease,
    tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
    states: Mapping[int, int] | None,
    without: Sequence[str],
    resumable: bool | None,
) -> Publication:
    """What a commit asks for. Raises LeaseError, InsertError or InvalidKeyError; changes nothing."""
    key = _extended_key(lease, tokens)
    if key.length > lease.length:
        raise LeaseError(f"{lease} has pages for {lease.length} tokens, so {key.length} cannot be committed")
    if key.length < min(lease.committed, lease.computed):
        raise LeaseError(
            f"{lease} has {lease.computed} tokens computed, so a commit of the first {key.length} takes nothing back and adds "
            "nothing; `truncate` takes back what was not committed"
        )
    require_state(cache, lease, key.length)
    if resumable is not None:
        resumable = flag(resumable, "resumable", LeaseError)
    else:
        prompt_end = lease.prompt_tokens // cache.page_size * cache.page_size
        is_end = lease.save_output or key.length // cache.page_size * cache.page_size == prompt_end
        resumable = key.length >= lease.prompt_tokens and is_end
    return Publication(
        key=key,
        states=_checked_states(cache, lease, {} if states is None else states, key.length),
        without=_checked_names(cache, without),
        resumable=resumable,
    )


def publish(cache: PrefixCache, lease: Lease, publication: Publication) -> None:
    """See PrefixCache.commit."""
    key, resumable = publication.key, publication.resumable
    end = key.length // cache.page_size * cache.page_size
    if lease.generation is not None and lease.generation.ended:
        cache.counters.drop("commit of what was invalidated")
        _computed(cache, lease, key)
        return
    remaining = _due_states(lease, publication.states)
    _count_unsaved(cache, lease, publication.states, end)
    for stop in _stops(cache, lease, remaining, end, resumable):
        due = {length: remaining.pop(length) for length in list(remaining) if length <= stop}
        keep_windows = (stop in lease.save_at or resumable) and bool(cache.windows)
        _publish_up_to(cache, lease, key.prefix(stop), keep_windows, due, publication.without)
    drop_superseded(cache, lease, end, publication.states)
    _computed(cache, lease, key)


def _due_states(lease: Lease, states: Mapping[int, int]) -> dict[int, int]:
    """Of the output's states only the last: the one before it was kept for the case that tokens are rejected."""
    superseded = output_lengths(lease, states)[:-1]
    return {length: page for length, page in states.items() if length not in superseded}


def _count_unsaved(cache: PrefixCache, lease: Lease, states: Mapping[int, int], end: int) -> None:
    """Places at which a state is needed to resume, which this commit passes without one."""
    if cache.point is not None and cache.tree.pool(cache.point).component.required:
        for length in lease.save_at:
            if lease.committed < length <= end and length not in states:
                cache.counters.drop("state not saved where it was due")


def _computed(cache: PrefixCache, lease: Lease, key: Key) -> None:
    if key.length >= lease.key.length:
        lease.key = key
    advance(cache, lease, key.length)


def _extended_key(lease: Lease, tokens: NDArray[np.integer[Any]] | Sequence[int] | int) -> Key:
    """The key of all tokens computed, which must go on from what is committed."""
    old = lease.key
    if isinstance(tokens, int | float | np.number):
        length = integer(tokens, "tokens", LeaseError)
        if length > old.length:
            raise LeaseError(f"{lease} knows {old.length} tokens, so {length} cannot be committed by number; give the tokens")
        return old.prefix(length)
    key = Key(tokens, old.namespace, bigram=old.bigram)
    key.require_tokens(lease.committed)
    if not key.starts_with(old.prefix(min(old.length, key.length, max(lease.committed, lease.computed)))):
        raise LeaseError(f"the tokens committed differ from those of {lease} within its first {lease.computed}")
    return key


def _checked_states(cache: PrefixCache, lease: Lease, states: Mapping[int, int], computed: int) -> dict[int, int]:
    """Each state page must be the lease's own for that length, at a page's end; the running state's is where the run is."""
    end = computed // cache.page_size * cache.page_size
    if not isinstance(states, Mapping):
        raise LeaseError(f"states must be a mapping from lengths to pages, not {states!r}")
    if states and cache.point is None:
        raise LeaseError(f"states were given, but no component has any: {dict(states)}")
    given = {
        integer(length, "the length of a state", LeaseError): integer(page, "the page of a state", LeaseError)
        for length, page in states.items()
    }
    if len(set(given.values())) != len(states):
        raise LeaseError(f"a state page is given twice: {dict(states)}")
    for length, page in given.items():
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
    return dict(sorted(given.items()))


def _checked_names(cache: PrefixCache, without: Sequence[str]) -> tuple[str, ...]:
    """Components that may be missing from pages."""
    names = tuple(items(without, "without", LeaseError))
    components = {component.name: component for component in cache.tree.components}
    for name in names:
        component = components.get(name) if isinstance(name, str) else None
        if component is None:
            raise InsertError(f"without: there is no component {name!r}; there are {', '.join(components)}")
        if component.required and isinstance(component.coverage, Path):
            raise InsertError(f"without: {name} is a required path, so no pages can be committed without it")
    return names


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
    boundary = result.boundary
    if stop >= lease.committed:
        receipt = cache.tree.lock(boundary, components=cache.paths)
        if lease.path_receipt is not None:
            lease.path_receipt.release()
        lease.path_receipt = receipt
        lease.committed = stop
        lease.boundary = boundary = receipt.boundary
    if keep_windows and stop >= lease.window_boundary:  # a state that comes late, below, must not take the lock back there
        receipt = cache.tree.lock(boundary, components=[name for name, _ in cache.windows])
        if lease.window_receipt is not None:
            lease.window_receipt.release()
        lease.window_receipt = receipt
        lease.window_boundary = stop
    if cache.controller is not None:
        cache.controller.committed(boundary)
