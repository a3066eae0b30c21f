"""The index of the host tier: the tree over host pages, the free list of every group, and the events of what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.weights.weights import Weights
from unified_tree.declare.settings import TreeSettings
from unified_tree.terms.errors import OutOfPagesError
from unified_tree.terms.tier import Tier
from unified_tree.tree import UnifiedTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.vllm.block_group import BlockGroup
    from unified_tree.declare.keys import Key
    from unified_tree.declare.tenants import Tenants
    from unified_tree.inserts.grafting import GraftResult
    from unified_tree.locks.locks import Receipt
    from unified_tree.terms.results import Boundary, EvictResult


RECLAIM_NODES = 1024
MAX_VERSIONS = 16_384


@dataclass(slots=True)
class HostCounters(CacheCounters):
    """The library's counters, and the pages that left the tree.

    Attributes:
        evicted_pages: pages that were evicted, so far.
        given_back: pages by component that were evicted or reclaimed since they were taken.
    """

    evicted_pages: int = 0
    given_back: list[Mapping[str, NDArray[np.int64]]] = field(default_factory=list)

    def evicted(self, tier: Tier, name: str, result: EvictResult) -> None:
        """Count an eviction for one pool of a tier."""
        CacheCounters.evicted(self, tier, name, result)
        self.evicted_pages += sum(ids.size for ids in result.freed.values())
        self.given_back.append(result.freed)


class HostIndex:
    """A `UnifiedTree` whose pages are all on host, and what of the host memory is free.

    Attributes:
        tree: the tree.
        host: its page pools.
        weights: the version of every namespace's weights.
        counters: what was evicted and dropped.
        epoch: how often it was cleared. A page that was saved in an earlier epoch may not come in any more.

    Args:
        groups: of the engine.
        page_size: tokens a block.
        page_counts: host pages by component.
        policy: the eviction policy.
        ghost_bytes: memory for what was evicted, by which the causes of misses are told apart; 0 for no causes.
        tenants: groups of namespaces, and their shares; None for none.
    """

    def __init__(
        self,
        groups: Sequence[BlockGroup],
        page_size: int,
        page_counts: Mapping[str, int],
        policy: str,
        ghost_bytes: int = 0,
        tenants: Tenants | None = None,
    ) -> None:
        settings = TreeSettings(ghost_bytes=ghost_bytes)
        kinds = [group.component for group in groups]
        self.tree = UnifiedTree(
            kinds, page_size, policy=policy, host_page_counts=page_counts, settings=settings, tenants=tenants
        )
        self.groups = tuple(groups)
        self.paths = tuple(group.name for group in groups if group.coverage.is_path)
        self.trailing = frozenset(group.name for group in groups if not group.coverage.is_path)
        self.epoch = 0
        self.counters = HostCounters()
        self.host = TierPages(self.tree, Tier.HOST, page_counts, self.counters)
        self.weights = Weights(self.tree, SingleRank(), MAX_VERSIONS)

    @property
    def used_pages(self) -> dict[str, int]:
        """Host pages in use, by component."""
        return {name: allocator.used_pages for name, allocator in self.host.allocators.items()}

    def longest(self, key: Key, limit: int, *, touch: bool = True) -> Boundary:
        """The longest boundary of at most `limit` tokens along `key`: all groups resume there. Cost: a match."""
        return self.tree.match_prefix(key, limit=limit, touch=touch).reachable

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
        try:
            return self.host.allocate_all(needs)
        except OutOfPagesError:
            return None

    def publish(self, key: Key, pages: Mapping[str, NDArray[np.int64]]) -> GraftResult:
        """Put pages into the tree that every worker has written; those it has no use for become free here.

        Raises InsertError, with nothing changed, if what stood before them is gone.
        """
        result = self.tree.transfers.graft(key, pages)
        self.free(result.unused)
        return result

    def free(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Pages of `allocate` that the tree does not hold are free again."""
        self.host.free_all(pages)

    def invalidate(self, namespace: str | None = None) -> None:
        """Forget one namespace, or everything. What is locked keeps its pages until it is unlocked.

        What a store has of the namespace is found again. Nothing that it has of any is, once everything was forgotten: the
        weights may have changed.
        """
        self.weights.invalidate(namespace, None if namespace is None else self.weights.name(namespace))
        if namespace is None:
            self.epoch += 1
        if self.counters.observers.all:
            self.counters.observers.tell("invalidated", namespace)
        while self.tree.is_reclaimable:
            reclaimed = self.tree.reclaim(RECLAIM_NODES)
            for freed in (reclaimed.freed, reclaimed.freed_elsewhere):
                self.counters.given_back.append(freed)
                self.host.free_all(freed)

    def take_given_back(self) -> list[int]:
        """Pages of the first path that left the tree since the last call."""
        given_back, self.counters.given_back = self.counters.given_back, []
        return [page for freed in given_back if self.paths[0] in freed for page in freed[self.paths[0]].tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """Blocks that came or went; without hashes everything went.

    Attributes:
        stored: whether they came.
        hashes: of the blocks.
        parent: the hash before the first of them; None at a prompt's beginning.
        tokens: of all of them.
    """

    stored: bool
    hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    tokens: tuple[int, ...] = ()


class HostEvents:
    """The events since they were last taken, for routers that follow the KV events of an engine.

    Only the first group of full attention is reported, by vLLM's own block hashes, which readers compute, too. The hash of a
    page is kept while the page is in the tree.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}
        self._events: list[HostEvent] = []

    def stored(self, pages: Sequence[int], hashes: Sequence[bytes], parent: bytes | None, tokens: Sequence[int]) -> None:
        """The tree took pages."""
        self._hashes.update(zip(pages, hashes, strict=True))
        self._events.append(HostEvent(stored=True, hashes=tuple(hashes), parent=parent, tokens=tuple(tokens)))

    def known(self, pages: Iterable[int]) -> set[int]:
        """Those of some pages that were told of and are in the tree."""
        return {page for page in pages if page in self._hashes}

    def removed(self, pages: Iterable[int]) -> None:
        """The tree gave pages back."""
        hashes = tuple(self._hashes.pop(page) for page in pages if page in self._hashes)
        if hashes:
            self._events.append(HostEvent(stored=False, hashes=hashes))

    def cleared(self) -> None:
        """The tree was emptied."""
        self._hashes.clear()
        self._events.append(HostEvent(stored=False))

    def take(self) -> list[HostEvent]:
        """The events, in order."""
        events, self._events = self._events, []
        return events
