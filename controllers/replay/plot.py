"""The rows as a picture: hit rate over time, hit rate over capacity, residency by component over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from unified_tree.controllers.replay.row_result import RowResult

TIME_BINS = 60
REFERENCE_STYLE = {"unbounded": ":", "clairvoyant": "-.", "ungated": "--"}
HOUR_S = 3600.0


def write_plot(path: Path, rows: Sequence[RowResult], sweep: Sequence[RowResult], title: str) -> None:
    """Draw the rows into `path`; its ending says the format (.png, .svg, .pdf).

    Args:
        sweep: further rows at other capacities, of any of the policies; may be empty.

    Raises OSError for a file that cannot be written, ValueError for an ending that stands for no format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, over_capacity, residency = figure.subplots(3, 1)
    figure.suptitle(title)
    _plot_hit_rate(over_time, rows)
    _plot_capacity(over_capacity, rows, sweep)
    _plot_residency(residency, rows)
    figure.savefig(path)


def _plot_hit_rate(axes: Axes, rows: Sequence[RowResult]) -> None:
    for row in rows:
        time_s = np.array(row.timeline.time_s)
        if not time_s.size:
            continue
        edges = np.linspace(0.0, max(float(time_s.max()), 1e-9), TIME_BINS + 1)
        prompt, _ = np.histogram(time_s, edges, weights=np.array(row.timeline.prompt_tokens, np.float64))
        hit, _ = np.histogram(time_s, edges, weights=np.array(row.timeline.hit_tokens, np.float64))
        filled = prompt > 0
        axes.plot(
            edges[1:][filled] / HOUR_S,
            100 * hit[filled] / prompt[filled],
            REFERENCE_STYLE.get(row.policy, "-"),
            label=row.policy,
        )
    axes.set(title="Token hit rate over time", xlabel="virtual time (hours)", ylabel="hit (% of prompt tokens)", ylim=(0, 100))
    axes.grid(alpha=0.3)
    _legend(axes)


def _plot_capacity(axes: Axes, rows: Sequence[RowResult], sweep: Sequence[RowResult]) -> None:
    for policy in dict.fromkeys(row.policy for row in sweep):
        points = sorted((row.capacity, row.hit_rate) for row in (*rows, *sweep) if row.policy == policy)
        axes.plot([x for x, _ in points], [100 * y for _, y in points], "o" + REFERENCE_STYLE.get(policy, "-"), label=policy)
    for row in rows:
        if row.policy == "unbounded":
            axes.axhline(100 * row.hit_rate, color="black", linestyle=":", label="unbounded")
    axes.set(
        title="Token hit rate over capacity",
        xlabel="device budget (as a multiple of the one asked for)",
        ylabel="hit (% of prompt tokens)",
    )
    if sweep:
        axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    _legend(axes)


def _plot_residency(axes: Axes, rows: Sequence[RowResult]) -> None:
    """Pages in use as a share of the pool, for the first row whose pools are bounded."""
    row = next((row for row in rows if any(pool.total_pages for pool in row.pools.values())), rows[0])
    hours = np.array(row.timeline.residency_s) / HOUR_S
    for name, pages in row.timeline.resident_pages.items():
        total = row.pools[name].total_pages
        if total:
            axes.plot(hours, 100 * np.array(pages) / total, label=f"{name} ({total} pages)")
    axes.set(title=f"Residency by component over time, {row.policy}")
    axes.set(xlabel="virtual time (hours)", ylabel="pages in use (% of the pool)", ylim=(0, 105))
    axes.grid(alpha=0.3)
    _legend(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", ncols=4)
