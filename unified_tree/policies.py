"""Eviction policies: what a value's rank is; the smallest rank goes first.

The standard policies rank from what the tree keeps at a value. A policy of the user's own is foreign code: it may raise, or
answer with what cannot be compared, in the middle of an operation that must not fail. It is asked through a `Guarded`, which
then ranks by recency and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mypy_extensions import mypyc_attr

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.node import Value

Rank: TypeAlias = float | tuple[float, float]
"""One number, or two that are compared in turn. Infinities are allowed, NaN is not."""
RestoreCost = Callable[["Value"], float]
"""What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte."""


class EvictionPolicy(Protocol):
    """Ranks the values of one pool. One instance serves one pool and shares nothing.

    A policy that raises, or whose rank is no number, is not asked to leave: the value in question is ranked below all that
    it ranked well, the least recently used first, and `Pool.policy_failures` counts.
    """

    def touched(self, value: Value) -> None:
        """A value was created or used; its rank is asked for next. May keep a figure in `value.score`."""

    def rank(self, value: Value) -> Rank:
        """The value's rank now; reads the value, changes nothing in the tree."""
        ...

    def evicted(self, value: Value) -> None:
        """The value was chosen as a victim."""


PolicyFactory = Callable[[RestoreCost], EvictionPolicy]


@mypyc_attr(allow_interpreted_subclasses=False)
class Standard:
    """Ranks from `touched`, `hits`, `created` and `priority` alone, which the tree keeps.

    Attributes:
        by_use: whether a use changes a rank.
    """

    by_use = True

    def touched(self, value: Value) -> None:
        """Nothing to keep."""

    def rank(self, value: Value) -> tuple[float, float]:
        """Least recently used first."""
        return (float(value.touched), 0.0)

    def evicted(self, value: Value) -> None:
        """Nothing to learn."""


class Lru(Standard):
    """Least recently used first."""


class Lfu(Standard):
    """Fewest hits first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.hits), float(value.touched))


class Fifo(Standard):
    """Oldest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.created), 0.0)


class Filo(Standard):
    """Newest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.created), 0.0)


class Slru(Standard):
    """Values never hit since they were made go first, then the hit ones; least recently used within each segment."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (1.0 if value.hits else 0.0, float(value.touched))


class Priority(Standard):
    """Lowest request priority first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.priority), float(value.touched))


class Mru(Standard):
    """Most recently used first."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.touched), 0.0)


class CostAware(Standard):
    """GreedyDual-Size (Cao and Irani, 1997): score = inflation + cost to bring back / bytes.

    The score changes only on touch; the inflation rises to each victim's score, so what is not used ages.
    """

    def __init__(self, restore_cost: RestoreCost) -> None:
        self.inflation = 0.0
        self._restore_cost = restore_cost

    def touched(self, value: Value) -> None:
        value.score = self.inflation + self._restore_cost(value)

    def rank(self, value: Value) -> tuple[float, float]:
        return (value.score, float(value.touched))

    def evicted(self, value: Value) -> None:
        self.inflation = max(self.inflation, value.score)


class Guarded(Standard):
    """A user's policy, which cannot break the tree.

    Attributes:
        policy: the user's.
        failures: how often it raised or ranked by what is no number; `last_failure`: why, the last time.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.failures = 0
        self.last_failure: str | None = None

    def touched(self, value: Value) -> None:
        try:
            self.policy.touched(value)
        except Exception as error:  # foreign code in the middle of an operation that must not fail
            self._failed(repr(error))

    def rank(self, value: Value) -> tuple[float, float]:
        try:
            rank = self.policy.rank(value)
            first, second = rank if isinstance(rank, tuple) else (rank, 0.0)
            numbers = (float(first), float(second))
            if not (isnan(numbers[0]) or isnan(numbers[1])):
                return numbers
            self._failed(f"rank {rank!r}")
        except Exception as error:  # as above
            self._failed(repr(error))
        return (-inf, float(value.touched))

    def evicted(self, value: Value) -> None:
        try:
            self.policy.evicted(value)
        except Exception as error:  # as above
            self._failed(repr(error))

    def _failed(self, why: str) -> None:
        self.failures += 1
        self.last_failure = why


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
        if not callable(policy):
            raise ConfigurationError(f"a policy is a name or a factory, not {policy!r}")
        return policy
    if policy not in POLICIES:
        raise ConfigurationError(f"unknown eviction policy {policy!r}; there are {', '.join(POLICIES)}")
    return POLICIES[policy]
