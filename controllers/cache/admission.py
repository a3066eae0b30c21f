"""What `PrefixCache.acquire` does: choose where a request resumes, pin that, and lay out its page tables.

Three places are candidates: the boundary on device; a later one whose windows are rebuilt by running a few tokens again; and
a later one that lies on host in part and is loaded back, if that beats computing the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.cache.lease import Lease, PageTable, StateCopy
from unified_tree.coverage import Path, Point
from unified_tree.errors import OutOfPagesError, StaleBoundaryError, TransferError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Match


def admit(
    cache: PrefixCache,
    key: Key,
    checkpoints: Sequence[int],
    priority: int,
    save_output: bool,
    *,
    may_load: bool = True,
    may_rebuild: bool = True,
) -> Lease:
    """See PrefixCache.acquire. Without `may_rebuild` the lease goes on from where windows are on the device.

    The arguments are right already. Whatever is raised, what was pinned and taken before is given back.
    """
    limit = key.length - 1
    if cache.point is not None:
        cache.device.check({cache.point: 1})
    sure = cache.point is None or cache.device.allocators[cache.point].free_pages > 0
    match = cache.tree.match_prefix(key, limit=limit, touch=sure)
    boundary = match.rebuild if cache.rebuild and may_rebuild else match.device
    rebuilds = boundary.length > match.device.length
    compute_from = boundary.length - (match.rebuild_tokens if rebuilds else 0)
    loads = may_load and _is_worth_loading(cache, match, compute_from)
    try:
        with ExitStack() as undo:
            if loads:
                lease = _loading_lease(cache, key, match.reachable, compute_from, priority, save_output)
            else:
                lease = Lease(cache, key, boundary, compute_from, priority, save_output)
            undo.callback(_give_up, cache, lease)
            if not loads:
                _pin(cache, lease, rebuilds)
            if cache.point is not None:
                _start_state(cache, lease, key, limit, touch=not sure)
            lease.generation = cache.generation(key.namespace)
            _lay_out(cache, lease, rebuilds and not loads)
            lease.save_at = _save_points(cache, lease, match, checkpoints) if cache.saves else ()
            undo.pop_all()
    except (OutOfPagesError, TransferError) as error:
        if not loads:
            raise
        cache.counters.drop("no room to load" if isinstance(error, OutOfPagesError) else "load beside a cancelled one")
        return admit(cache, key, checkpoints, priority, save_output, may_load=False, may_rebuild=may_rebuild)
    if not loads and cache.controller is not None:
        cache.controller.hit(lease.boundary)
    return lease


def _is_worth_loading(cache: PrefixCache, match: Match, compute_from: int) -> bool:
    gain = match.reachable.length - compute_from
    return cache.controller is not None and gain > 0 and cache.controller.worth_loading(match.reachable, gain)


def _loading_lease(
    cache: PrefixCache, key: Key, boundary: Boundary, compute_from: int, priority: int, save_output: bool
) -> Lease:
    """A lease on what is partly on host. Raises OutOfPagesError if the device has no room for it and the running state."""
    assert cache.controller is not None
    spare = {} if cache.point is None else {cache.point: 1}
    load = cache.controller.load(boundary, boundary.length - compute_from, spare)
    lease = Lease(cache, key, load.boundary, boundary.length, priority, save_output)
    lease.load = load
    return lease


def _give_up(cache: PrefixCache, lease: Lease) -> None:
    if lease.load is not None:
        assert cache.controller is not None
        cache.controller.drop(lease.load)
    if lease.state_page is not None:
        assert cache.point is not None
        cache.device.free(cache.point, np.array([lease.state_page], np.int64))
    lease.unpin()


def arrive(cache: PrefixCache, lease: Lease) -> None:
    """What a lease waited for has ended: it holds the tree's pages from now on, or has failed."""
    load = lease.load
    assert load is not None
    lease.load = None
    lease.failure = load.error
    if load.error is None:
        lease.boundary = load.boundary
        try:
            _pin(cache, lease, rebuilds=False)
        except StaleBoundaryError as error:
            lease.unpin()
            lease.failure = f"what {lease} loaded back is gone: {error}"
        else:
            _take_tree_pages(cache, lease)
    load.let_go()


def follow(cache: PrefixCache, lease: Lease) -> None:
    """A part of what a lease waits for has ended: of that it holds the tree's pages, its own may be free by now."""
    load = lease.load
    assert load is not None
    load.laid_out = len(load.open)
    if load.error is None:
        lease.boundary = load.boundary
        _take_tree_pages(cache, lease)


