"""Who owns a device page: the free list, a node of the tree, a lease, or a transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.terms.errors import PageError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.declare.keys import Key
    from unified_tree.terms.results import Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOwner:
    """The owner of a page, and who else reads it.

    Attributes:
        owner: `free`, `tree`, `lease`, `transfer` (the target of a load under way), or `nobody`: it was taken from the pool, by
            `cache.tree.evict` perhaps, and never given back.
        boundary, key: the end of the tree's node that holds it, and the tokens up to there; None for others.
        leases: the leases with this page in their tables: one that owns it, or any number that read it.
    """

    owner: str
    boundary: Boundary | None
    key: Key | None
    leases: tuple[Lease, ...]


def page_owner(cache: PrefixCache, component: str, page: int) -> PageOwner:
    """Who owns a device page of a component now.

    Raises PageError for a component without its own device pages, and for a page outside its pool. Cost: O(tree), and O(pages)
    a lease.
    """
    allocator = cache.device.allocators.get(component)
    if allocator is None:
        raise PageError(f"{component!r} has no device pages of its own; there are {', '.join(cache.device.allocators)}")
    if page < 0 or (allocator.page_count is not None and page >= allocator.page_count):
        raise PageError(f"{component}: there is no page {page}; there are {allocator.page_count}")
    leases = tuple(lease for lease in cache.leases if _names(lease, component, page))
    found = cache.tree.owner_of_page(component, page)
    if found is not None:
        return PageOwner(owner="tree", boundary=found[0], key=found[1], leases=leases)
    if not allocator.is_allocated(page):
        return PageOwner(owner="free", boundary=None, key=None, leases=leases)
    may_load = cache.controller is not None and cache.controller.is_busy
    return PageOwner(owner="lease" if leases else "transfer" if may_load else "nobody", boundary=None, key=None, leases=leases)


def _names(lease: Lease, component: str, page: int) -> bool:
    table = lease._state.tables.get(component)  # `Lease.pages` refuses a lease whose load failed, which has pages, too
    if table is None:
        return page == lease.state_page or page in lease.save_pages.values()
    return not (lease.is_loading or table.is_given_up) and bool((table.slice(0, table.size) == page).any())
