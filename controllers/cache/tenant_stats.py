"""Statistics by group of namespaces: requests, hits, hints, and memory held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.cache.group_stats import TenantRoomStats, TenantStats

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.state.shares import Shares
    from unified_tree.state.tree_state import TreeState


class TenantCounters:
    """Counts requests by group of namespaces. Without tenants it counts nothing.

    Args:
        state: of the tree.
        counters: have the hints by group.

    Attributes:
        is_on: whether there are tenants.
    """

    __slots__ = ("_counters", "_counts", "_names", "_reported", "_rooms", "_state", "is_on")

    def __init__(self, state: TreeState, counters: CacheCounters) -> None:
        tenants = state.tenants
        self.is_on = tenants is not None
        self._state = state
        self._counters = counters
        self._rooms: list[Shares] = state.rooms
        self._names: tuple[str, ...] = () if tenants is None else tenants.names
        self._reported = 0 if tenants is None else tenants.reported_groups
        self._counts: dict[int, tuple[int, int, int]] = {}

    def follow(self, state: TreeState) -> None:
        """Go on with another tree of the same tenants."""
        self._state, self._rooms = state, state.rooms

    def admitted(self, namespace: str, prompt_tokens: int, hit_tokens: int) -> None:
        """Count a request that was admitted. Cost: O(1)."""
        group = self._state.group_of(namespace)
        requests, prompts, hits = self._counts.get(group, (0, 0, 0))
        self._counts[group] = (requests + 1, prompts + prompt_tokens, hits + hit_tokens)

    def stats(self) -> dict[str, TenantStats]:
        """A snapshot of the reported groups, by name. Cost: O(groups reported x rooms)."""
        found = {}
        for group, name in enumerate(self._names[: self._reported + 1]):
            requests, prompts, hits = self._counts.get(group, (0, 0, 0))
            rooms = {room.where: _room(room, group) for room in self._rooms}
            hints = dict(self._counters.tenant_hints.get(group, {}))
            found[name] = TenantStats(requests=requests, prompt_tokens=prompts, hit_tokens=hits, hints=hints, rooms=rooms)
        return found


def _room(room: Shares, group: int) -> TenantRoomStats:
    used, units, cap = room.standing_of(group)
    return TenantRoomStats(used=used, share=units, cap=None if cap < 0 else cap, victims=room.victims.get(group, 0))
