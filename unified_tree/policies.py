"""Eviction policies. A policy gives every value a rank; the smallest rank is evicted first.

The standard policies rank by what the tree keeps at a value. A custom policy is foreign code: it may raise, or return a rank
that cannot be compared, in the middle of an operation that must not fail. It is called through a `Guarded`, which then ranks by
recency and counts the failure.
"""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from unified_tree.errors import ConfigurationError
from unified_tree.extensions import find_extension, known_names
from unified_tree.queues import Queues
from unified_tree.reuse import BY_RECENCY, QUEUE_SPAN, queue_of, since

if TYPE_CHECKING:
    from unified_tree.eviction_policy import EvictionPolicy, PolicyFactory, RestoreCost
    from unified_tree.node import Value
    from unified_tree.order import Order
    from unified_tree.reuse import Reuse

ENTRY_POINT_GROUP = "unified_tree.policies"
"""An installed package offers `name = "module:factory"` here."""


@mypyc_attr(allow_interpreted_subclasses=False)
class Standard:
    """Ranks from `touched`, `hits`, `created` and `priority` alone, which the tree keeps.

    Attributes:
        by_use: whether a use changes a rank.
        compares_across_pools: whether ranks mean the same in all pools, as a budget that they share needs.
    """

    by_use = True
    compares_across_pools = True

    def age_with(self, other: Standard, page_blocks: int) -> None:
        """Values of both policies are ranked against each other from now on; a page of this one's takes so many blocks."""

    def standing(self, value: Value) -> tuple[float, float]:
        """How a placed value compares with those of other pools: the smallest goes first."""
        return (value.rank, value.second_rank)

    def touched(self, value: Value) -> None:
        """Nothing to keep."""

    def place(self, order: Order, value: Value, urgency: int) -> None:
        """Rank a value, and add it to an order there."""
        rank, second_rank = self.rank(value)
        order.add(value, urgency, rank, second_rank, -value.node.end)

    def next_victim(self, order: Order, first: Value) -> Value:  # noqa: ARG002
        """The next victim, where that is not just the first of the order."""
        return first

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
    """Values without a hit are evicted first, then those with hits; least recently used first within each segment."""

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


class Inflation:
    """How far scores have aged: the highest of a victim."""

    __slots__ = ("score",)

    def __init__(self) -> None:
        self.score = 0.0


class CostAware(Standard):
    """GreedyDual-Size (Cao and Irani, 1997): score = inflation + cost to bring back / bytes.

    The score changes only on touch; the inflation rises to each victim's score, so what is not used ages. Pools that share a
    budget share their inflation.
    """

    def __init__(self, restore_cost: RestoreCost) -> None:
        self._age = Inflation()
        self._restore_cost = restore_cost

    @property
    def inflation(self) -> float:
        """The score of the last victim, at most."""
        return self._age.score

    def age_with(self, other: Standard, page_blocks: int) -> None:  # noqa: ARG002
        assert isinstance(other, CostAware)
        self._age = other._age

    def touched(self, value: Value) -> None:
        value.score = self._age.score + self._restore_cost(value)

    def rank(self, value: Value) -> tuple[float, float]:
        return (value.score, float(value.touched))

    def evicted(self, value: Value) -> None:
        self._age.score = max(self._age.score, value.score)


class HitDensity(Standard):
    """What is worth least for its room and time goes first; see `unified_tree.reuse`.

    A value's queue, and since when it waits there, are in its score.
    """

    def __init__(self) -> None:
        self._reuse: Reuse | None = None
        self._queues: list[Queues] = []
        self._page_blocks = 1

    def age_with(self, other: Standard, page_blocks: int) -> None:  # noqa: ARG002
        self._page_blocks = page_blocks

    def standing(self, value: Value) -> tuple[float, float]:
        """By what is worth least a block."""
        if self._reuse is None or self._reuse.mode == BY_RECENCY:
            return (float(value.touched), 0.0)
        return (self._reuse.worth(queue_of(value), since(value)) / self._page_blocks, value.second_rank)

    def learn_from(self, reuse: Reuse, urgencies: int) -> None:
        """Rank by what is learned of reuse; without that, it is `lru`."""
        self._reuse = reuse
        self._queues = [Queues(urgency, reuse) for urgency in range(urgencies)]

    def place(self, order: Order, value: Value, urgency: int) -> None:
        if self._reuse is None:
            value.score = float(value.touched)
            order.add(value, urgency, 0.0, value.score, -value.node.end)
            return
        queue, at = self._reuse.place(value)
        value.score = float(queue) * QUEUE_SPAN + float(at)
        order.add(value, urgency, float(queue), float(at), -value.node.end)
        self._queues[urgency].entered(queue, at)

    def evicted(self, value: Value) -> None:
        if self._reuse is not None:
            self._reuse.went(value)

    def next_victim(self, order: Order, first: Value) -> Value:
        found = None if self._reuse is None else self._queues[first.urgency].least(order)
        return first if found is None else found

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(queue_of(value)), float(since(value)))


