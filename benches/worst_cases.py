"""The family of worst cases: which there are, measuring them, each size in a process of its own, and what is said of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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


FLAT_SLOPE = 0.35
NEAR = 20.0
"""The library aims at slopes up to FLAT_SLOPE, and at a p99.9 of up to NEAR medians."""
HEAD = (
    f"{'worst case':<31}{'variant':<17}{'components':<17}{'page':>5} |{'size':>10} {'':<15}{'calls':>7} |"
    f"{'median':>11}{'p99.9':>11}{'worst':>11} {'unit':<11}{'p99.9/med':>10} | slopes of median and worst"
)
NOTE = (
    "Worst cases: single calls in sequence, each timed alone by the processor's time, at several sizes. worst is the largest "
    "that every life of the tree had, so that one disturbance does not count. slope is that of log(figure) over log(size): "
    f"0 is flat, 1 is linear; aimed at: {FLAT_SLOPE} and below, with p99.9 within {NEAR:.0f} medians. Bytes and collections "
    "are no calls that follow one another; look at their figures. The collector rests while other calls are timed."
)


def worst_preamble() -> str:
    """The lines over the table."""
    return "\n".join(["", *textwrap.wrap(NOTE, 120), "", HEAD])


def lines_of(growth: Growth) -> str:
    """A line a size; the slopes stand in the last, and a reason in one of its own."""
    case = growth.case
    lines = []
    for figures in growth.figures:
        ratio = f"{figures.ratio:.1f}" if figures.ratio is not None else ""
        lines.append(
            f"{growth.operation:<31}{growth.variant:<17}{case.components or growth.variant:<17}{case.page(growth.variant):>5} |"
            f"{figures.size:>10,} {case.varied:<15}{figures.calls:>7}{'*' if figures.cut_short else ' '}|"
            f"{_number(figures.median):>11}{_number(figures.p999):>11}{_number(figures.worst):>11} {case.unit:<11}{ratio:>10} |"
        )
    if len(lines) > 1:
        worst = f" ({growth.figures[-1].worst_call})" if growth.figures[-1].worst_call else ""
        lines[-1] += f" {growth.slope_median:.2f} / {growth.slope_worst:.2f}{worst}"
    if growth.missing:
        lines.append(f"{growth.operation:<31}{growth.variant:<17}{growth.missing}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def rows_of(growth: Growth, machine: str, commit: str | None, core: str) -> list[dict[str, Any]]:
    """The objects of bench.json, one a size: the fields that all rows have, and the worst cases' own.

    `median`, `p999`, `worst`, `worst_seen` are in `unit`; `ours_us` is the median where that is a time. A growth without any
    figures gives one row that says why.
    """
    return [_row(growth, figures, machine, commit, core) for figures in growth.figures or (None,)]


def _row(growth: Growth, figures: Figures | None, machine: str, commit: str | None, core: str) -> dict[str, Any]:
    case = growth.case
    timed = figures is not None and "bytes" not in case.unit
    return {
        "operation": growth.operation,
        "variant": growth.variant,
        "components": case.components or growth.variant,
        "page_size": case.page(growth.variant),
        "varied": case.varied,
        "size": figures.size if figures else None,
        "samples": figures.calls if figures else 0,
        "ours_us": figures.median * case.ns_a_unit / 1000 if figures and timed else None,
        "rust_us": None,
        "python_us": None,
        "ratio": None,
        "unit": case.unit,
        "median": figures.median if figures else None,
        "p999": figures.p999 if figures else None,
        "worst": figures.worst if figures else None,
        "worst_seen": figures.worst_seen if figures else None,
        "worst_call": figures.worst_call or None if figures else None,
        "p999_to_median": figures.ratio if figures else None,
        "slope_median": growth.slope_median,
        "slope_worst": growth.slope_worst,
        "cut_short": figures.cut_short if figures else None,
        "missing": growth.missing or None,
        "hash": figures.digest or None if figures else None,
        "machine": machine,
        "commit": commit,
        "ours_core": core,
    }


def worst_questions(growths: Iterable[Growth]) -> str:
    """The question that each case answers, and those on which it is silent."""
    names = dict.fromkeys(growth.operation for growth in growths)
    return "\n".join(f"{name:<31} {WORST_CASES[name].question} Not: {WORST_CASES[name].silent_on}." for name in names)
