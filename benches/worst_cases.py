"""The family of worst cases: which there are, and measuring them, each size in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benches.slope import slope
from benches.worst_case import Figures, WorstCase, live
from benches.worst_collections import FullCollection, MemoryOfNodes
from benches.worst_evictions import (
    AcknowledgeAboveHost,
    EvictAfterHits,
    EvictAfterInvalidation,
    EvictBehindLocks,
    EvictStateOfSessions,
    LastStateOfSiblings,
    ReclaimChain,
    ReclaimLeaves,
)
from benches.worst_paths import CheckChain, GrowWideNode, RelockAfterInvalidation, StatesAlongNode
from benches.worst_requests import AgentRequests
from benches.worst_windows import MatchThroughGap, WindowOfPrompt, WindowOfTokens

WORST_CASES: dict[str, type[WorstCase]] = {
    "worst_evict_after_hits": EvictAfterHits,
    "worst_evict_behind_locks": EvictBehindLocks,
    "worst_evict_after_invalidation": EvictAfterInvalidation,
    "worst_evict_session_state": EvictStateOfSessions,
    "worst_last_state_of_siblings": LastStateOfSiblings,
    "worst_window_of_prompt": WindowOfPrompt,
    "worst_window_of_tokens": WindowOfTokens,
    "worst_match_through_gap": MatchThroughGap,
    "worst_acknowledge_above_host": AcknowledgeAboveHost,
    "worst_reclaim_leaves": ReclaimLeaves,
    "worst_reclaim_chain": ReclaimChain,
    "worst_relock": RelockAfterInvalidation,
    "worst_states_along_node": StatesAlongNode,
    "worst_check_chain": CheckChain,
    "worst_insert_wide": GrowWideNode,
    "worst_agent_requests": AgentRequests,
    "worst_gc": FullCollection,
    "worst_memory": MemoryOfNodes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is measured, and how long that may take.

    Attributes:
        size_count: how many of a case's sizes, from the smallest.
        quick: tiny sizes instead, once each, and nothing outside the repository is read.
        budget_s: processor time for the calls of one life, after which it is cut short.
        patience_s: time for one size of one case, after which it is given up and larger ones are not tried.
    """

    size_count: int = 3
    quick: bool = False
    budget_s: float = 4.0
    patience_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One variant of a case over all its sizes.

    Attributes:
        figures: by size, as far as it came.
        missing: why there are not more; empty if there are all.
    """

    operation: str
    variant: str
    figures: tuple[Figures, ...]
    missing: str = ""

    @property
    def case(self) -> type[WorstCase]:
        """What was asked."""
        return WORST_CASES[self.operation]

    @property
    def slope_median(self) -> float | None:
        """Of the medians over size."""
        return slope([(each.size, each.median) for each in self.figures])

    @property
    def slope_worst(self) -> float | None:
        """Of the worst calls over size."""
        return slope([(each.size, each.worst) for each in self.figures])


def measure_worst(operations: Sequence[str], limits: Limits, cpu: int) -> Iterator[Growth]:
    """Measure the named cases in all their variants; each as soon as it is there."""
    for operation in operations:
        if not limits.quick:
            WORST_CASES[operation].prepare()
        for variant in WORST_CASES[operation].variants:
            yield _growth(operation, variant, limits, cpu)


def _growth(operation: str, variant: str, limits: Limits, cpu: int) -> Growth:
    case = WORST_CASES[operation]
    sizes = case.smoke_sizes if limits.quick else case.sizes[: limits.size_count]
    figures: list[Figures] = []
    for size in sizes:
        reply = _in_a_process(operation, variant, size, limits, cpu)
        if "missing" in reply:
            return Growth(
                operation=operation, variant=variant, figures=tuple(figures), missing=f"at {size:,}: {reply['missing']}"
            )
        figures.append(Figures(**reply))
    return Growth(operation=operation, variant=variant, figures=tuple(figures))


def _in_a_process(operation: str, variant: str, size: int, limits: Limits, cpu: int) -> dict[str, Any]:
    """Measure one size in a fork, so that it starts with this process's memory and can be given up."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _answer(writing, operation, variant, size, limits, cpu)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], None if limits.quick else limits.patience_s)[0]:
            return {"missing": f"given up after {limits.patience_s:.0f} s"}
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            reply: dict[str, Any] = json.loads(pipe.read() or b'{"missing": "the process died"}')
        return reply
    finally:
        os.kill(child, signal.SIGKILL)  # it has answered, or is not waited for any longer
        os.close(reading)
        os.waitpid(child, 0)


def _answer(writing: int, operation: str, variant: str, size: int, limits: Limits, cpu: int) -> None:
    """The fork's whole life: measure, and write what came of it."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {cpu})
    try:
        budget_s = None if limits.quick else limits.budget_s
        reply: dict[str, Any] = asdict(live(WORST_CASES[operation], variant, size, budget_s=budget_s, smoke=limits.quick))
    except Exception as error:  # the other side of a process boundary: goes into the table
        reply = {"missing": f"{type(error).__name__}: {error}"}
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(json.dumps(reply).encode())
