"""Scarcity: whether boundaries (windows or states) or the paths under them run short of room first.

Where each pool has a page count of its own, a session's boundary and its path go from different pools, but are worth something
only together: its tokens. If all that is kept has one price a token of path and one a boundary, those are kept whose rate of
hits is above (price of a token + price of a boundary / tokens of the session). So rates are weighted by
tokens / (tokens + `tokens` here), which is the ratio of both prices; what is worth least by that goes first in either pool.

The ratio is found by what goes: as long as boundaries that go are worth more than paths that go, boundaries are the scarcer,
and it rises; else it falls. What is stranded (of no use, since the other one went) is worth nothing when it goes.
"""

from __future__ import annotations

from typing import Final

VICTIMS_A_STEP: Final = 128
STEP: Final = 2.0
"""After so many victims the ratio changes, by so much at most."""
GAIN: Final = 0.5
"""It changes by this power of how many times as much boundaries were worth."""
KEPT: Final = 0.5
"""Of what went before a step, so much counts at the next."""
LEAST: Final = 16.0
MOST: Final = float(1 << 16)
"""Between these the ratio stays, in tokens. Beyond what texts have, a higher one orders them alike, and comes back late."""


class Scarcity:
    """Of one tier.

    Attributes:
        tokens: a boundary's room is worth that of so many tokens of path.
    """

    __slots__ = ("_boundaries", "_paths", "_victims", "tokens")

    def __init__(self) -> None:
        self.tokens = LEAST
        self._victims = 0
        self._paths = [0.0, 0.0]
        self._boundaries = [0.0, 0.0]

    def went(self, worth: float, *, is_path: bool) -> None:
        """A victim went that was worth so much. Cost: O(1)."""
        sums = self._paths if is_path else self._boundaries
        sums[0] += worth
        sums[1] += worth * worth
        self._victims += 1
        if self._victims == VICTIMS_A_STEP:
            self._settle()

    def _settle(self) -> None:
        self._victims = 0
        path, boundary = (squares / total if total > 0 else 0.0 for total, squares in (self._paths, self._boundaries))
        for sums in (self._paths, self._boundaries):
            sums[0] *= KEPT
            sums[1] *= KEPT
        if path > 0 or boundary > 0:
            step = min(STEP, max(1 / STEP, (boundary / path) ** GAIN)) if path > 0 else STEP
            self.tokens = min(MOST, max(LEAST, self.tokens * step))
