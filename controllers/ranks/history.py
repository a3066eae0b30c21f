"""A digest of a rank's history, compared with the others' in every tick."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.message import DIGEST_BYTES
from unified_tree.errors import DivergenceError


class History:
    """One rank's history: how many messages it sent, and a digest of the events before each.

    Args:
        rank: this one's place among the views.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sent = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def record(self, what: bytes) -> None:
        """Add an event to the history. Events are delimited, so that "ab" and "c" differ from "a" and "bc". Cost: O(bytes)."""
        self._hash.update(len(what).to_bytes(8, "little"))
        self._hash.update(what)

    def write(self, views: NDArray[np.void]) -> None:
        """Write this rank's view into a message."""
        views[self._rank]["tick"] = self._sent
        views[self._rank]["history"] = np.frombuffer(self._hash.copy().digest(), np.uint8)
        self._sent += 1

    def check(self, views: NDArray[np.void], tick: int) -> None:
        """Raise DivergenceError, on all ranks alike, unless all views are equal; it names the ranks that differ."""
        seen: dict[bytes, list[int]] = {}
        for rank, view in enumerate(views):
            seen.setdefault(view.tobytes(), []).append(rank)
        if len(seen) == 1:
            return
        largest = max(seen.values(), key=len)
        others = [rank for rank in range(len(views)) if rank not in largest]
        ticks = sorted({int(view["tick"]) for view in views})
        if len(ticks) > 1:
            raise DivergenceError(
                f"tick {tick}: messages of ranks {others} and {largest} are not of the same tick but of {ticks}: all must call "
                "tick equally often, and nothing else may use their process group"
            )
        raise DivergenceError(
            f"tick {tick}: the history of ranks {others}, as sent in tick {ticks[0]}, differs from that of {largest}: they did "
            "not do the same. Look for what depends on a rank's own time, hash seed or results, and start all of them anew"
        )