def _pin(cache: PrefixCache, lease: Lease, rebuilds: bool) -> None:
    lease.path_receipt = cache.tree.lock(lease.boundary, components=cache.paths)
    lease.boundary = lease.path_receipt.boundary
    if lease.boundary.length and not rebuilds and cache.saves:
        names = [name for name, _ in cache.windows] + ([cache.point] if cache.point else [])
        lease.window_receipt = cache.tree.lock(lease.boundary, components=names)
        lease.window_boundary = lease.boundary.length


def _start_state(cache: PrefixCache, lease: Lease, key: Key, limit: int, *, touch: bool) -> None:
    """Give the lease a page for its running state and say what to copy there. Raises OutOfPagesError."""
    assert cache.point is not None
    cache.device.reserve({cache.point: 1})
    lease.state_page = int(cache.device.allocate(cache.point, 1)[0])
    if lease.window_receipt is not None or lease.load is not None:
        pages = cache.tree.pages if lease.load is None else cache.tree.transfers.pages_with_loads
        source = pages(lease.boundary, cache.point)
        if source.size:
            lease.state_copies = (StateCopy(component=cache.point, source=int(source[0]), target=lease.state_page),)
    if touch:
        cache.tree.match_prefix(key, limit=limit)


def _lay_out(cache: PrefixCache, lease: Lease, rebuilds: bool) -> None:
    """Page tables with what is cached or on its way, and from which token on each component is to be written."""
    page = lease.boundary.length // cache.page_size
    pages = cache.tree.pages if lease.load is None else cache.tree.transfers.pages_with_loads
    for name in cache.paths:
        table = lease.tables[name] = PageTable()
        ids = pages(lease.boundary, name)
        table.put(0, ids)
        table.put(ids.size, _holes(page - ids.size))
        table.private_from = page
        lease.write_from[name] = lease.boundary.length
    for name, window in cache.windows:
        table = lease.tables[name] = PageTable()
        first = lease.compute_from // cache.page_size
        if not rebuilds:
            ids = pages(lease.boundary, name)
            table.put(page - ids.size, ids)
            table.held_from = page - ids.size
        else:
            table.held_from = table.size = first
        table.private_from = first
        exact = max(0, lease.boundary.length - window) // cache.page_size * cache.page_size
        lease.write_from[name] = exact if rebuilds else lease.boundary.length
    if cache.point is not None:
        lease.write_from[cache.point] = lease.compute_from
    _note_missing(cache, lease)


def _note_missing(cache: PrefixCache, lease: Lease) -> None:
    """Which sharers' state is not in the pages the lease holds."""
    page = lease.boundary.length // cache.page_size
    pages = cache.tree.pages if lease.load is None else cache.tree.transfers.pages_with_loads
    lease.missing.clear()
    for component in cache.tree.components:
        if component.shares is None:
            continue
        lease.write_from[component.name] = lease.write_from[component.shares]
        if not component.required and not isinstance(component.coverage, Point):
            there = pages(lease.boundary, component.name).size
            missing = (there, page) if isinstance(component.coverage, Path) else (0, page - there)
            if missing[0] < missing[1]:
                lease.missing[component.name] = missing


def _take_tree_pages(cache: PrefixCache, lease: Lease) -> None:
    """A load arrived, or a part: where others brought the same meanwhile, the tree has other pages than those loaded into."""
    pages = cache.tree.pages if lease.load is None else cache.tree.transfers.pages_with_loads
    page = lease.boundary.length // cache.page_size
    for name in (*cache.paths, *(name for name, _ in cache.windows)):
        ids = pages(lease.boundary, name)
        first = 0 if name in cache.paths else page - ids.size
        lease.tables[name].put(first, ids)
        if first == 0:
            lease.tables[name].put(ids.size, _holes(page - ids.size))
    if cache.point is not None and lease.state_copies:
        source = int(pages(lease.boundary, cache.point)[0])
        lease.state_copies = (StateCopy(component=cache.point, source=source, target=lease.state_copies[0].target),)
    _note_missing(cache, lease)


def _holes(count: int) -> NDArray[np.int64]:
    return np.full(max(0, count), -1, np.int64)


def _save_points(cache: PrefixCache, lease: Lease, match: Match, checkpoints: Sequence[int]) -> tuple[int, ...]:
    """Where to save: the branch point first, then the checkpoints from the deepest up, else the prompt's end."""
    grid = cache.save_grid_tokens
    hints = sorted(checkpoints, reverse=True) or [lease.prompt_tokens]
    wanted = [*match.save_at, *hints]
    if lease.rebuilt_tokens:
        wanted.insert(0, lease.cached_tokens)
    resumed = lease.cached_tokens if not lease.rebuilt_tokens else lease.cached_tokens - 1
    points: list[int] = []
    for length in wanted:
        point = min(length, lease.prompt_tokens) // grid * grid
        if point > resumed and point not in points:
            points.append(point)
    return tuple(sorted(points[: cache.save_limit]))
