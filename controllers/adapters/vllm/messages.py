"""The messages of an engine step: from the scheduler side to the workers and their stores, and their answers; all pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCopies:
    """Copies of one group: vLLM's block `blocks[i]` and host page `pages[i]` hold the same."""

    group: int
    blocks: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Copies of one request, of the same direction, reported as a whole. A lost load has blocks and no pages: it fails."""

    job_id: int
    request_id: str
    copies: tuple[PageCopies, ...]
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One engine step: the saves read blocks that the step completes, the loads write blocks that nothing else uses. The
    messages are for the workers' stores. `reset_job` asks whether vLLM slept for each of the last `resets` while the weights
    stayed; the job fails if not."""

    saves: tuple[Job, ...] = ()
    loads: tuple[Job, ...] = ()
    messages: tuple[StoreMessage, ...] = ()
    reset_job: int | None = None
    resets: int = 0


@dataclass(slots=True, kw_only=True)
class StepReport:
    """Jobs that ended: how many workers finished each, and which of them failed somewhere; and what their stores answered."""

    finished: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    answers: dict[int, list[Answer]] = field(default_factory=dict)

    def add(self, job_id: int, *, failed: bool = False) -> None:
        """This worker ended a job."""
        self.finished[job_id] = self.finished.get(job_id, 0) + 1
        if failed:
            self.failed.add(job_id)

    def merge(self, other: StepReport) -> StepReport:
        """This report with another worker's added."""
        for job_id, count in other.finished.items():
            self.finished[job_id] = self.finished.get(job_id, 0) + count
        self.failed |= other.failed
        for ticket, answers in other.answers.items():
            self.answers.setdefault(ticket, []).extend(answers)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMessage:
    """A job for the store of every worker. It holds the prompt itself, and the worker hashes it: a worker keeps nothing between
    two messages.

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
        lengths, listed_pages, silent_pages, is_unanswered: see `FoundPrefix`.
        is_away, outages: see `StoreJobs`.
    """

    lengths: NDArray[np.bool_]
    listed_pages: int
    silent_pages: int
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
