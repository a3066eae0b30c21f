"""Worst cases as a table to read and as rows to compute with."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from benches.worst_case import Figures
from benches.worst_cases import WORST_CASES, Growth

FLAT_SLOPE = 0.35
NEAR = 20.0
"""What the library aims at: slopes up to the one, a p99.9 of up to so many medians."""
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
    """What stands over the table."""
    return "\n".join(["", *textwrap.wrap(NOTE, 120), "", HEAD])


def lines_of(growth: Growth) -> str:
    """A line a size; the slopes stand in the last, and a reason in one of its own."""
    case = growth.case
    lines = []
    for figures in growth.figures:
        ratio = f"{figures.ratio:.1f}" if figures.ratio is not None else ""
        lines.append(
            f"{growth.operation:<31}{growth.variant:<17}{case.components(growth.variant):<17}{case.page(growth.variant):>5} |"
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
        "components": case.components(growth.variant),
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
    """What each case answers, and what it does not."""
    names = dict.fromkeys(growth.operation for growth in growths)
    return "\n".join(f"{name:<31} {WORST_CASES[name].question} Not: {WORST_CASES[name].silent_on}." for name in names)
