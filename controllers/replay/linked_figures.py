"""What the prefix linker beside the cache of one row did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFigures:
    """Token figures as in RowResult; bytes are those of true page sizes, on one rank.

    Attributes:
        hit_tokens: of the row's hit tokens, those that were retrieved for the very request.
        lookups: begun; `found_tokens` what they found, that which the device had itself included.
        retrieved_tokens, retrieved_bytes: of retrieves that succeeded; `stored_tokens`, `stored_bytes`: of stores.
        fetch_wait_s: virtual seconds from arrival to the end of the wait, summed over the requests that `waited`.
        late: retrieves that were not waited for to the end.
        no_room: retrieves that were not begun for want of device pages.
        dropped: stores that were not begun.
        errors: retrieves and stores that failed.
    """

    hit_tokens: int
    lookups: int
    found_tokens: int
    retrieved_tokens: int
    retrieved_bytes: int
    stored_tokens: int
    stored_bytes: int
    fetch_wait_s: float
    waited: int
    late: int
    no_room: int
    dropped: int
    errors: int

    def record(self, device_hit_tokens: int, prompt_tokens: int) -> dict[str, Any]:
        """The figures as flat JSON values, under the names that those of a store have where they mean the same."""
        share = 1 / prompt_tokens if prompt_tokens else 0.0
        return {
            "hit_rate_device": device_hit_tokens * share,
            "hit_rate_storage": self.hit_tokens * share,
            "lookups": self.lookups,
            "found_tokens": self.found_tokens,
            "prefetched_tokens": self.retrieved_tokens,
            "prefetched_gib": self.retrieved_bytes / GIB,
            "persisted_tokens": self.stored_tokens,
            "persisted_gib": self.stored_bytes / GIB,
            "fetch_wait_s": self.fetch_wait_s,
            "waited_for_storage": self.waited,
            "late_retrieves": self.late,
            "retrieves_without_room": self.no_room,
            "dropped_stores": self.dropped,
            "storage_errors": self.errors,
        }
