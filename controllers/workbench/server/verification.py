"""Whether a replay's pages hold bytes."""

from __future__ import annotations

from enum import Enum

SHRUNK_PAGE_BYTES = 64


class Verification(Enum):
    """Whether pages hold bytes that are compared: none, 64 a page, or as many as the components say."""

    OFF = "off"
    SHRUNK = "shrunk"
    FULL = "full"

    def page_bytes(self, true_bytes: int) -> int:
        """Bytes of a page wherever pages really move, given those of the model's."""
        return true_bytes if self is Verification.FULL else SHRUNK_PAGE_BYTES
