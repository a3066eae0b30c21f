"""One open ticket: this rank's vote, and which of its lengths are being voted on."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Decision
from unified_tree.controllers.ranks.message import DIGEST_BYTES, OPENED, VOTED, WANTED, with_complement
from unified_tree.errors import TicketError


class Ticket:
    """A ticket that was opened here.

    Its lengths are voted on in windows, the longest first; all ranks move to the next window in the same tick.

    Args:
        number: counted from 0.
        identity: its subject.
        page_count: its longest length.
        candidates: lengths a window.
    """

    __slots__ = ("_candidates", "_digests", "_high", "_lengths", "number", "page_count", "wanted")

    def __init__(self, number: int, identity: bytes, page_count: int, candidates: int) -> None:
        self.number = number
        self.page_count = page_count
        self.wanted = True
        said = blake2b(f"{number} {page_count} ".encode() + identity, digest_size=DIGEST_BYTES).digest()
        self._digests = with_complement(said)
        self._candidates = candidates
        self._high = page_count
        self._lengths: NDArray[np.bool_] | None = None

    def propose(self, lengths: NDArray[np.bool_]) -> None:
        """Store this rank's vote. Raises TicketError for a second one, and for an invalid set of lengths."""
        if self._lengths is not None:
            raise TicketError(f"lengths were proposed for ticket {self.number} before")
        if lengths.dtype != np.bool_ or lengths.ndim != 1 or not 0 < len(lengths) <= self.page_count + 1 or not lengths[0]:
            raise TicketError(
                f"ticket {self.number} wants a bool for each of 0 … {self.page_count} pages, the first true, not "
                f"{lengths.dtype} of shape {lengths.shape}"
            )
        self._lengths = np.zeros(self.page_count + 1, np.bool_)
        self._lengths[: len(lengths)] = lengths

    @property
    def _low(self) -> int:
        return max(0, self._high + 1 - self._candidates)

    def write(self, slot: NDArray[np.void]) -> None:
        """Write this rank's vote into a message. Cost: O(candidates)."""
        voted = 0 if self._lengths is None else VOTED
        slot["flags"] = ~np.uint8(OPENED | VOTED | WANTED) | OPENED | voted | (WANTED if self.wanted else 0)
        slot["identity"] = self._digests[:DIGEST_BYTES]
        slot["complement"] = self._digests[DIGEST_BYTES:]
        slot["lengths"] = 0
        if self._lengths is not None:
            bits = np.packbits(self._lengths[self._low : self._high + 1], bitorder="little")
            slot["lengths"][..., : len(bits)] = bits

    def read(self, slot: NDArray[np.void]) -> Decision | None:
        """The decision in a slot in which all ranks have voted; None if shorter lengths must be voted on."""
        low, high = self._low, self._high
        common = np.unpackbits(slot["lengths"], count=high + 1 - low, bitorder="little").astype(np.bool_)
        if not common.any():
            self._high = low - 1
            return None
        lengths = np.zeros(self.page_count + 1, np.bool_)
        lengths[low : high + 1] = common
        lengths[0] = True
        return Decision(ticket=self.number, lengths=lengths)
