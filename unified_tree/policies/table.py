"""The eviction policies: the standard ones, all by name, and the guard around custom ones.

The standard policies rank by what the tree keeps at a value. A custom policy is foreign code: it may raise, or return a rank
that cannot be compared, in the middle of an operation that must not fail. It is called through a `Guarded`, which then ranks by
recency and counts the failure.
"""

from __future__ import annotations

from _thread import interrupt_main
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.extensions import find_extension, known_names
from unified_tree.inputs.printable import printable, repr_of
from unified_tree.nodes.node import Value, group_of
from unified_tree.policies.density.hit_density import HitDensity
from unified_tree.policies.eviction_policy import EvictionPolicy
from unified_tree.policies.standard_policy import Standard, last_used
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.nodes.order import Order
    from unified_tree.policies.eviction_policy import PolicyFactory
    from unified_tree.policies.tree_view import TreeView


class Lru(Standard):
    """Least recently used first."""


class Lfu(Standard):
    """Fewest hits first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.hits), float(value.touched))

    def in_words(self, rank: float, second_rank: float, now: int) -> str:
        return f"{_hits(rank)}, {last_used(second_rank, now)}; the fewest hits go first"


class Fifo(Standard):
    """Oldest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.created), 0.0)

    def in_words(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"made {now - rank:,.0f} ticks ago; the oldest goes first"


class Filo(Standard):
    """Newest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.created), 0.0)

    def in_words(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"made {now + rank:,.0f} ticks ago; the newest goes first"


class Slru(Standard):
    """Values without a hit are evicted first, then those with hits; least recently used first within each segment."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (1.0 if value.hits else 0.0, float(value.touched))

    def in_words(self, rank: float, second_rank: float, now: int) -> str:
        was_hit = "hit before" if rank else "never hit"
        return f"{was_hit}, {last_used(second_rank, now)}; what was never hit goes first, then the least recently used"


class Priority(Standard):
    """Lowest request priority first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.priority), float(value.touched))

    def in_words(self, rank: float, second_rank: float, now: int) -> str:
        return f"priority {rank:g}, {last_used(second_rank, now)}; the lowest priority goes first"


class Mru(Standard):
    """Most recently used first."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.touched), 0.0)

    def in_words(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"{last_used(-rank, now)}; the most recently used goes first"


def _hits(count: float) -> str:
    return f"{count:,.0f} {'hit' if count == 1 else 'hits'}"


class CostAware(Standard):
    """GreedyDual-Size (Cao and Irani, 1997): score = inflation + cost to bring back / bytes.

    The score changes only on touch; the inflation rises to each victim's score, so what is not used ages. Pools that share a
    budget share their inflation.
    """

    hears_uses = True

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._inflation = [0.0] * (2 * len(view.components))

    def inflation(self, component: int, tier: Tier) -> float:
        """The score of a pool's last victim, at most."""
        return self._inflation[self._pool_of(component, tier)]

    def _pool_of(self, component: int, tier: Tier) -> int:
        """Where a pool's inflation is kept; pools that share a budget have that of the first."""
        first = len(self._view.components) if tier is Tier.HOST else 0
        return first if self._view.page_blocks(component, tier) else first + component

    def touched(self, value: Value) -> None:
        value.score = self.inflation(value.component, value.tier) + self._view.restore_cost(value)

    def rank(self, value: Value) -> tuple[float, float]:
        return (value.score, float(value.touched))

    def went(self, value: Value, is_whole: bool) -> None:  # noqa: ARG002
        pool = self._pool_of(value.component, value.tier)
        self._inflation[pool] = max(self._inflation[pool], value.score)

    def in_words(self, rank: float, second_rank: float, now: int) -> str:
        return f"score {rank:.4g} for what it costs to bring back, {last_used(second_rank, now)}; the smallest score goes first"


ENTRY_POINT_GROUP = "unified_tree.policies"
"""An installed package offers `name = "module:factory"` here."""


OF_TEXTS = ("arrived", "withdrew", "grew", "published", "saved")
OF_LOCKS = ("locked", "unlocked")
EVENTS = ("touched", "placed", "went", *OF_TEXTS, *OF_LOCKS)


class Guarded(Standard):
    """A wrapper of a custom policy, so that its failures cannot break the tree.

    Attributes:
        policy: the custom policy.
        is_selective: whether it is an AdmissionPolicy, which may refuse windows and states.
        compares_across_pools: whether it says so of its ranks.
        failures: how often it raised or returned what is no rank, victim or text; `last_failure`: the reason of the last one.
            Figures that fail are not asked for again.
        declined: how many windows and states it refused.
    """

    def __init__(self, view: TreeView, policy: EvictionPolicy) -> None:
        super().__init__(view)
        self.policy = policy
        self.is_selective = callable(getattr(policy, "admits", None))
        self.compares_across_pools = bool(getattr(policy, "compares_across_pools", False))
        self.follows_texts = bool(getattr(policy, "follows_texts", False))
        self.weighs_copies = bool(getattr(policy, "weighs_copies", False))
        self._events: dict[str, Any] = {}
        for name in (*EVENTS, "next_victim", "likely_victim", "standing", "reason", "explain", "figures"):
            if overrides(policy, name):
                self._events[name] = getattr(policy, name)
        self.chooses = "next_victim" in self._events
        self.hears_uses = "touched" in self._events
        self.hears_texts = any(name in self._events for name in OF_TEXTS)
        self.hears_locks = any(name in self._events for name in OF_LOCKS)
        self.failures = 0
        self.declined = 0
        self.last_failure: str | None = None

    def admits(self, value: Value) -> bool:
        """See AdmissionPolicy.admits."""
        try:
            admitted = bool(getattr(self.policy, "admits")(value))  # noqa: B009
        except (Exception, KeyboardInterrupt) as error:  # foreign code in the middle of an operation that must not fail
            self._raised(error)
            return True
        if not admitted:
            self.declined += 1
        return admitted

    def rank(self, value: Value) -> tuple[float, float]:
        ranked = self._ranked("rank", value)
        self._check_score(value)
        return ranked

    def _check_score(self, value: Value) -> None:
        """A failure, and a score of 0, if the policy has stored what is no number; compiled, its own method fails then."""
        score: object = value.score
        if not isinstance(score, int | float):
            value.score = 0.0
            self._failed(f"the score {repr_of(score)} is no number")

    def _ranked(self, name: str, value: Value) -> tuple[float, float]:
        """What a method of the policy ranks a value by; below all others if that is no number."""
        try:
            rank: object = getattr(self.policy, name)(value)
            if isinstance(rank, float):
                first, second = float(rank), 0.0
            elif isinstance(rank, tuple) and len(rank) == 2:
                first, second = _number(rank[0]), _number(rank[1])
            else:
                first, second = _number(rank), 0.0
            if not (isnan(first) or isnan(second)):
                return (first, second)
            self._failed(f"{name} {rank!r} is no number")
        except (Exception, KeyboardInterrupt) as error:  # as above
            self._raised(error)
        return (-inf, float(value.touched))

    def next_victim(self, order: Order, first: Value) -> Value:
        event = self._events.get("next_victim")
        if event is None:
            return first
        try:
            chosen: object = event(order, first)
        except (Exception, KeyboardInterrupt) as error:  # as above
            self._raised(error)
            return first
        if isinstance(chosen, Value) and chosen.is_placed and chosen.urgency == first.urgency and in_one_order(chosen, first):
            return chosen
        self._failed(f"{chosen!r} cannot be the next victim")
        return first

    def likely_victim(self, order: Order, first: Value) -> Value | None:
        if not self.chooses:
            return first
        said: object = self._tell("likely_victim", order, first)
        if isinstance(said, Value) and in_one_order(said, first):
            return said
        if said is not None:
            self._failed(f"{said!r} cannot be the likely victim")
        return None

    def reason(self, value: Value) -> object:
        return (value.rank, value.second_rank) if "reason" not in self._events else self._tell("reason", value)

    def explain(self, reason: object, now: int) -> str:
        said: object = self._tell("explain", reason, now)
        if isinstance(said, str):
            return said
        if said is not None:
            self._failed(f"explain {said!r} is no text")
        return f"ranked by {type(self.policy).__name__}; the smallest rank goes first"

    def figures(self) -> dict[str, float]:
        event = self._events.get("figures")
        try:
            return {} if event is None else {printable(str(name)): _number(number) for name, number in dict(event()).items()}
        except Exception as error:  # as above; asked at each scrape, they would count each time
            self._failed(repr(error))
            del self._events["figures"]
            return {}

    def standing(self, value: Value) -> tuple[float, float]:
        return (value.rank, value.second_rank) if "standing" not in self._events else self._ranked("standing", value)

    def touched(self, value: Value) -> None:
        self._tell("touched", value)
        self._check_score(value)

    def placed(self, value: Value) -> None:
        self._tell("placed", value)

    def went(self, value: Value, is_whole: bool) -> None:
        event = self._events.get("went")
        if event is not None:
            try:
                event(value, is_whole=is_whole)
            except (Exception, KeyboardInterrupt) as error:  # as above
                self._raised(error)

    def arrived(self, node: Node | None, length: int, hit: int) -> object:
        return self._tell("arrived", node, length, hit)

    def withdrew(self, arrival: object) -> None:
        self._tell("withdrew", arrival)

    def grew(self, node: Node, last: int, arrival: object) -> None:
        self._tell("grew", node, last, arrival)

    def published(self, node: Node, length: int) -> None:
        self._tell("published", node, length)

    def saved(self, node: Node, resumed: int, arrival: object) -> None:
        self._tell("saved", node, resumed, arrival)

    def locked(self, node: Node) -> None:
        self._tell("locked", node)

    def unlocked(self, node: Node) -> None:
        self._tell("unlocked", node)

    def _tell(self, name: str, *given: object) -> object:
        """What the policy answers to an event that it has; None if it has none of that name, or raises."""
        event = self._events.get(name)
        if event is None:
            return None
        try:
            answer: object = event(*given)
        except (Exception, KeyboardInterrupt) as error:  # as above
            self._raised(error)
            return None
        return answer

    def _raised(self, error: BaseException) -> None:
        """The policy has raised, which is a failure; an interrupt is raised again once the operation has ended."""
        if isinstance(error, KeyboardInterrupt):
            interrupt_main()
        else:
            self._failed(repr(error))

    def _failed(self, why: str) -> None:
        self.failures += 1
        self.last_failure = why


def overrides(policy: object, name: str) -> bool:
    """Whether a custom policy has a method of its own, not the base class's, which does nothing."""
    method = getattr(policy, name, None)
    return callable(method) and getattr(method, "__func__", None) is not getattr(EvictionPolicy, name, method)


def in_one_order(one: Value, other: Value) -> bool:
    """Whether two values stand in one order: they are of one pool, and of one group of namespaces."""
    return one.component == other.component and one.tier is other.tier and group_of(one.node) == group_of(other.node)


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
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "mru": Mru,
    "filo": Filo,
    "slru": Slru,
    "priority": Priority,
    "cost": CostAware,
    "density": HitDensity,
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
        raise ConfigurationError(f"a policy is a name or a factory, not {repr_of(policy)}")
    return policy


def made_policy(factory: PolicyFactory, name: object, view: TreeView) -> EvictionPolicy | Standard:
    """The policy that a factory makes, which may be anything that somebody has named.

    Raises ConfigurationError if the factory raises, or returns what is no policy.
    """
    try:
        made: Any = factory(view)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"the policy {name!r} cannot be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "rank", None)):
        raise ConfigurationError(f"{name!r} makes a {type(made).__name__}, which is no policy: it lacks rank")
    policy: EvictionPolicy | Standard = made
    return policy


def guarded(policy: EvictionPolicy | Standard, view: TreeView) -> Standard:
    """A policy as a pool asks it: a custom one through a guard, which counts that pool's failures."""
    return policy if isinstance(policy, Standard) else Guarded(view, policy)
