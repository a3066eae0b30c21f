"""The charts of a report. A page and a plot show the same ones: each a question, what is drawn, and what its colours mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.report.columns import GIB, device_pages, share
from unified_tree.memory.ages import BOUNDS_S
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.stats import PoolAgeStats
    from unified_tree.controllers.workbench.runs.row_result import Requests, RowResult

    Floats = NDArray[np.float64]
    Legend = list[tuple[str, str]]


INK, DIM, LINE, ACCENT = "#1b1e23", "#5b6271", "#d9dde5", "#2b6fb3"
"""Of a plot; a page has those of its style sheet in their place."""
COLOURS = (ACCENT, "#e8843c", "#8d5fc4", "#d1495b", "#3fb6b2", "#b08a2e", "#c25b9b", "#9aa5b8")
HIT, EVICTED = "#2e8b57", "#d1495b"
REJECTED = "#3d4451"
CAUSE_COLOURS = (
    *("#9aa5b8", "#c3cad6", "#d1495b", "#e8843c", "#8d5fc4", "#b48be0", "#e3cf9f", "#cdb675"),
    *("#3a86c8", "#1f4e79", "#76b7d8", "#3fb6b2", "#6b7280", "#8a94a6", "#7a1f2b"),
)
"""By the code of the cause, as the inspector's page has them."""
TIME_BINS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        name: of letters, digits and -.
        question: what it answers.
        caption: what is to be known of it.
        labels: of its axes.
        draw: draws it, and returns what its colours mean: labels with colours.
    """

    name: str
    question: str
    caption: str
    labels: tuple[str, str]
    draw: Callable[[Axes], Legend]


def charts(rows: Sequence[RowResult], sweep: Sequence[RowResult]) -> list[Chart]:
    """The charts of the rows of a report.

    Args:
        rows: of the size that was asked for.
        sweep: of the others, with their intervals; may be empty.
    """
    first, hits = rows[0], "hit, % of the prompt tokens"
    time, of_first = f"{_unit_s(first)[1]} of the virtual clock", f"With {first.policy}."
    found = [
        Chart(
            name="hits-over-memory",
            question="What does more memory bring?",
            caption="No eviction policy exceeds the upper end of the interval; a replay reached the lower one.",
            labels=("device memory for the cache, GiB", hits),
            draw=partial(_hits_over_memory, rows, sweep),
        ),
        Chart(
            name="hits-over-time",
            question="When does it hit?",
            caption="Rejected requests are misses.",
            labels=(time, hits),
            draw=partial(_hits_over_time, rows),
        ),
        Chart(
            name="causes-over-time",
            question="Why does it miss?",
            caption=f"{of_first} Each token that did not hit has one cause.",
            labels=(time, "% of the prompt tokens"),
            draw=partial(_causes_over_time, first),
        ),
        Chart(
            name="pools-over-time",
            question="How full are the pools?",
            caption=of_first,
            labels=(time, "pages in use, % of the pool"),
            draw=partial(_pools_over_time, first),
        ),
    ]
    if first.has_host:
        found.append(
            Chart(
                name="tiers-over-time",
                question="Where do hits come from?",
                caption=of_first,
                labels=(time, hits),
                draw=partial(_tiers_over_time, first),
            )
        )
    return found


def age_charts(row: RowResult) -> list[Chart]:
    """For each pool of a row that has any, after how long its values were hit again, and how long victims had been idle."""
    return [
        Chart(
            name=f"ages-{name}-{tier}",
            question=f"Is {name} on {tier} evicted too early?",
            caption=f"With {row.policy}. If values are evicted younger than the gaps after which others are hit, the pool is "
            "too small.",
            labels=("seconds, below", "% of each"),
            draw=partial(_ages, stats),
        )
        for (name, tier), stats in row.cache.ages.items()
        if any(stats.reuse_gap.counts) or any(stats.idle.counts)
    ]


def _hits_over_memory(rows: Sequence[RowResult], sweep: Sequence[RowResult], axes: Axes) -> Legend:
    """Hits of the policies that were replayed at several sizes, the interval of the best possible, and the ceiling."""
    policies = list(dict.fromkeys(row.policy for row in sweep))
    present = [row for row in rows if row.policy in policies] or list(rows[:1])
    shown = [*present, *sweep]
    policies = list(dict.fromkeys(row.policy for row in shown))
    sizes = sorted({row.capacity for row in shown})
    marker = "o" if len(sizes) > 1 else "s"
    bounds = [_interval([row for row in shown if row.capacity == size]) for size in sizes]
    known = [(_gib(shown[0], size), *each) for size, each in zip(sizes, bounds, strict=True) if each is not None]
    if known:
        at, low, high = (np.array(values) for values in zip(*known, strict=True))
        width = 0.04 * at if len(at) == 1 else 0.0
        over = np.concatenate((at - width, at + width)) if len(at) == 1 else at
        axes.fill_between(over, np.resize(low, over.size), np.resize(high, over.size), color=HIT, alpha=0.3, linewidth=0)
    for policy, colour in zip(policies, cycle(COLOURS)):
        points = sorted((_gib(row, row.capacity), 100 * row.hit_rate) for row in shown if row.policy == policy)
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, color=colour)
    ceiling = max(100 * share(row, row.ceiling_tokens) for row in shown)  # the smaller sizes may have served less
    axes.axhline(ceiling, color=DIM, linestyle="--", linewidth=1.2)
    axes.set_xscale("log", base=2)
    ticks = [_gib(shown[0], size) for size in sizes]
    axes.set_xticks(ticks, [f"{gib:,.3g}" for gib in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, _above(max([ceiling, *(100 * row.hit_rate for row in shown)])))
    legend = [*zip(policies, cycle(COLOURS)), ("ceiling", DIM)]
    if known:
        legend.insert(-1, ("the best possible lies here", HIT))
    for row in rows:
        if row.policy == "unbounded":
            axes.axhline(100 * row.hit_rate, color=REJECTED, linestyle=":")
            legend.append((row.policy, REJECTED))
    return legend


def _interval(rows: Sequence[RowResult]) -> tuple[float, float] | None:
    """Between what the best possible lies, in percent, for rows of the same pools."""
    highest = [row.optimum_high_tokens for row in rows if row.optimum_high_tokens is not None]
    if not highest or len(highest) < len(rows):
        return None
    low = max(row.optimum_low_tokens if row.optimum_low_tokens is not None else row.hit_tokens for row in rows)
    return 100 * share(rows[0], low), 100 * share(rows[0], max(highest))


def _above(most: float) -> float:
    """Where an axis of percents ends that goes up to `most`."""
    return min(100.0, 1.08 * most + 1)


def _gib(row: RowResult, capacity: float) -> float:
    return capacity * row.device_bytes / GIB


def _hits_over_time(rows: Sequence[RowResult], axes: Axes) -> Legend:
    """The share of the prompt tokens that hit, of each row."""
    most = 0.0
    for row, colour in zip(rows, cycle(COLOURS)):
        hours, prompts, [hits] = _binned(row, row.served["hit_tokens"])
        rates = 100 * hits / prompts
        most = max(most, *rates.tolist())
        axes.plot(hours, rates, color=colour)
    axes.set_ylim(0, _above(most))
    return [(row.policy, colour) for row, colour in zip(rows, cycle(COLOURS))]


def _causes_over_time(row: RowResult, axes: Axes) -> Legend:
    """A row's prompt tokens over time: hits, and misses by cause."""
    misses = row.served["miss_tokens"]
    causes = [cause for cause in MissCause if misses[:, cause].any()]
    hours, prompts, parts = _binned(row, row.served["hit_tokens"], *(misses[:, cause] for cause in causes))
    legend = [("hit", HIT), *((cause.label.replace("_", " "), CAUSE_COLOURS[cause]) for cause in causes)]
    if row.rejected:
        parts.append(prompts - np.sum(parts, axis=0))
        legend.append(("rejected", REJECTED))
    _stack(axes, hours, [100 * part / prompts for part in parts], legend)
    return legend


