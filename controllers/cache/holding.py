"""What `PrefixCache.allocate`, `advance`, `truncate` and `release` do: how many pages a running lease holds.

Their arguments are checked before anything is touched.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.cache.saving import allocate_saves
from unified_tree.errors import LeaseError, OutOfPagesError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache


def grow(cache: PrefixCache, lease: Lease, length_tokens: int) -> None:
    """See PrefixCache.allocate."""
    if length_tokens > lease.length:
        require_state(cache, lease, length_tokens)
    size = -(-length_tokens // cache.page_size)
    needs = {name: size - table.size for name, table in lease.tables.items() if size > table.size}
    if needs:
        cache.device.check(needs)
        try:
            for name in needs:
                lease.tables[name].cover(size)
        except MemoryError as error:
            raise OutOfPagesError(f"there is no memory for page tables of {size} pages") from error
        for name, ids in cache.device.allocate_all(needs).items():
            lease.tables[name].put(size - ids.size, ids)
    with ExitStack() as undo:
        undo.callback(_shrink, cache, lease, lease.length, needs, set(lease.save_pages))
        before, lease.length = lease.length, max(lease.length, length_tokens)
        if cache.point is not None and lease.state_page is not None:
            allocate_saves(cache, lease, before - cache.draft_tokens)
        undo.pop_all()


def _shrink(cache: PrefixCache, lease: Lease, length_tokens: int, added: Mapping[str, int], saves: set[int]) -> None:
    """Undo what growing had done when it failed (a policy may raise while a page for a state is looked for)."""
    lease.length = length_tokens
    for name, count in added.items():
        table = lease.tables[name]
        cache.device.free(name, table.drop_back(table.size - count))
    for length in [length for length in lease.save_pages if length not in saves]:
        assert cache.point is not None
        cache.device.free(cache.point, np.array([lease.save_pages.pop(length)]))


def require_state(cache: PrefixCache, lease: Lease, length_tokens: int) -> None:
    """Raise LeaseError if a lease cannot run up to so many tokens, for it gave its running state up."""
    if cache.point is not None and lease.state_page is None and length_tokens > lease.committed:
        raise LeaseError(
            f"{lease} gave up its running state of {cache.point!r} at {lease.committed} tokens and cannot go on to "
            f"{length_tokens}; acquire another to go on"
        )


def advance(cache: PrefixCache, lease: Lease, computed_tokens: int) -> None:
    """See PrefixCache.advance."""
    lease.computed = max(lease.computed, computed_tokens)
    end = lease.computed // cache.page_size * cache.page_size
    end = min([end, *(length for length in lease.save_at if length not in lease.saved)])
    for name, window in cache.windows:
        freed = lease.tables[name].drop_front(max(0, end - window) // cache.page_size)
        cache.device.free(name, freed)
    if lease.window_receipt is not None and lease.computed > lease.window_boundary:
        last = lease.window_boundary // cache.page_size
        if all(lease.tables[name].held_from >= last for name, _ in cache.windows):
            lease.unpin_windows()


def cut(cache: PrefixCache, lease: Lease, length_tokens: int) -> None:
    """See PrefixCache.truncate."""
    size = -(-length_tokens // cache.page_size)
    for name, table in lease.tables.items():
        cache.device.free(name, table.drop_back(size))
    for length in [length for length in lease.save_pages if length > length_tokens]:
        assert cache.point is not None
        cache.device.free(cache.point, np.array([lease.save_pages.pop(length)]))
    lease.length = length_tokens
    lease.key = lease.key.prefix(min(length_tokens, lease.key.length))
    lease.computed = min(lease.computed, length_tokens)


def give_back(cache: PrefixCache, lease: Lease) -> None:
    """Free all that is the lease's own and unpin the tree's."""
    for name, table in lease.tables.items():
        cache.device.free(name, table.slice(max(table.held_from, table.private_from), table.size).copy())
    own = [*lease.save_pages.values(), *([] if lease.state_page is None else [lease.state_page])]
    if cache.point is not None and own:
        cache.device.free(cache.point, np.array(own, np.int64))
    lease.unpin()
