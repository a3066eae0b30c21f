"""What a link has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class LinkCounters:
    """Since the link was made.

    Attributes:
        lookups, found_tokens: prompts looked up, and what was found of them, that which the cache had itself included.
        retrieved_tokens, stored_tokens: of transfers that succeeded.
        retrieves_failed, retrieves_late, stores_failed: transfers.
        no_room: retrieves not begun for want of device pages.
        stores_dropped: not begun, because there were too many under way, or the peer was away.
    """

    lookups: int = 0
    found_tokens: int = 0
    retrieved_tokens: int = 0
    stored_tokens: int = 0
    retrieves_failed: int = 0
    retrieves_late: int = 0
    stores_failed: int = 0
    no_room: int = 0
    stores_dropped: int = 0