def _tiers_over_time(row: RowResult, axes: Axes) -> Legend:
    """A row's hits over time, by the tier that had them."""
    host = row.served["host_hit_tokens"]
    hours, prompts, parts = _binned(row, row.served["hit_tokens"] - host, host)
    legend = [("on device", HIT), ("loaded from host", COLOURS[1])]
    _stack(axes, hours, [100 * part / prompts for part in parts], legend)
    return legend


def _stack(axes: Axes, hours: Floats, parts: list[Floats], legend: Legend) -> None:
    axes.stackplot(hours, *parts, colors=[colour for _, colour in legend], linewidth=0)
    axes.set_ylim(0, 100)
    axes.margins(x=0)


def _pools_over_time(row: RowResult, axes: Axes) -> Legend:
    """Pages in use of each pool: of those that it has, or without a limit of the most that it used."""
    hours, legend = np.array(row.residency.time_s) / _unit_s(row)[0], []
    for (name, total), colour in zip(device_pages(row).items(), cycle(COLOURS)):
        used = 100 * np.array(row.residency.pages[name]) / max(1, total or row.peak_pages[name])
        axes.plot(hours, used, color=colour, linewidth=1)
        legend.append((f"{name}, {total:,} pages" if total else f"{name}, at most {row.peak_pages[name]:,}", colour))
    axes.set_ylim(0, 105)
    return legend


