"""The declaration of tenants: groups of namespaces, and how much of the memory each may count on.

A *room* is what groups divide: one pool of one tier, or all pools of a tier that share a budget. Its units are pages, or blocks
of the budget. In each room a group has a *share*: its floor, and of what all floors leave, a part by its weight; never more
than its cap. Namespaces that no group names are one group, without a name.

What a group does not use is lent, without any act: a victim comes from the groups that hold more than their share. So a group
takes back what it lacks victim by victim. Rejected: one pool for each tenant, which lends nothing; and moving the borders
between them now and then, which lags behind what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unified_tree.inputs.arguments import flag, integer, items, number
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

ROUNDING: Final = 1e-9
"""A third of 300 pages is 100, whatever binary fractions say."""


class Room(NamedTuple):
    """What groups divide.

    Attributes:
        where: its name, for messages.
        is_host: on which tier it is.
        unit_count: its pages or blocks; None without a bound.
        page_units: units that a page takes, by component.
        tier_bytes: bytes of the whole tier; 0 if that is not known.
    """

    where: str
    is_host: bool
    unit_count: int | None
    page_units: Mapping[str, int]
    tier_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So much memory on each tier, in bytes or in pages.

    Attributes:
        size_bytes, host_bytes: of all of a device or of a host tier; each pool gives the same part of itself.
        pages, host_pages: by component, in place of that part. A pool without bytes and pages has no floor or cap.

    Raises ConfigurationError for other than integers of 0 or more.

    >>> Amount(size_bytes=64 << 30, host_pages={"full": 4096}).host_pages
    {'full': 4096}
    """

    size_bytes: int = 0
    host_bytes: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)
    host_pages: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integer(self.size_bytes, "size_bytes", ConfigurationError)
        integer(self.host_bytes, "host_bytes", ConfigurationError)
        for name in ("pages", "host_pages"):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise ConfigurationError(f"{name} must be a mapping from components to pages, not {repr_of(given)}")
            counts = {each: integer(count, f"{name}[{repr_of(each)}]", ConfigurationError) for each, count in given.items()}
            object.__setattr__(self, name, counts)  # the caller's own mapping may change


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantGroup:
    """Namespaces that have one share together.

    Attributes:
        name: in reports; not empty.
        namespaces: theirs; no other group has them.
        floor: what it may count on: a number from 0 to 1 is that part of each pool on each tier.
        cap: what it may hold at most that can be evicted; None for no limit.
        weight: beside those of the other groups, how much it gets of what the floors leave.
        shares: whether its namespaces have prefixes in common with those of other groups that share, once
            `Tenants.share_after` of these have shown them. Their state must be the same for the same tokens: one model, one
            adapter.
        one_namespace: whether its namespaces find all that any of them has cached. Their state must be the same, too.

    Raises ConfigurationError for anything else.
    """

    name: str
    namespaces: tuple[str, ...]
    floor: float | Amount = 0.0
    cap: float | Amount | None = None
    weight: float = 0.0
    shares: bool = False
    one_namespace: bool = False

    def __post_init__(self) -> None:
        for what in ("shares", "one_namespace"):
            object.__setattr__(self, what, flag(getattr(self, what), f"{what} of {self.name!r}", ConfigurationError))
        if type(self.name) is not str or not self.name:
            raise ConfigurationError(f"a group's name must be a string that is not empty, not {repr_of(self.name)}")
        namespaces = tuple(items(self.namespaces, f"{self.name}: namespaces", ConfigurationError))
        if not all(type(each) is str for each in namespaces):
            raise ConfigurationError(f"{self.name}: namespaces must be strings, not {repr_of(namespaces)}")
        object.__setattr__(self, "namespaces", namespaces)
        number(self.weight, f"{self.name}: weight", ConfigurationError)
        for what, given in (("floor", self.floor), ("cap", self.cap)):
            if not isinstance(given, Amount) and (given is not None or what == "floor"):
                number(given, f"{self.name}: {what}", ConfigurationError)
                if given is not None and given > 1:
                    raise ConfigurationError(
                        f"{self.name}: a {what} of {given} is more than all; give pages or bytes as an Amount"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """The groups of a cache.

    Attributes:
        groups: all that have a share or a cap of their own.
        weight: that of the namespaces that no group names.
        reported_groups: of so many groups, those that were declared first, statistics and metrics are given.
        compared_groups: of the groups over their share, so many that are furthest over it are asked for their next victim, and
            the one that the policy ranks first goes.
        named_by: what of a namespace the groups name, where that is a part of it; None for all of it. Called when a namespace
            begins to hold something.
        share_after: a prefix is common to the groups that share once so many of them have shown it, the group that asks not
            counted: 2 or more. None: never.
        common_group: the group whose share common prefixes count for, by name; it need not have namespaces.
        shown_pages: of so many pages of prompts it is remembered which groups have shown them, those shown longest ago are
            forgotten. Some 200 bytes each.

    Raises ConfigurationError for groups of one name, for a namespace in two groups, and for groups that share without
    `share_after`, or the other way round.

    >>> quiet = TenantGroup(name="quiet", namespaces=("a", "b"), floor=0.25)
    >>> tenants = Tenants(groups=(quiet,))
    >>> tenants.names, tenants.index()["b"]
    (('', 'quiet'), 1)
    """

    groups: tuple[TenantGroup, ...]
    weight: float = 0.0
    compared_groups: int = 8
    reported_groups: int = 64
    named_by: Callable[[str], str] | None = None
    share_after: int | None = None
    common_group: str = ""
    shown_pages: int = 65_536

    def __post_init__(self) -> None:
        groups = tuple(items(self.groups, "groups", ConfigurationError))
        if not all(isinstance(group, TenantGroup) for group in groups):
            raise ConfigurationError(f"groups must be TenantGroups, not {repr_of(groups)}")
        object.__setattr__(self, "groups", groups)
        number(self.weight, "weight", ConfigurationError)
        for what, least in (("compared_groups", 1), ("reported_groups", 0)):
            object.__setattr__(self, what, integer(getattr(self, what), what, ConfigurationError, minimum=least))
        if len({group.name for group in self.groups}) < len(self.groups):
            raise ConfigurationError("two groups have one name")
        self.index()
        integer(self.shown_pages, "shown_pages", ConfigurationError, minimum=1)
        if self.share_after is not None:
            integer(self.share_after, "share_after", ConfigurationError, minimum=2)
        sharers = sum([group.shares for group in self.groups])
        if self.share_after is None and sharers:
            raise ConfigurationError("groups share, but `share_after` does not say after how many of them have shown a prefix")
        if self.share_after is not None and sharers <= self.share_after:
            raise ConfigurationError(f"after {self.share_after} other groups needs more that share than {sharers}")
        if self.common_group not in self.names:
            raise ConfigurationError(f"common prefixes cannot count for {self.common_group!r}, which is no group")

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names; the first is that of all namespaces that no group names. Cost: O(groups)."""
        return ("", *[group.name for group in self.groups])

    @property
    def are_sharing(self) -> bool:
        """Whether any namespaces share. Cost: O(groups)."""
        return any(group.shares or group.one_namespace for group in self.groups)

    def index(self) -> dict[str, int]:
        """The place of each named namespace's group among the names. Cost: O(namespaces)."""
        found: dict[str, int] = {}
        for place, group in enumerate(self.groups, 1):
            for name in group.namespaces:
                if found.setdefault(name, place) != place:
                    raise ConfigurationError(f"namespace {name!r} is in two groups")
        return found

    def check(self, components: list[str]) -> None:
        """Raise ConfigurationError for pages of a component that there is not."""
        for group in self.groups:
            for amount in (group.floor, group.cap):
                names = (*amount.pages, *amount.host_pages) if isinstance(amount, Amount) else ()
                unknown = [name for name in names if name not in components]
                if unknown:
                    raise ConfigurationError(f"{group.name}: there is no component {unknown[0]!r}")

    def shares(self, room: Room) -> list[int]:
        """The share of each group in a room, in its units. Raises ConfigurationError if they do not fit. Cost: O(groups)."""
        floors = [0, *[_units(group.floor, room, group.name) or 0 for group in self.groups]]
        caps = self.caps(room)
        rest = 0 if room.unit_count is None else room.unit_count - sum(floors)
        if rest < 0:
            raise ConfigurationError(f"the floors take {sum(floors)} of {room.unit_count} units of {room.where}")
        weights = [self.weight, *[group.weight for group in self.groups]]
        total = sum(weights) or 1.0
        shares = [floor + int(rest * (weight / total) + ROUNDING) for floor, weight in zip(floors, weights, strict=True)]
        for name, floor, cap in zip(self.names, floors, caps, strict=True):
            if 0 <= cap < floor:
                raise ConfigurationError(f"{name}: its cap in {room.where} is {cap} units, less than its floor of {floor}")
        return [share if cap < 0 else min(share, cap) for share, cap in zip(shares, caps, strict=True)]

    def caps(self, room: Room) -> list[int]:
        """The cap of each group in a room, in its units; -1 for none. Cost: O(groups)."""
        found = [-1]
        for group in self.groups:
            units = None if group.cap is None else _units(group.cap, room, group.name)
            found.append(-1 if units is None else units)
        return found


def _units(amount: float | Amount, room: Room, name: str) -> int | None:
    """An amount in units of a room; None if it says nothing of it."""
    if not isinstance(amount, Amount):
        return None if room.unit_count is None else int(room.unit_count * amount + ROUNDING)
    size_bytes, pages = (amount.host_bytes, amount.host_pages) if room.is_host else (amount.size_bytes, amount.pages)
    counts = [count * room.page_units[each] for each, count in pages.items() if each in room.page_units]
    if counts:
        return sum(counts)
    if not size_bytes:
        return None
    if not room.tier_bytes or room.unit_count is None:
        raise ConfigurationError(f"{name}: bytes of {room.where} need page counts, and the page bytes of every component")
    return min(room.unit_count, room.unit_count * size_bytes // room.tier_bytes)
