"""A bound on the hits of any order of eviction where states are scarce, even if it knew the future, for `studies.sessions`.

A turn resumes from a state only if that was held since the last turn whose prompt passed its length, at least. So each turn has
candidates (a length, and since when), and at each moment no more states are held than there are pages beside those of the
running turns. Prices of pages by moment bound the hits from above, whatever the prices are (weak duality); they descend for
some rounds. Paths have room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 100
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Served:
    """One turn as it ran.

    Attributes:
        root: turns of other roots have no block in common with it.
        agent: whose turn it is.
    """

    begin_s: float
    end_s: float
    root: int
    blocks: Int64s
    agent: int


def ceiling(turns: Sequence[Served], states: int) -> int:
    """Blocks that at most hit, of turns in the order in which they began. Cost: a comparison of each two turns of a root."""
    at, lengths, since = _candidates(turns)
    if not at.size:
        return 0
    begins, ends = np.array([each.begin_s for each in turns]), np.sort([each.end_s for each in turns])
    running = np.arange(1, begins.size + 1) - np.searchsorted(ends, begins, side="right")
    room = np.maximum(0, states - running).astype(np.float64)
    firsts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    counts = np.diff(firsts, append=at.size)
    prices, best, step = np.zeros(begins.size), np.inf, lengths.mean() / 50
    for turn in range(ROUNDS):
        paid = np.append(0.0, np.cumsum(prices))
        gains = lengths - (paid[at] - paid[since])
        most = np.maximum.reduceat(gains, firsts)
        best = min(best, float(np.maximum(0.0, most).sum() + prices @ room))
        chosen = np.flatnonzero((gains == np.repeat(most, counts)) & (gains > 0))
        chosen = chosen[np.unique(at[chosen], return_index=True)[1]]
        held = np.zeros(begins.size + 1)
        np.add.at(held, since[chosen], 1.0)
        np.add.at(held, at[chosen], -1.0)
        prices = np.maximum(0.0, prices + step / (1 + turn / 20) * (np.cumsum(held)[:-1] - room))
    return int(best)


def _candidates(turns: Sequence[Served]) -> tuple[Int64s, Int64s, Int64s]:
    """Which turn could resume at which length if a state is held since which turn; by turn, the longest last.

    States are saved where a prompt ended, and where one left the path of another.
    """
    found: list[tuple[int, int, int]] = []
    roots: dict[int, list[tuple[int, Int64s, int]]] = {}
    for i, turn in enumerate(turns):
        before = roots.setdefault(turn.root, [])
        common = [_common(blocks, turn.blocks) for _, blocks, _ in before]
        ends = {blocks.size for (_, blocks, _), same in zip(before, common, strict=True) if same == blocks.size}
        forks = {fork for (_, _, fork), same in zip(before, common, strict=True) if fork <= same}
        saved, longest = np.array(sorted(ends | forks), np.int64), 0
        for (earlier, _, _), same in zip(reversed(before), reversed(common), strict=True):
            fitting = int(np.searchsorted(saved, same, side="right"))
            if fitting and saved[fitting - 1] > longest:
                longest = int(saved[fitting - 1])
                found.append((i, longest, earlier))
        before.append((i, turn.blocks, max(common, default=0)))
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _common(one: Int64s, other: Int64s) -> int:
    """How many blocks two prompts begin with alike."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size
