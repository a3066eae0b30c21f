"""What the scheduler side asks of the workers' stores, and what they answer. All of it is pickled.

Every message holds the prompt itself, and the worker hashes it: a worker keeps nothing between two messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMessage:
    """A job for the store of every worker.

    Attributes:
        ticket: which the answers name.
        key: the prompt.
        weights_version: under which its pages are stored.
    """

    ticket: int
    key: Key
    weights_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp(StoreMessage):
    """What is there of a prompt? The fields are those of `FoundPrefix`. Answer: `LookedUp`."""

    base_pages: int
    limit_pages: int
    resumable_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """What a worker's store has of a prompt.

    Attributes:
        lengths, listed_pages, is_unanswered: see `FoundPrefix`.
        is_away, outages: see `StoreJobs`.
    """

    lengths: NDArray[np.bool_]
    listed_pages: int
    is_unanswered: bool
    is_away: bool
    outages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPages(StoreMessage):
    """Read the prompt's pages from `begin` on into host pages, by component. Answer: by component how many pages came before
    the first that did not."""

    begin: dict[str, int]
    pages: dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePages(StoreMessage):
    """Store a boundary from host pages; paths from the beginning, windows and states before its end. Answer: `Written`.

    Attributes:
        pages: see `PersistJob`.
    """

    pages: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a worker stored; see `PersistJob`."""

    pages: int
    size_bytes: int
    failure: str | None
    is_done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one worker has to say to a ticket.

    Attributes:
        content: the message's answer; None if the job broke off.
        error: why it did.
    """

    content: LookedUp | dict[str, int] | Written | None = None
    error: str | None = None
