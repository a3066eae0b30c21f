"""Eviction policies: what a value's rank is; the smallest rank goes first.

A policy is *lazy* when a touch can only raise a rank. The order then leaves a touched value where it is and corrects it
when it comes up as a victim, so a hit costs nothing. An *eager* policy (mru, cost, clairvoyance) is told of every touch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.node import Value

Rank: TypeAlias = float | tuple[float, ...]
RestoreCost = Callable[["Value"], float]
"""What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte."""


class EvictionPolicy(Protocol):
    """Ranks the values of one pool. One instance serves one pool and shares nothing.

    Attributes:
        lazy: a touch never lowers a rank.
    """

    lazy: bool

    def touched(self, value: Value) -> None:
        """A value was created or used (eager policies only). May keep a figure in `value.score`."""

    def rank(self, value: Value) -> Rank:
        """The value's rank now; reads the value, changes nothing. All ranks of a policy compare with each other."""
        ...

    def evicted(self, value: Value) -> None:
        """The value was chosen as a victim."""


PolicyFactory = Callable[[RestoreCost], EvictionPolicy]


class _Standard:
    """Ranks from `touched`, `hits`, `created` and `priority` alone, which the tree keeps."""

    lazy = True

    def touched(self, value: Value) -> None:
        pass

    def evicted(self, value: Value) -> None:
        pass


class Lru(_Standard):
    """Least recently used first."""

    def rank(self, value: Value) -> Rank:
        return value.touched


class Lfu(_Standard):
    """Fewest hits first, then least recently used."""

    def rank(self, value: Value) -> Rank:
        return (value.hits, value.touched)


class Fifo(_Standard):
    """Oldest creation first."""

    def rank(self, value: Value) -> Rank:
        return value.created


class Filo(_Standard):
    """Newest creation first."""

    def rank(self, value: Value) -> Rank:
        return -value.created


class Slru(_Standard):
    """Values never hit since they were made go first, then the hit ones; least recently used within each segment."""

    def rank(self, value: Value) -> Rank:
        return (1 if value.hits else 0, value.touched)


class Priority(_Standard):
    """Lowest request priority first, then least recently used."""

    def rank(self, value: Value) -> Rank:
        return (value.priority, value.touched)


class Mru(_Standard):
    """Most recently used first."""

    lazy = False

    def rank(self, value: Value) -> Rank:
        return -value.touched


class CostAware:
    """GreedyDual-Size (Cao and Irani, 1997): score = inflation + cost to bring back / bytes.

    The score changes only on touch; the inflation rises to each victim's score, so what is not used ages.
    """

    lazy = False

    def __init__(self, restore_cost: RestoreCost) -> None:
        self.inflation = 0.0
        self._restore_cost = restore_cost

    def touched(self, value: Value) -> None:
        value.score = self.inflation + self._restore_cost(value)

    def rank(self, value: Value) -> Rank:
        return (value.score, value.touched)

    def evicted(self, value: Value) -> None:
        self.inflation = max(self.inflation, value.score)


POLICIES: dict[str, PolicyFactory] = {
    "lru": lambda _: Lru(),
    "lfu": lambda _: Lfu(),
    "fifo": lambda _: Fifo(),
    "mru": lambda _: Mru(),
    "filo": lambda _: Filo(),
    "slru": lambda _: Slru(),
    "priority": lambda _: Priority(),
    "cost": CostAware,
}


def policy_factory(policy: str | PolicyFactory) -> PolicyFactory:
    """The factory of a policy given by name or as a factory. Raises ConfigurationError for an unknown name."""
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise ConfigurationError(f"unknown eviction policy {policy!r}; there are {', '.join(POLICIES)}")
    return POLICIES[policy]
