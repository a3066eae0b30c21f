"""Tokens hit, by how many windows or states there is room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.sizing.value_order import WHOLE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class HitCounts:
    """Counted so far.

    >>> counts = HitCounts()
    >>> counts.add(0, 64)  # whatever there is room for
    >>> counts.add(3 * WHOLE, 100)  # so many more if three values fit
    >>> counts.curve().tokens(2), counts.curve().tokens(3)
    (64, 164)
    """

    __slots__ = ("_gains",)

    def __init__(self) -> None:
        self._gains: dict[int, int] = {}

    def add(self, room: int, tokens: int) -> None:
        """From a room for values of this weight on, so many tokens more are hit."""
        self._gains[room] = self._gains.get(room, 0) + tokens

    def curve(self) -> HitCurve:
        """What was counted, for all sizes. Cost: O(n log n)."""
        rooms = sorted(self._gains)
        return HitCurve(
            rooms=np.array(rooms) / WHOLE, sums=np.cumsum(np.array([self._gains[room] for room in rooms], np.int64))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HitCurve:
    """Tokens hit over room: `sums[i]` from `rooms[i]` on."""

    rooms: NDArray[np.float64]
    sums: NDArray[np.int64]

    def tokens(self, room: float) -> int:
        """Tokens hit where so many values fit. Cost: O(log n)."""
        index = int(np.searchsorted(self.rooms, room, side="right"))
        return int(self.sums[index - 1]) if index else 0
