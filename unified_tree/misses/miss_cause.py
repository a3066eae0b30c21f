"""Why tokens of a prompt had to be computed."""

from __future__ import annotations

from enum import IntEnum


class MissCause(IntEnum):
    """Why a token of a prompt was computed. Each has exactly one cause.

    NEVER_SEEN: no prompt with this prefix was served, as far as is remembered.
    DIVERGED: the prefix up to `Miss.begin` was seen, but other tokens came behind it.
    EVICTED: it could have been resumed from; `Miss.eviction` says which pool was short, when, and for whom.
    NEVER_SAVED: the path is there (or was), but no window or state was ever saved at or behind these tokens.
    OTHER_NAMESPACE: the same tokens are known in another namespace.
    OTHER_WEIGHTS: they were known before the namespace was invalidated.
    PAGE_REMAINDER: the end of a prompt that fills no whole page.
    SAVE_GRID: behind the last length at which a state can be saved.
    LOAD_REFUSED: on host, but not loaded: `Miss.detail` says whether that would have cost more, or found no room.
    LOAD_FAILED: on host, but a load of it failed.
    IN_FLIGHT: another request computes these tokens now.
    PREFETCH_GIVEN_UP: a store had them, but the request waited no longer.
    LAST_TOKEN: the last token of a prompt is always computed.
    UNKNOWN: evicted, and remembered without its tokens: which of them the prompt has is not known any more.
    STORE_FAILED: a store listed them and did not give them, or did not say whether it has them; see `Miss.detail`.
    """

    NEVER_SEEN = 0
    DIVERGED = 1
    EVICTED = 2
    NEVER_SAVED = 3
    OTHER_NAMESPACE = 4
    OTHER_WEIGHTS = 5
    PAGE_REMAINDER = 6
    SAVE_GRID = 7
    LOAD_REFUSED = 8
    LOAD_FAILED = 9
    IN_FLIGHT = 10
    PREFETCH_GIVEN_UP = 11
    LAST_TOKEN = 12
    UNKNOWN = 13
    STORE_FAILED = 14

    @property
    def label(self) -> str:
        """Its name as metrics and pages show it."""
        return self.name.lower()
