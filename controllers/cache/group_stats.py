"""Statistics of groups of namespaces, and of what they share; interpreted, so that they can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRoomStats:
    """The memory of a group: pages of one pool, or blocks of a budget.

    Attributes:
        used: held by the tree, locked or not; what running requests hold and have not published is not counted.
        share: what it may count on.
        cap: what of it may be evictable at most; None for no limit.
        victims: its values that were evicted from there.
    """

    used: int
    share: int
    cap: int | None
    victims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStats:
    """One group of namespaces; all that no group names are the group without a name.

    Attributes:
        requests, prompt_tokens, hit_tokens, hints: as in CacheStats.
        rooms: by name, such as "the device pool of full".
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int
    hints: Mapping[tuple[str, str], int]
    rooms: Mapping[str, TenantRoomStats]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingStats:
    """What namespaces share.

    Attributes:
        shown_pages: pages of prompts of which it is remembered which tenants have shown them; common_pages: those that are
            common to all.
        common_tokens: prompt tokens that were common when their request came; common_hit_tokens: those of them that it hit.
    """

    shown_pages: int
    common_pages: int
    common_tokens: int
    common_hit_tokens: int
