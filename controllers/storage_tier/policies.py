"""Policies: when to prefetch, how long a request waits for it, and how fast and how much is written to the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unified_tree.inputs.arguments import integer, number
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError


class PrefetchMode(Enum):
    """When a request stops waiting for its prefetch: at the first `prefetched`, after a time-out, or at the end."""

    BEST_EFFORT = "best_effort"
    TIMEOUT = "timeout"
    WAIT_COMPLETE = "wait_complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchPolicy:
    """How prefetches are made.

    Attributes:
        mode: when a request stops waiting; what has arrived by then is used.
        min_tokens: minimum number of tokens missing on device and host for a prefetch.
        max_host_share: maximum share of every host pool for open prefetches.
        base_s, per_token_s: with TIMEOUT, how long a request waits, from the call of `prefetch` on.
        batch_pages: pages per read; a prefetch can be stopped between two reads.
        grace_s: how long to wait for a stopped prefetch, so that what it has read is not lost.
        room_pages: prefix pages for which host pages are allocated first; after these were read, for as many as have been read
            so far. So a stopped prefetch has evicted little more than it brings.
        max_open: maximum number of prefetches that run or wait for another; further ones are dropped and counted.
        max_outcomes: maximum number of ended prefetches whose outcome is kept; beyond that the oldest is dropped and counted.
        failed_pause_s: a page that the store listed and did not give is not asked for again for so long, unless it is written
            anew; 0 asks again at once.
        max_failed_pages: maximum number of such pages that are remembered; beyond that the oldest is forgotten. One takes about
            200 bytes.
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
    failed_pause_s: float = 10.0
    max_failed_pages: int = 1 << 16

    def __post_init__(self) -> None:
        if not isinstance(self.mode, PrefetchMode):
            raise ConfigurationError(f"mode must be a PrefetchMode, not {repr_of(self.mode)}")
        for name in ("min_tokens", "batch_pages", "room_pages", "max_open", "max_outcomes", "max_failed_pages"):
            integer(getattr(self, name), name, ConfigurationError, minimum=1)
        for name in ("base_s", "per_token_s", "grace_s", "failed_pause_s"):
            number(getattr(self, name), name, ConfigurationError)
        if number(self.max_host_share, "max_host_share", ConfigurationError, positive=True) > 1:
            raise ConfigurationError(f"max_host_share must be 1 or less, not {self.max_host_share}")

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
    """How boundaries on host are written to the store.

    Attributes:
        max_waiting: maximum number of waiting boundaries; beyond that the oldest is dropped and counted.
        bytes_per_s: maximum write rate; None for no limit.
        max_open: boundaries that are written at a time, and locked meanwhile.
        batch_pages: pages per write.
        known_pages: how many pages are remembered as stored; and of how many the digests are kept by prefix, so that what
            continues one is hashed from its end on.
        recheck_s: after how long a remembered page is queried again; a store evicts unread pages, even the beginning of a long
            prefix.
        retry_s: boundaries that a fault kept from the store are tried again after so long; at most `max_waiting` of them are
            remembered. None forgets them. Several ranks forget them, for each one's store fails for itself.
    """

    max_waiting: int = 1024
    max_open: int = 1
    bytes_per_s: float | None = None
    batch_pages: int = 64
    known_pages: int = 1 << 18
    recheck_s: float = 600.0
    retry_s: float | None = 10.0

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_open", "batch_pages", "known_pages"):
            integer(getattr(self, name), name, ConfigurationError, minimum=1)
        number(self.recheck_s, "recheck_s", ConfigurationError)
        for name in ("retry_s", "bytes_per_s"):
            if getattr(self, name) is not None:
                number(getattr(self, name), name, ConfigurationError, positive=True)
