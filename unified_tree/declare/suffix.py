"""The last tokens of a prefix that a window, of whatever kind, needs: two numbers, so that compiled code asks no coverage."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final

import numpy as np
from mypy_extensions import i64

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Suffix:
    """The tokens `[start(p), p)` that a boundary at `p` needs: from the multiple of a grid at or before `p - back_tokens` on.

    A sliding window goes back by its tokens, on a grid of one. A chunk goes back by nothing, on a grid of its size. `start`
    never falls as `p` grows.

    Attributes:
        most_tokens: how many tokens some boundary needs, at most.

    >>> Suffix(100).start(250), Suffix(0, 64).start(250), Suffix(0, 64).start(256)
    (150, 192, 256)
    >>> Suffix(100).until(250), Suffix(0, 64).until(250), Suffix(0, 64).until(256)
    (350, 256, 256)
    """

    __slots__ = ("back_tokens", "grid_tokens", "most_tokens")

    def __init__(self, back_tokens: int, grid_tokens: int = 1) -> None:
        self.back_tokens: Final[i64] = back_tokens
        self.grid_tokens: Final[i64] = grid_tokens
        self.most_tokens: Final[i64] = back_tokens + grid_tokens - 1

    def start(self, length: int) -> int:
        """The first token that a boundary at `length` needs; `length` itself if it needs none."""
        first: i64 = length - self.back_tokens
        if self.grid_tokens > 1:
            first -= first % self.grid_tokens
        return first if first > 0 else 0

    def starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """`start` of each length."""
        first = lengths - self.back_tokens
        if self.grid_tokens > 1:
            first -= first % self.grid_tokens
        return np.maximum(first, 0)

    def until(self, position: int) -> int:
        """The first length that needs no token before `position`."""
        grid = self.grid_tokens
        end: i64 = position
        if grid > 1:
            end += -end % grid
        return end + self.back_tokens

    def free_before(self, length: int, page_size: int) -> int:
        """The last length up to `length`, of whole pages, that needs no token; 0 if only that needs none."""
        if self.back_tokens:
            return 0
        grid = lcm(self.grid_tokens, page_size)
        return length // grid * grid

    def pages(self, length: int, page_size: int) -> int:
        """How many pages a boundary at `length`, the end of a page, needs."""
        return length // page_size - self.start(length) // page_size
