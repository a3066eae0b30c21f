"""The queue of boundaries (lengths one can resume from) that are to be copied to host.

A boundary is copied whole: its paths from the root as far as the host lacks them, and its window and state, because resuming
needs both. Ancestors are part of it, so they are never copied after their descendants.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.effect import EffectKind
from unified_tree.errors import OutOfPagesError, StaleBoundaryError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.stats import CacheCounters
    from unified_tree.controllers.host.host_tier import HostTier
    from unified_tree.controllers.host.tier_pages import DevicePages, TierPages
    from unified_tree.effect import Effect
    from unified_tree.order import Place
    from unified_tree.receipt import Boundary
    from unified_tree.tree import UnifiedTree

BACKUP: Final = EffectKind.BACKUP
"""Members of an Enum are looked up by a Python function, so they are looked up once."""


class BackupQueue:
    """Boundaries that wait for their backup, first in first out, each once; and, with write-back, the coldest ones."""

    def __init__(
        self, tree: UnifiedTree, device: DevicePages, host: TierPages, tier: HostTier, counters: CacheCounters
    ) -> None:
        self._tree = tree
        self._tree_transfers = tree.transfers
        self._effects = tree.transfers.effects
        self._device = device
        self._host = host
        self._allocate = host.allocate_all
        self._tier = tier
        self._counters = counters
        self._waiting: OrderedDict[Boundary, None] = OrderedDict()
        self._cursors: dict[str, Place | None] = {}
        self._locked = dict.fromkeys(device.allocators, 0)
        self._shared = tree.state.shared_pools[0]
        self._max_locked = {
            name: tier.max_backup_share * allocator.page_count
            for name, allocator in device.allocators.items()
            if allocator.page_count is not None
        }
        self._optional = [c.name for c in tree.components if not c.required]
        self._low_water = {
            name: int(tier.low_water * allocator.page_count)
            for name, allocator in device.allocators.items()
            if tier.write_policy is WritePolicy.WRITE_BACK and allocator.page_count is not None
        }

    def add(self, boundary: Boundary) -> None:
        """Ask for a backup; if the queue is full, the oldest is dropped and counted. Cost: O(1)."""
        if boundary.length == 0 or boundary in self._waiting:
            return
        if self.is_full:
            self._waiting.popitem(last=False)
            self._counters.count_drop("backup queue full")
        self._waiting[boundary] = None

    @property
    def is_full(self) -> bool:
        """Whether adding one more drops the oldest."""
        return len(self._waiting) >= self._tier.queue_limit

    def is_due(self) -> bool:
        """Whether something should be backed up now. Cost: O(components)."""
        return bool(self._waiting) or any(self._deficit(name) > 0 for name in self._low_water)

    def _deficit(self, name: str) -> int:
        """How many more pages of a device pool should be free, copied or being copied.

        Stranded pages count as far as they are not locked: a prefill that has saved no window or state yet strands its own.
        """
        pool, allocator = self._tree.pool(name), self._device.allocators[name]
        stranded = max(0, pool.stranded_pages - pool.protected_pages)
        free_pages = allocator.free_pages
        ready = free_pages + pool.copied_pages + stranded + self._locked[name]
        if self._shared is not None:  # it has no size of its own: what it has now, and what is free
            return int(self._tier.low_water * (allocator.used_pages + free_pages)) - ready
        return self._low_water[name] - ready

    def add_coldest(self) -> None:
        """Ask for the backups that keep the low-water mark, once the previous ones have started.

        Each poll looks at a few values of a pool, and the next poll continues there. So values that cannot be backed up (no
        room on host, not on a boundary) never block the rest. Cost: see Transfers.coldest_boundaries.
        """
        if self._waiting:
            return
        for name in self._low_water:
            deficit = self._deficit(name)
            if deficit > 0 and not self.is_full:
                self._search(name, deficit)

    def _search(self, name: str, page_count: int) -> None:
        """Continue where the last search ended; if it reaches the end of the order, once more from its beginning."""
        look_at = min(self._tier.look_at, self._tier.queue_limit - len(self._waiting))
        begun_at = self._cursors.get(name)
        for after in (begun_at, None) if begun_at is not None else (None,):
            found, self._cursors[name] = self._tree_transfers.coldest_boundaries(name, page_count, look_at=look_at, after=after)
            for boundary in found:
                self.add(boundary)
            if found or self._cursors[name] is not None:
                return

    def begin(self) -> Effect | None:
        """Start the next of the requested backups, within the limits on locked pages; None if there is none to start now."""
        while self._waiting and not self._at_limit():
            boundary, _ = self._waiting.popitem(last=False)
            effect = self._begin_one(boundary)
            if effect is not None:
                return effect
        return None

    def _at_limit(self) -> bool:
        if self._shared is None:
            return any(self._locked[name] > limit for name, limit in self._max_locked.items())
        budget = self._shared.budget
        return budget.blocks(self._locked) > self._tier.max_backup_share * budget.block_count

    def _begin_one(self, boundary: Boundary) -> Effect | None:
        """Start the backup of a boundary; optional components for which the host has no room are left out."""
        try:
            components = self._components_that_fit(boundary) if self._optional else None
            effect = self._effects.begin_unless_empty(BACKUP, boundary, self._allocate, components, copies_given=False)
        except StaleBoundaryError:
            self._counters.count_drop("backup stale")
            return None
        except OutOfPagesError:
            self._counters.count_drop("host full")
            return None
        if effect is not None:
            self._count_locked(effect, 1)
        return effect

    def _components_that_fit(self, boundary: Boundary) -> list[str] | None:
        """The components for which the host has room, None for all."""
        needs = self._tree_transfers.backup_needs(boundary)
        left_out = set()
        fitting = {name: count for name, count in needs.items() if name not in self._optional}
        for name in self._optional:
            if name in needs:
                if self._host.fits({**fitting, name: needs[name]}):
                    fitting[name] = needs[name]
                else:
                    left_out.add(name)
        return None if not left_out else [c.name for c in self._tree.components if c.name not in left_out]

    def ended(self, effect: Effect) -> None:
        """A backup ended."""
        if effect.kind is BACKUP:
            self._count_locked(effect, -1)

    def _count_locked(self, effect: Effect, sign: int) -> None:
        for name, source, _ in effect.copies:
            if name in self._locked:
                self._locked[name] += sign * len(source)
