"""Places where requests fork off a text: how soon each is used again.

A place that was used `k` times in `t` ticks is used about every `t / k` ticks. How often such a place is used is not known
exactly, so its rate is that of a Gamma distribution of rates after `k` uses: (k + 1/2) / (t + waited + usual), which falls
while nobody comes (Gamma and Poisson; Greenwood and Yule, 1920). `usual` is the age at which values go, since without a use
nothing else is known of time. How many uses came of as many as these rates promised says by how much they are off, by octaves
of uses.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np
from mypy_extensions import i64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.turns import Place

OCTAVES: Final = 16
"""Of uses; the last one has the rest."""
UNSURE: Final = 0.5
EXPECTED: Final = 4.0
"""So many uses are thought to have come as promised."""


class Places:
    """The last uses of all places.

    Args:
        size: how many are remembered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: list[Place | None] = [None] * size
        self._uses, self._time, self._at, self._after = (array("q", bytes(8 * size)) for _ in range(4))
        self._count = 0
        self._off = [1.0] * OCTAVES

    def used(self, place: Place, now: int) -> None:
        """A request forks off at a place. Cost: O(1)."""
        before = place.serial % self._size
        if place.serial >= 0 and self._places[before] is place:
            self._after[before] = now - place.last
            self._places[before] = None  # its next use is another record
        place.uses += 1
        place.last = now
        place.serial = self._count
        slot = self._count % self._size
        self._count += 1
        self._places[slot] = place
        self._uses[slot], self._time[slot], self._at[slot], self._after[slot] = place.uses, now - place.first, now, -1

    def learn(self, now: int, usual: float) -> Iterator[None]:
        """Learn anew how far the rates are off, in slices: one at each step. Cost: a few passes in numpy over the uses."""
        count = min(self._count, self._size)
        if count == 0:
            return
        uses, time, at, after = (
            np.frombuffer(kept, np.int64)[:count].copy() for kept in (self._uses, self._time, self._at, self._after)
        )
        yield
        age = np.where(after >= 0, after, now - at)
        begin = time + usual + 1.0
        promised = (uses + UNSURE) * np.log((begin + age) / begin)
        yield
        octave = np.minimum(np.log2(uses).astype(np.int64) + 1, OCTAVES - 1)
        came = np.bincount(octave[after >= 0], minlength=OCTAVES)
        due = np.bincount(octave, promised, OCTAVES)
        self._off = ((came + EXPECTED) / (due + EXPECTED)).tolist()

    def worth(self, octave: i64, uses: float, time: float, age: i64, usual: float) -> float:
        """The rate at which a place is used that was used so often in so many ticks, and not for `age`. Cost: O(1)."""
        return self._off[octave] * (uses + UNSURE) / (time + float(age) + usual + 1.0)
