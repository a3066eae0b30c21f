"""One family of errors: what was wrong, with which value, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.terms.tier import Tier


class UnifiedTreeError(Exception):
    """Base class of every error this library raises on purpose."""


class InvalidKeyError(UnifiedTreeError, ValueError):
    """A key is not a one-dimensional sequence of non-negative integers, or its namespace is not a string."""


class ConfigurationError(UnifiedTreeError, ValueError):
    """A component, a composition, a page size, a window or a policy cannot be used as given."""


class PageError(UnifiedTreeError, ValueError):
    """A page id is out of range, given twice, or owned by someone else."""


class InsertError(UnifiedTreeError, ValueError):
    """The pages or states given to an insert do not fit its key or what the tree holds."""


class StaleBoundaryError(UnifiedTreeError, LookupError):
    """A boundary is no longer covered: what it needs was evicted, or its node was deleted."""


class ReceiptError(UnifiedTreeError, ValueError):
    """A receipt was released before, or belongs to another tree."""


class EffectError(UnifiedTreeError, ValueError):
    """An effect was acknowledged or aborted before, or belongs to another tree."""


class TransferError(UnifiedTreeError, RuntimeError):
    """A copy between device and host failed, was cancelled, or cannot be asked for; or its engine has stopped."""


class StorageError(UnifiedTreeError, RuntimeError):
    """A storage engine cannot do what it was asked: it was closed, does not know the pool, or its store failed."""


class LinkError(UnifiedTreeError, RuntimeError):
    """A prefix linker cannot do what it was asked: it was closed, or its peer cannot be reached or does not answer."""


class TicketError(UnifiedTreeError, ValueError):
    """A ticket was never opened or was proposed before, or a finished operation was counted before."""


class RankError(UnifiedTreeError, RuntimeError):
    """Ranks cannot agree any more: one is gone, or this one was closed. All ranks must be restarted together."""


class RankTimeoutError(RankError):
    """A rank did not send its message within the time-out."""


class DivergenceError(RankError):
    """Ranks diverged: they have different settings, another order of requests, or other results."""


class OutOfPagesError(UnifiedTreeError, MemoryError):
    """A pool has too few free and evictable pages for a request; nothing was changed.

    Attributes:
        component, tier: whose pool is short, and on which tier; None where memory itself ran out.
        needed, free, evictable, total: in pages; `total` is None for a pool without a limit.
    """

    def __init__(
        self,
        message: str,
        *,
        component: str | None = None,
        tier: Tier | None = None,
        needed: int = 0,
        free: int = 0,
        evictable: int = 0,
        total: int | None = None,
    ) -> None:
        super().__init__(message)
        self.component = component
        self.tier = tier
        self.needed = needed
        self.free = free
        self.evictable = evictable
        self.total = total


class LeaseError(UnifiedTreeError, ValueError):
    """A lease was released before, belongs to another cache, or does not hold what was asked of it."""


class TraceError(UnifiedTreeError, ValueError):
    """A trace cannot be replayed; the message starts with the file and the line number."""


def words_of(error: BaseException) -> str:
    """An error's type and message; of foreign code's whose message cannot be had, its type."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # foreign code, where a thread or a job must end all the same
        return name