class Guarded(Standard):
    """A wrapper of a custom policy, so that its failures cannot break the tree.

    Attributes:
        policy: the custom policy.
        is_selective: whether it is an AdmissionPolicy, which may refuse windows and states.
        compares_across_pools: whether it says so of its ranks.
        failures: how often it raised or returned an invalid rank; `last_failure`: the reason of the last one.
        declined: how many windows and states it refused.

    Raises ConfigurationError for an object that lacks a method of a policy.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        missing = [name for name in ("touched", "rank", "evicted") if not callable(getattr(policy, name, None))]
        if missing:
            raise ConfigurationError(f"{policy!r} is no eviction policy: it lacks {', '.join(missing)}")
        self.policy = policy
        self.is_selective = callable(getattr(policy, "admits", None))
        self.compares_across_pools = bool(getattr(policy, "compares_across_pools", False))
        self.failures = 0
        self.declined = 0
        self.last_failure: str | None = None

    def admits(self, value: Value) -> bool:
        """See AdmissionPolicy.admits."""
        try:
            admitted = bool(getattr(self.policy, "admits")(value))  # noqa: B009
        except Exception as error:  # foreign code in the middle of an operation that must not fail
            self._failed(repr(error))
            return True
        if not admitted:
            self.declined += 1
        return admitted

    def touched(self, value: Value) -> None:
        try:
            self.policy.touched(value)
        except Exception as error:  # foreign code in the middle of an operation that must not fail
            self._failed(repr(error))

    def rank(self, value: Value) -> tuple[float, float]:
        try:
            policy: Any = self.policy  # compiled, a declared result would be checked, and numpy's numbers refused
            rank: object = policy.rank(value)
            if isinstance(rank, float):
                first, second = float(rank), 0.0
            elif isinstance(rank, tuple) and len(rank) == 2:
                first, second = _number(rank[0]), _number(rank[1])
            else:
                first, second = _number(rank), 0.0
            if not (isnan(first) or isnan(second)):
                return (first, second)
            self._failed(f"rank {rank!r} is no number")
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


def _number(given: Any) -> float:
    """A number of Python's or numpy's as a float; NaN for anything else."""
    if isinstance(given, float):
        return float(given)
    if isinstance(given, str | bytes):
        return nan
    try:
        return float(given)
    except Exception:  # foreign objects
        return nan


POLICIES: dict[str, PolicyFactory] = {
    "lru": lambda _: Lru(),
    "lfu": lambda _: Lfu(),
    "fifo": lambda _: Fifo(),
    "mru": lambda _: Mru(),
    "filo": lambda _: Filo(),
    "slru": lambda _: Slru(),
    "priority": lambda _: Priority(),
    "cost": CostAware,
    "density": lambda _: HitDensity(),
}


def policy_names() -> tuple[str, ...]:
    """The names of all policies: the built-in ones and those of installed packages."""
    return known_names(ENTRY_POINT_GROUP, POLICIES)


def policy_factory(policy: str | PolicyFactory) -> PolicyFactory:
    """The factory of a policy. `policy` is a factory, or a name: a built-in one, an entry point, or `module:factory`.

    Raises ConfigurationError for an unknown name, and for an object that cannot be loaded or called.
    """
    if isinstance(policy, str):
        return find_extension("eviction policy", policy, ENTRY_POINT_GROUP, POLICIES)
    if not callable(policy):
        raise ConfigurationError(f"a policy is a name or a factory, not {policy!r}")
    return policy


def made_policy(factory: PolicyFactory, name: object, cost: RestoreCost) -> EvictionPolicy:
    """A policy of a factory, which may be anything that somebody has named.

    Raises ConfigurationError if the factory raises, or returns what is no policy.
    """
    try:
        made: Any = factory(cost)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"the policy {name!r} cannot be made: {type(error).__name__}: {error}") from error
    lacking = [method for method in ("touched", "rank", "evicted") if not callable(getattr(made, method, None))]
    if lacking:
        raise ConfigurationError(f"{name!r} makes a {type(made).__name__}, which is no policy: it lacks {', '.join(lacking)}")
    policy: EvictionPolicy = made
    return policy
