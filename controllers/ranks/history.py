"""A digest of a rank's history, compared with the others' in every tick."""

from __future__ import annotations

from hashlib import blake2b

from unified_tree.controllers.ranks.message import DIGEST_BYTES, TICK_BYTES, VIEW_BYTES, neutral
from unified_tree.terms.errors import DivergenceError


class History:
    """One rank's history: how many messages it sent, and a digest of the events before each.

    Args:
        rank: this one's place among the views.
        ranks: how many there are.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._ranks = ranks
        self._before = neutral(rank * VIEW_BYTES)
        self._behind = neutral((ranks - 1 - rank) * VIEW_BYTES)
        self._sent = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._digest: bytes | None = None

    def record(self, what: bytes) -> None:
        """Add an event to the history. Events are delimited, so that "ab" and "c" differ from "a" and "bc". Cost: O(bytes)."""
        self._hash.update(len(what).to_bytes(8, "little") + what)
        self._digest = None

    def views(self) -> bytes:
        """The views of the next message: this rank's, among neutral ones."""
        if self._digest is None:
            self._digest = self._hash.digest()
        sent = self._sent.to_bytes(TICK_BYTES, "little")
        self._sent += 1
        return b"".join((self._before, sent, self._digest, self._behind))

    def check(self, views: bytes, tick: int) -> None:
        """Raise DivergenceError, on all ranks alike, unless all views are equal; it names the ranks that differ."""
        if views == views[:VIEW_BYTES] * self._ranks:
            return
        by_rank = [views[begin : begin + VIEW_BYTES] for begin in range(0, len(views), VIEW_BYTES)]
        seen: dict[bytes, list[int]] = {}
        for rank, view in enumerate(by_rank):
            seen.setdefault(view, []).append(rank)
        largest = max(seen.values(), key=len)
        others = [rank for rank in range(self._ranks) if rank not in largest]
        ticks = sorted({int.from_bytes(view[:TICK_BYTES], "little") for view in by_rank})
        if len(ticks) > 1:
            raise DivergenceError(
                f"tick {tick}: messages of ranks {others} and {largest} are not of the same tick but of {ticks}: all must call "
                "tick equally often, and nothing else may use their process group"
            )
        raise DivergenceError(
            f"tick {tick}: the history of ranks {others}, as sent in tick {ticks[0]}, differs from that of {largest}: they did "
            "not do the same. Look for what depends on a rank's own time, hash seed or results, and start all of them anew"
        )
