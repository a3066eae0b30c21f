"""What the host tier holds: the tree over host pages, with the free list of every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.host.page_allocator import PageAllocator
from unified_tree.node import Tier
from unified_tree.tree import UnifiedTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.vllm.block_group import BlockGroup
    from unified_tree.grafting import GraftResult
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, EvictResult, Receipt

RECLAIM_NODES = 1024


class HostIndex:
    """A `UnifiedTree` whose pages are all on host, and what of the host memory is free.

    Attributes:
        tree: the tree.
        evicted_pages: pages that left it to make room, so far.
        epoch: how often it was cleared. A page that was saved in an earlier epoch may not come in any more.

    Args:
        groups: of the engine.
        page_size: tokens a block.
        page_counts: host pages by component.
        policy: the eviction policy.
    """

    def __init__(self, groups: Sequence[BlockGroup], page_size: int, page_counts: Mapping[str, int], policy: str) -> None:
        self.tree = UnifiedTree([group.component for group in groups], page_size, policy=policy, host_page_counts=page_counts)
        self.groups = tuple(groups)
        self.paths = tuple(group.name for group in groups if group.coverage.is_path)
        self.evicted_pages = 0
        self.epoch = 0
        self._free = {name: PageAllocator(name, count) for name, count in page_counts.items()}
        self._given_back: list[NDArray[np.int64]] = []

    @property
    def used_pages(self) -> dict[str, int]:
        """Host pages in use, by component."""
        return {name: allocator.used_pages for name, allocator in self._free.items()}

    def longest(self, key: Key, limit: int, *, touch: bool = True) -> Boundary:
        """The longest boundary of at most `limit` tokens along `key`: all groups resume there. Cost: a match."""
        return self.tree.match_prefix(key, limit=limit, touch=touch).reachable

    def branch_points(self, key: Key, limit: int) -> tuple[int, ...]:
        """Where a window would have been worth keeping. Cost: a match."""
        return self.tree.match_prefix(key, limit=limit, touch=False).save_at

    def lock(self, boundary: Boundary) -> Receipt:
        """Lock all that a boundary needs."""
        return self.tree.lock(boundary, Tier.HOST)

    def lock_path(self, boundary: Boundary) -> Receipt:
        """Lock the paths up to a length, which needs neither windows nor states."""
        return self.tree.lock(boundary, Tier.HOST, self.paths)

    def path_end(self, key: Key, limit: int) -> Boundary:
        """How far every path is on host along `key`."""
        return self.tree.transfers.host_path_end(key, limit=limit)

    def pages(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """The pages that a component has for a boundary, in the key's order."""
        return self.tree.pages(boundary, component, Tier.HOST)

    def allocate(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]] | None:
        """Free pages by component, evicting for them; None, with nothing allocated, where locked pages leave no room."""
        short = {name: count - self._free[name].free_pages for name, count in needs.items()}
        if any(count > 0 for count in short.values()):
            if any(count > (self._free[name].page_count or count) for name, count in needs.items()):
                return None
            evicted = self.tree.evict({name: count for name, count in short.items() if count > 0}, Tier.HOST)
            self.evicted_pages += sum(ids.size for ids in evicted.freed.values())
            self._take_back(evicted)
        if any(count > self._free[name].free_pages for name, count in needs.items()):
            return None
        return {name: self._free[name].allocate(count) for name, count in needs.items()}

    def publish(self, key: Key, pages: Mapping[str, NDArray[np.int64]]) -> GraftResult:
        """Put pages into the tree that every worker has written; those it has no use for become free here.

        Raises InsertError, with nothing changed, if what stood before them is gone.
        """
        result = self.tree.transfers.graft(key, pages)
        self.free(result.unused)
        return result

    def free(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Pages of `allocate` that the tree does not hold are free again."""
        for name, ids in pages.items():
            self._free[name].free(ids)

    def invalidate(self, namespace: str | None = None) -> None:
        """Forget one namespace, or everything. What is locked keeps its pages until it is unlocked."""
        self.tree.invalidate(namespace)
        if namespace is None:
            self.epoch += 1
        while self.tree.is_reclaimable:
            self._take_back(self.tree.reclaim(RECLAIM_NODES))

    def take_given_back(self) -> list[int]:
        """Pages of the first path that left the tree since the last call."""
        given_back, self._given_back = self._given_back, []
        return [page for ids in given_back for page in ids.tolist()]

    def _take_back(self, evicted: EvictResult) -> None:
        self.free(evicted.freed)
        self.free(evicted.freed_elsewhere)
        for freed in (evicted.freed, evicted.freed_elsewhere):
            if self.paths[0] in freed:
                self._given_back.append(freed[self.paths[0]])
