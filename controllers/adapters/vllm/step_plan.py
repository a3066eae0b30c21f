"""What the scheduler side tells the workers with an engine step, and what they answer. All of it is pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.vllm.store_messages import Answer, StoreMessage


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
