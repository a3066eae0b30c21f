"""The queue of boundaries (lengths one can resume from) that are to be copied to host.

A boundary is copied whole: its paths from the root as far as the host lacks them, and its window and state, because resuming
needs both. Ancestors are part of it, so they are never copied after their descendants.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.host.idle_boundaries import IdleBoundaries
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import OutOfPagesError, StaleBoundaryError

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.host_tier import HostTier
    from unified_tree.controllers.pages.tier_pages import DevicePages, TierPages
    from unified_tree.nodes.effect import Effect
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree

BACKUP: Final = EffectKind.BACKUP
"""Members of an Enum are looked up by a Python function, so they are looked up once."""


class BackupQueue:
    """Boundaries that wait for their backup, first in first out, each once; with write-back, idle ones when they are due.

    Attributes:
        feeds_store: whether a store is behind the host, which may keep for long what the host cannot.
    """

    def __init__(
        self, tree: UnifiedTree, device: DevicePages, host: TierPages, tier: HostTier, counters: CacheCounters
    ) -> None:
        self._tree = tree
        self._tree_transfers = tree.transfers
        self._effects = tree.transfers.effects
        self._device = device
        self._host = host
        self._tier = tier
        self._counters = counters
        self._waiting: deque[Boundary] = deque()
        self._is_waiting: set[Boundary] = set()
        self._queue_limit: int = tier.queue_limit
        self._open = 0
        self._locked: dict[str, int] = dict.fromkeys(device.allocators, 0)
        self._shared = tree.state.shared_pools[0]
        self._max_locked: dict[str, int] = {
            name: int(tier.max_backup_share * allocator.page_count)
            for name, allocator in device.allocators.items()
            if allocator.page_count is not None
        }
        self.feeds_store = False
        self._optional = [c.name for c in tree.components if not c.required]
        self._required = [c.name for c in tree.components if c.required] if self._optional else None
        self._idle = IdleBoundaries(tree, device, host, tier) if tier.write_policy.is_late else None

    def add(self, boundary: Boundary) -> None:
        """Ask for a backup; if the queue is full, the oldest is dropped and counted. Cost: O(1)."""
        if boundary.length == 0 or boundary in self._is_waiting:
            return
        if self.is_full:
            self._next()
            self._counters.count_drop("backup queue full")
        self._waiting.append(boundary)
        self._is_waiting.add(boundary)

    def _next(self) -> Boundary:
        """Take the oldest out of the queue."""
        self._is_waiting.discard(self._waiting[0])
        return self._waiting.popleft()

    @property
    def is_full(self) -> bool:
        """Whether adding one more drops the oldest."""
        return len(self._is_waiting) >= self._queue_limit

    @property
    def may_begin(self) -> bool:
        """Whether there may be one to start. Cost: O(1)."""
        return bool(self._is_waiting) or self._idle is not None

    def resumed(self, boundary: Boundary) -> None:
        """A request resumes from a boundary on device, which it supersedes perhaps. Cost: O(1)."""
        if self._idle is not None:
            self._idle.resumed(boundary)

    def left(self, boundary: Boundary, branches: tuple[Boundary, ...], before: Boundary | None) -> None:
        """The request that used a boundary last has ended; see IdleBoundaries.add."""
        if self._idle is not None:
            self._idle.add(boundary, branches, before)
            if self._idle.count > self._tier.queue_limit:
                self._add_oldest(self._idle)

    def _add_oldest(self, idle: IdleBoundaries) -> None:
        for boundary in idle.take_oldest(may_leave_out=not self.feeds_store):
            self.add(boundary)

    @property
    def is_late(self) -> bool:
        """Whether boundaries are copied late, as write-back does."""
        return self._idle is not None

    @property
    def are_too_late(self) -> bool:
        """Whether late is too late at present."""
        return self._idle is not None and self._idle.are_too_late

    def begin(self) -> Effect | None:
        """Start the next of the requested backups, within the limits on locked pages; None if there is none to start now."""
        effect: Effect | None = None
        try:
            while self.may_begin and not self._at_limit():
                if not self._is_waiting:
                    if self._idle is None or not self._idle.is_due(self._locked):
                        break
                    self._add_oldest(self._idle)
                    continue
                effect = self._begin_one(self._next())
                if effect is not None:
                    return effect
            return None
        except BaseException:
            self._undo(effect)
            raise

    def _undo(self, effect: Effect | None) -> None:
        """A call was interrupted that may have begun a backup."""
        if effect is not None and effect in self._effects.open:
            self._host.free_all(self._effects.abort(effect))
        self.count_anew()

    def count_anew(self) -> None:
        """Count what the open backups lock, after a call that was interrupted. Cost: O(open effects)."""
        self._open = 0
        self._locked = dict.fromkeys(self._locked, 0)
        for other in self._effects.open:
            if other.kind is BACKUP:
                self._count_locked(other, 1)

    def _at_limit(self) -> bool:
        if not self._open:
            return False  # nothing is locked
        if self._shared is None:
            is_over = False
            for name, limit in self._max_locked.items():  # compiled, a generator would be an object
                is_over = is_over or self._locked[name] > limit
            return is_over
        budget = self._shared.budget
        return budget.blocks(self._locked) > self._tier.max_backup_share * budget.block_count

    def _begin_one(self, boundary: Boundary, *, with_optional: bool = True) -> Effect | None:
        """Start the backup of a boundary, or of what is left of it if it was shortened; optional components for which the host
        has no room are left out.
        """
        effect: Effect | None = None
        try:
            components = self._components_that_fit(boundary) if self._optional and with_optional else self._required
            effect = self._effects.begin_unless_empty(BACKUP, boundary, self._host, components)
            if effect is not None:
                self._count_locked(effect, 1)
            return effect
        except StaleBoundaryError:
            left = self._tree.state.left_of(boundary)
            if left != boundary:
                return self._begin_one(left)
            self._counters.count_drop("backup stale")
            return None
        except OutOfPagesError as error:
            if error.component in self._optional and with_optional:  # what could be evicted of it stands above what is locked
                return self._begin_one(boundary, with_optional=False)
            self._counters.count_drop("host full")
            return None
        except BaseException:
            self._undo(effect)
            raise

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
        self._open += sign
        locked = self._locked
        for name, count in effect.page_counts.items():
            before = locked.get(name)
            if before is not None:
                locked[name] = before + sign * count
