"""Page ids that no caller may give: negative, beyond all pools, twice, somebody else's, no integers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEGATIVE = (-1, -1, -1, -7, -(1 << 62))
ABSURD = (1 << 62, (1 << 63) - 1)


def spoil(rng: Random, ids: NDArray[np.int64], taken: Sequence[int], bound: int | None) -> NDArray[Any]:
    """The same pages but for one thing that is wrong with them.

    Args:
        ids: at least one.
        taken: pages the tree has elsewhere.
        bound: the pool's size, if the tree knows it.
    """
    spoilt = ids.copy()
    at = rng.randrange(ids.size)
    ways = ["negative", "negative", "absurd", "float", "bool", "nan"]
    ways += ["twice"] * (ids.size > 1) + ["taken"] * bool(taken) + ["beyond"] * (bound is not None)
    match rng.choice(ways):
        case "negative":
            spoilt[at] = rng.choice(NEGATIVE)
        case "absurd":
            spoilt[at] = rng.choice(ABSURD)
        case "beyond":
            assert bound is not None
            spoilt[at] = bound
        case "twice":
            spoilt[at] = spoilt[at - 1]
        case "taken":
            spoilt[at] = rng.choice(taken)
        case "float":
            return spoilt.astype(np.float64)
        case "nan":
            return np.full(ids.size, np.nan)
        case _:
            return np.ones(ids.size, np.bool_)
    return spoilt