def _ages(stats: PoolAgeStats, axes: Axes) -> Legend:
    counts = [np.array(each.counts, np.float64) for each in (stats.reuse_gap, stats.idle)]
    used = np.flatnonzero(counts[0] + counts[1])
    first, last = int(used[0]), int(used[-1]) + 1
    at = np.arange(last - first)
    for each, colour, side in zip(counts, (HIT, EVICTED), (-0.2, 0.2), strict=True):
        if each.sum():
            axes.bar(at + side, 100 * each[first:last] / each.sum(), 0.4, color=colour)
    every = max(1, -(-at.size // 7))
    axes.set_xticks(at[::every], [_seconds(first + i) for i in at[::every]])
    axes.grid(visible=False, axis="x")
    hit, gone = (int(each.sum()) for each in counts)
    return [(f"{hit:,} hits, by the time since the use before", HIT), (f"{gone:,} evictions, by the time unused", EVICTED)]


def _seconds(bucket: int) -> str:
    if bucket >= len(BOUNDS_S):
        return "more"
    bound_s = BOUNDS_S[bucket]
    return f"{bound_s:,.2g}" if bound_s < 1 else f"{bound_s:,.0f}"


def _unit_s(row: RowResult) -> tuple[float, str]:
    """The unit that time is shown in: its seconds, and its name."""
    for unit_s, name in ((3600.0, "hours"), (60.0, "minutes")):
        if row.virtual_s > 2 * unit_s:
            return unit_s, name
    return 1.0, "seconds"


def _binned(row: RowResult, *tokens: Requests) -> tuple[Floats, Floats, list[Floats]]:
    """Times, the prompt tokens, and sums of tokens, by the bins of time in which requests were admitted or rejected."""
    everyone = np.concatenate((row.served, row.turned_away))
    edges = np.linspace(0.0, max(float(everyone["admitted_s"].max(initial=0.0)), 1e-9), TIME_BINS + 1)
    prompts = _summed(everyone["admitted_s"], edges, everyone["prompt_tokens"])
    filled = prompts > 0
    sums = [_summed(row.served["admitted_s"], edges, counts)[filled] for counts in tokens]
    return ((edges[1:] + edges[:-1]) / 2 / _unit_s(row)[0])[filled], prompts[filled], sums


def _summed(at: Any, edges: Floats, weights: Any) -> Floats:
    return np.histogram(at, edges, weights=weights.astype(np.float64))[0]
