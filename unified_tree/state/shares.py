"""What each group of namespaces holds of one room, and whose values go next.

A room is one pool, or all pools of a tier in one budget (`declare.tenants`). In each of its pools a group has an eviction order
of its own, where the policy ranks its values as it would in a tree without groups. The groups that have evictable values stand
in an order themselves, by how full their share is, the fullest first. So there is one rule for a victim:

- Of the groups that hold more than their share, the fullest (`Tenants.compared_groups` of them) name their next victims, and
  the one that the policy ranks first goes.
- If none holds more than its share (requests have taken the rest of the room), the fullest group's next victim goes.

What holds, whatever is done: as long as a group over its share has a value that can go, no value of another group within its
own is chosen. A path's victim takes along what its group has behind it, in whatever room. A victim takes its group below the
share by less than the victim's own pages, and the end that is cut from a long path not at all. Locked values count as held, the
pages of running requests that are not published yet as nobody's; so a request never fails for want of pages that could be
evicted. A cap bounds what a group holds that can be evicted: what exceeds it goes with the next `hold_caps`, which the cache
calls after each commit, release and poll.

Cost: O(log values + log groups) to add or remove a value, or where a group's pages change; O(groups compared) choices of the
policy a victim. Room for a group is made with its first value, and given up with its last, so namespaces that hold nothing cost
nothing. Rejected: one order with ranks by group, since a group that crosses its share would be ranked anew as a whole.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from unified_tree.nodes.node import group_of
from unified_tree.nodes.order import Order, Ranked, following

if TYPE_CHECKING:
    from unified_tree.declare.tenants import Room, Tenants
    from unified_tree.nodes.node import Value

OF_ALL: Final = -1
"""In place of a pool's place in the room: any of them."""


@mypyc_attr(acyclic=True)
class Share(Ranked):
    """What one group holds of one room; it stands in the order of groups while it has evictable values.

    Attributes:
        group: its index, name: as declared.
        units: what it may count on; cap: the most of it that is evictable, -1 for no limit.
        used: units that the tree holds of it, locked ones included.
        orders: its evictable values, by pool of the room.
    """

    __slots__ = ("cap", "group", "name", "orders", "units", "used")

    def __init__(self, group: int, name: str, units: int, cap: int, pool_count: int) -> None:
        super().__init__()
        self.group = group
        self.name = name
        self.units = units
        self.cap = cap
        self.used = 0
        self.orders = [Order() for _ in range(pool_count)]

    @property
    def excess(self) -> int:
        """How much it holds beyond its share."""
        return max(0, self.used - self.units)

    def has_evictable(self, pool: int) -> bool:
        """Whether a value of one of its pools, or of any, can go. Cost: O(pools of the room)."""
        if pool != OF_ALL:
            return self.orders[pool].count > 0
        return any([order.count for order in self.orders])  # noqa: C419, compiled a generator would be an object


class Shares:
    """The groups of one room.

    Args:
        tenants: the declaration.
        room: what is divided; its pools in this order.

    Attributes:
        page_units: units of a page, by pool of the room.
        where: the room's name.
        victims: how many values it gave, by group.
        over_cap: the groups that hold more than their cap and have evictable values, as an ordered set.
    """

    __slots__ = ("_by_fill", "_caps", "_compared", "_names", "_shares", "_units", "over_cap", "page_units", "victims", "where")

    def __init__(self, tenants: Tenants, room: Room) -> None:
        self._names = tenants.names
        self._units = tenants.shares(room)
        self._caps = tenants.caps(room)
        self._compared = tenants.compared_groups
        self._shares: dict[int, Share] = {}
        self._by_fill = Order()
        self.page_units = list(room.page_units.values())
        self.over_cap: dict[Share, None] = {}
        self.where = room.where
        self.victims: dict[int, int] = {}

    def count_victim(self, group: int) -> None:
        """A value of a group goes, or its end."""
        self.victims[group] = self.victims.get(group, 0) + 1

    def standing_of(self, group: int) -> tuple[int, int, int]:
        """How many units a group holds, its share and its cap (-1 for none). Cost: O(1)."""
        share = self._shares.get(group)
        return (0 if share is None else share.used, self._units[group], self._caps[group])

    def of(self, value: Value) -> Share:
        """The share of a value's group. Cost: O(1)."""
        return self.of_group(group_of(value.node))

    def of_group(self, group: int) -> Share:
        """The share of a group by index. Cost: O(1)."""
        share = self._shares.get(group)
        if share is None:
            share = Share(group, self._names[group], self._units[group], self._caps[group], len(self.page_units))
            self._shares[group] = share
        return share

    def held(self) -> list[Share]:
        """The shares of the groups that hold something. Cost: O(groups that do)."""
        return list(self._shares.values())

    def hold(self, value: Value, pool: int, page_count: int) -> None:
        """A value has so many pages more, or less. Cost: O(log groups)."""
        share = self.of(value)
        share.used += page_count * self.page_units[pool]
        self.place(share)
        if not share.used:
            del self._shares[share.group]

    def place(self, share: Share) -> None:
        """What a group holds has changed, or what of it can go. Cost: O(log groups)."""
        can_go = share.has_evictable(OF_ALL)
        fill = share.used / share.units if share.units else inf
        if share.is_placed and not (can_go and share.rank == -fill and share.second_rank == -share.used):
            self._by_fill.discard(share)
        if can_go and not share.is_placed:
            self._by_fill.add(share, 0, -fill, float(-share.used), -share.group)
        if can_go and 0 <= share.cap < share.used:
            self.over_cap[share] = None
        elif self.over_cap:
            self.over_cap.pop(share, None)

    def givers(self, pool: int) -> list[Share]:
        """The groups whose next victims are compared now, of one pool or OF_ALL; empty if nothing can go.

        Cost: O(groups compared); for one pool of a budget also the groups with values in its other pools alone.
        """
        found: list[Share] = []
        at = self._by_fill.first
        while isinstance(at, Share) and len(found) < self._compared and (not found or at.used > at.units):
            if at.has_evictable(pool):
                found.append(at)
            at = following(at)
        return found

    def clear(self, pool: int) -> None:
        """Forget the evictable values of a pool, each of which must `leave_order`. Cost: O(groups that hold something)."""
        for share in self._shares.values():
            share.orders[pool].clear()
            self.place(share)

    def release(self) -> None:
        """Cut the references between the shares of a deleted tree; the garbage collector does not see these cycles."""
        self._by_fill.clear()
        for share in self._shares.values():
            share.leave_order()
        self._shares = {}
        self.over_cap = {}

    def deviations(self, used: dict[int, int]) -> list[str]:
        """What is booked otherwise than held: `used` are the units by group, counted from the nodes. For checks."""
        found = []
        for group in sorted({*used, *self._shares}):
            share = self._shares.get(group)
            booked = 0 if share is None else share.used
            if booked != used.get(group, 0):
                found.append(f"group {self._names[group]!r} has {booked} units booked, {used.get(group, 0)} are held")
            if share is not None and share.is_placed != share.has_evictable(OF_ALL):
                found.append(f"group {share.name!r} {'stands' if share.is_placed else 'is not'} among those that can give")
            if share is not None and share.is_placed and share.second_rank != -share.used:
                found.append(f"group {share.name!r} stands where it held {-share.second_rank:g} units")
            if share is not None and (share in self.over_cap) != (share.is_placed and 0 <= share.cap < share.used):
                found.append(f"group {share.name!r} is wrongly taken for one over its cap, or not")
        return found
