"""The standard eviction policies, which rank by what the tree keeps at a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.policies.standard_policy import Standard, last_used
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value
    from unified_tree.policies.tree_view import TreeView


class Lru(Standard):
    """Least recently used first."""


class Lfu(Standard):
    """Fewest hits first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.hits), float(value.touched))

    def explain(self, rank: float, second_rank: float, now: int) -> str:
        return f"{_hits(rank)}, {last_used(second_rank, now)}; the fewest hits go first"


class Fifo(Standard):
    """Oldest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.created), 0.0)

    def explain(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"made {now - rank:,.0f} ticks ago; the oldest goes first"


class Filo(Standard):
    """Newest creation first."""

    by_use = False

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.created), 0.0)

    def explain(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"made {now + rank:,.0f} ticks ago; the newest goes first"


class Slru(Standard):
    """Values without a hit are evicted first, then those with hits; least recently used first within each segment."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (1.0 if value.hits else 0.0, float(value.touched))

    def explain(self, rank: float, second_rank: float, now: int) -> str:
        was_hit = "hit before" if rank else "never hit"
        return f"{was_hit}, {last_used(second_rank, now)}; what was never hit goes first, then the least recently used"


class Priority(Standard):
    """Lowest request priority first, then least recently used."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (float(value.priority), float(value.touched))

    def explain(self, rank: float, second_rank: float, now: int) -> str:
        return f"priority {rank:g}, {last_used(second_rank, now)}; the lowest priority goes first"


class Mru(Standard):
    """Most recently used first."""

    def rank(self, value: Value) -> tuple[float, float]:
        return (-float(value.touched), 0.0)

    def explain(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        return f"{last_used(-rank, now)}; the most recently used goes first"


def _hits(count: float) -> str:
    return f"{count:,.0f} {'hit' if count == 1 else 'hits'}"


class CostAware(Standard):
    """GreedyDual-Size (Cao and Irani, 1997): score = inflation + cost to bring back / bytes.

    The score changes only on touch; the inflation rises to each victim's score, so what is not used ages. Pools that share a
    budget share their inflation.
    """

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

    def explain(self, rank: float, second_rank: float, now: int) -> str:
        return f"score {rank:.4g} for what it costs to bring back, {last_used(second_rank, now)}; the smallest score goes first"
