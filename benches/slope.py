"""How a figure grows with size: the exponent of the power law that fits it best, and the percentiles it is taken of."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of log(figure) over log(size) by least squares, of `(size, figure)`; 0 is flat, 1 linear, 2 quadratic.

    None if there are fewer than two sizes. Figures of zero count as the smallest that is not, or as 1.

    >>> slope([(10, 3.0), (100, 30.0), (1000, 300.0)])
    1.0
    """
    floor = min((figure for _, figure in points if figure > 0), default=1.0)
    logs = [(log(size), log(max(figure, floor))) for size, figure in points]
    if len({x for x, _ in logs}) < 2:
        return None
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return round(rise / sum((x - mean_x) ** 2 for x, _ in logs), 3)


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest of the sorted figures that at least this share of them does not exceed (nearest rank).

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.999)
    (2, 4)
    """
    return ascending[max(0, ceil(share * len(ascending)) - 1)]
