"""One open ticket: this rank's vote, and which of its lengths are being voted on."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Decision
from unified_tree.controllers.ranks.message import DIGEST_BYTES, FLAGS, OPENED, VOTED, WANTED, with_complement
from unified_tree.terms.errors import TicketError


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

    def slot(self) -> bytes:
        """This rank's vote, as a message says it. Cost: O(candidates)."""
        size = self._candidates // 8
        flags = ~FLAGS & 0xFF | OPENED | (WANTED if self.wanted else 0)
        if self._lengths is None:
            return bytes((flags,)) + self._digests + bytes(size)
        bits = np.packbits(self._lengths[self._low : self._high + 1], bitorder="little").tobytes()
        return bytes((flags | VOTED,)) + self._digests + bits.ljust(size, b"\0")

    def read(self, lengths_voted: bytes) -> Decision | None:
        """The decision where all ranks have voted, given the AND of their lengths; None if shorter ones must be voted on."""
        low, high = self._low, self._high
        bits = np.frombuffer(lengths_voted, np.uint8)
        common = np.unpackbits(bits, count=high + 1 - low, bitorder="little").astype(np.bool_)
        if not common.any():
            self._high = low - 1
            return None
        lengths = np.zeros(self.page_count + 1, np.bool_)
        lengths[low : high + 1] = common
        lengths[0] = True
        return Decision(ticket=self.number, lengths=lengths)
