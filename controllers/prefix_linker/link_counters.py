"""The counters of a link."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class LinkCounters:
    """Counters since the link was created.

    Attributes:
        lookups, found_tokens: prompts looked up, and the tokens found of them, including those that the cache had itself.
        retrieved_tokens, stored_tokens: of transfers that succeeded.
        retrieves_failed, retrieves_late, stores_failed: transfers.
        no_room: retrieves dropped for lack of device pages.
        stores_dropped: stores dropped because too many were running, or the peer was unreachable.
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
