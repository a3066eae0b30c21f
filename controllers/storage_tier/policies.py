"""When a prefetch is worth starting and when a request stops waiting for it; how fast and how much is written to the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unified_tree.errors import ConfigurationError


class PrefetchMode(Enum):
    """When a request stops waiting for its prefetch: as soon as it is first asked for, after a time, or when all is there."""

    BEST_EFFORT = "best_effort"
    TIMEOUT = "timeout"
    WAIT_COMPLETE = "wait_complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchPolicy:
    """How prefetches are made.

    Attributes:
        mode: when a request gives up waiting; what has arrived by then is used.
        min_tokens: a prompt lacks at least so many tokens on device and host, or nothing is asked.
        max_host_share: of every host pool, the share that open prefetches may hold.
        base_s, per_token_s: with TIMEOUT, how long a request waits, from the call of `prefetch` on.
        batch_pages: pages a read asks for at once; a prefetch can be stopped between two reads.
        grace_s: how long a stopped prefetch is waited for, so that what it has read is not lost.
        room_pages: of a prefix, for which host pages are taken at first; once these have been read, for as many as have been
            read so far. So a prefetch that gives up has evicted little more than it brings.
        max_open: prefetches that may be under way or wait for another; beyond that none is begun, which is counted.
        max_outcomes: prefetches whose outcome is kept for the request to ask about; beyond that the oldest is forgotten and
            counted.
    """

    mode: PrefetchMode = PrefetchMode.TIMEOUT
    min_tokens: int = 256
    max_host_share: float = 0.5
    base_s: float = 1.0
    per_token_s: float = 0.00025
    batch_pages: int = 64
    grace_s: float = 0.1
    room_pages: int = 256
    max_open: int = 4096
    max_outcomes: int = 4096

    def __post_init__(self) -> None:
        if not isinstance(self.mode, PrefetchMode):
            raise ConfigurationError(f"mode must be a PrefetchMode, not {self.mode!r}")
        for name in ("min_tokens", "batch_pages", "room_pages", "max_open", "max_outcomes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is one or more, not {getattr(self, name)}")
        if not 0 < self.max_host_share <= 1:
            raise ConfigurationError(f"max_host_share is a share above 0 up to 1, not {self.max_host_share}")
        if min(self.base_s, self.per_token_s, self.grace_s) < 0:
            raise ConfigurationError(f"times are zero or more, not {self.base_s}, {self.per_token_s}, {self.grace_s}")

    def patience_s(self, tokens: int) -> float:
        """How long a request waits for so many missing tokens.

        >>> PrefetchPolicy(base_s=1.0, per_token_s=0.001).patience_s(500)
        1.5
        """
        match self.mode:
            case PrefetchMode.BEST_EFFORT:
                return 0.0
            case PrefetchMode.TIMEOUT:
                return self.base_s + self.per_token_s * tokens
            case PrefetchMode.WAIT_COMPLETE:
                return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistPolicy:
    """How what is on host goes to the store.

    Attributes:
        max_waiting: boundaries that may wait; beyond that the oldest is forgotten and counted.
        bytes_per_s: how fast the store is written, at most; None for as fast as it goes.
        batch_pages: pages a write hands over at once.
        known_pages: how many pages are remembered as stored.
        recheck_s: how long that is believed; a store evicts what is not read, also the beginning of a long prefix.
    """

    max_waiting: int = 1024
    bytes_per_s: float | None = None
    batch_pages: int = 64
    known_pages: int = 1 << 18
    recheck_s: float = 600.0

    def __post_init__(self) -> None:
        if min(self.max_waiting, self.batch_pages, self.known_pages) < 1:
            raise ConfigurationError("max_waiting, batch_pages and known_pages are one or more")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise ConfigurationError(f"bytes_per_s must be positive or None, not {self.bytes_per_s}")
