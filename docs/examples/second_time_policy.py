"""An admission policy: a window or state is kept only where the prefix is computed for the second time.

Most prompts are never seen again, and a state may be megabytes. So this one remembers, in a table of fixed size, which places
were asked for lately, and lets only those in that it remembers. Paths are always kept.
"""

from __future__ import annotations

from unified_tree import RestoreCost, Value

REMEMBERED = 1 << 14


class SecondTime:
    """Least recently used first, but for newcomers: those must come twice."""

    def __init__(self, restore_cost: RestoreCost) -> None:
        del restore_cost
        self.seen = [0] * REMEMBERED

    def admits(self, value: Value) -> bool:
        """Whether a window or state at this place was offered before."""
        place = hash((value.node.id, value.node.end))
        known = self.seen[place % REMEMBERED] == place
        self.seen[place % REMEMBERED] = place
        return known

    def touched(self, value: Value) -> None:
        """Nothing to keep."""

    def rank(self, value: Value) -> float:
        """The least recently used first."""
        return value.touched

    def evicted(self, value: Value) -> None:
        """Nothing to learn."""
