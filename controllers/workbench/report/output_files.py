"""The files a replay writes besides its table."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.report.columns import GIB, device_pages, pool_verdicts, record
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.report.page import PageContent
    from unified_tree.controllers.workbench.runs.row_result import RowResult

    Floats = NDArray[np.float64]


PLOT_ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """Where the rows go besides the terminal. `inspect` is written by its row itself."""

    csv: Path | None
    json: Path | None
    plot: Path | None
    figures: Path | None = None
    inspect: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Find out before the replay what would go wrong after it. Raises ConfigurationError."""
        for path in (self.csv, self.json, self.plot, self.figures, self.inspect, self.html):
            try:
                fits = path is None or (not path.is_dir() and path.absolute().parent.is_dir())
            except OSError as error:
                raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error
            if not fits:
                raise ConfigurationError(f"{path}: cannot be written: it is a directory, or is in none")
        if self.plot is not None and self.plot.suffix.lower() not in PLOT_ENDINGS:
            raise ConfigurationError(f"{self.plot}: a plot's name must end in {', '.join(PLOT_ENDINGS)}")
        if self.draws:
            import matplotlib as _  # noqa: F401  may be absent, which the command line reports

    @property
    def draws(self) -> bool:
        """Whether rows at other capacities are wanted, too."""
        return self.plot is not None or self.html is not None

    def write(self, content: PageContent) -> None:
        """Write what was asked for of a report. Raises ConfigurationError for a file that cannot be written."""
        rows, plan = content.rows, content.plan
        try:
            if self.csv is not None:
                write_csv(self.csv, rows)
            if self.json is not None:
                write_json(self.json, rows)
            if self.figures is not None:
                self.figures.write_text("[" + ",\n".join(row.figures.to_json() for row in rows) + "]\n", encoding="utf-8")
            if self.plot is not None:
                write_plot(self.plot, rows, content.sweep, f"{plan.workload.name} on {plan.composition.name}")
            if self.html is not None:
                from unified_tree.controllers.workbench.report.page import page

                self.html.write_text(page(content), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}") from error


def write_json(path: Path, rows: Sequence[RowResult]) -> None:
    """Write an array of objects, one a row; see `columns` for the fields. Raises OSError."""
    path.write_text(json.dumps([record(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[RowResult]) -> None:
    """Write the same figures as a table with a header line; a figure that a row lacks is empty. Raises OSError."""
    records = [record(row) for row in rows]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in records for name in row)), restval="")
        writer.writeheader()
        writer.writerows(records)


TIME_BINS = 60
REFERENCE_STYLE = {"unbounded": ":", "clairvoyant": "-."}
HOUR_S = 3600.0


def write_plot(path: Path, rows: Sequence[RowResult], sweep: Sequence[RowResult], title: str) -> None:
    """Draw the rows into `path`; its ending says the format (.png, .svg, .pdf).

    Args:
        sweep: further rows at other capacities, of any of the policies; may be empty.

    Raises OSError for a file that cannot be written, ValueError for an ending that stands for no format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in rows if not row.is_path_only]
    tiered = next((row for row in rows if row.has_host), None)
    figure = Figure(figsize=(11, 12 if tiered is None else 16), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, over_capacity, residency, *by_tier = figure.subplots(3 if tiered is None else 4, 1)
    figure.suptitle(title, parse_math=False)
    _plot_hit_rate(over_time, rows)
    _plot_capacity(over_capacity, rows, sweep)
    _plot_residency(residency, rows)
    if tiered is not None:
        _plot_tiers(by_tier[0], tiered)
    figure.savefig(path)


def _binned(row: RowResult, *tokens: Floats) -> tuple[Floats, list[Floats]]:
    """Hours, and sums of tokens as percent of the prompt tokens, in the bins of time in which requests were admitted, or
    rejected: those were missed.
    """
    time_s = row.served["admitted_s"]
    all_requests = np.concatenate((row.served, row.turned_away))
    edges = np.linspace(0.0, max(float(all_requests["admitted_s"].max(initial=0.0)), 1e-9), TIME_BINS + 1)
    prompt, _ = np.histogram(all_requests["admitted_s"], edges, weights=all_requests["prompt_tokens"].astype(np.float64))
    filled = prompt > 0
    shares = [100 * np.histogram(time_s, edges, weights=counts)[0][filled] / prompt[filled] for counts in tokens]
    return edges[1:][filled] / HOUR_S, shares


def _plot_tiers(axes: Axes, row: RowResult) -> None:
    """Where one row's hits came from, stacked."""
    host = row.served["host_hit_tokens"].astype(np.float64)
    hours, shares = _binned(row, row.served["hit_tokens"] - host, host)
    axes.stackplot(hours, *shares, labels=("on device", "loaded from host"), alpha=0.7)
    axes.set(title=f"Token hits by tier over time, {row.policy}", xlabel="virtual time (hours)")
    axes.set(ylabel="hit (% of prompt tokens)", ylim=(0, 100))
    _finish(axes)


def _plot_hit_rate(axes: Axes, rows: Sequence[RowResult]) -> None:
    for row in rows:
        if row.requests:
            hours, [hit] = _binned(row, row.served["hit_tokens"].astype(np.float64))
            axes.plot(hours, hit, REFERENCE_STYLE.get(row.policy, "-"), label=row.policy)
    axes.set(title="Token hit rate over time", xlabel="virtual time (hours)", ylabel="hit (% of prompt tokens)", ylim=(0, 100))
    _finish(axes)


def _plot_capacity(axes: Axes, rows: Sequence[RowResult], sweep: Sequence[RowResult]) -> None:
    for policy in dict.fromkeys(row.policy for row in sweep):
        points = sorted((_gib(row), 100 * row.hit_rate) for row in (*rows, *sweep) if row.policy == policy)
        axes.plot(*zip(*points, strict=True), "o" + REFERENCE_STYLE.get(policy, "-"), label=policy)
    for row in rows:
        if row.policy == "unbounded":
            axes.axhline(100 * row.hit_rate, color="black", linestyle=":", label="unbounded")
    axes.set(
        title="Token hit rate over capacity", xlabel="device memory for the cache (GiB)", ylabel="hit (% of prompt tokens)"
    )
    if sweep:
        sizes = sorted({_gib(row) for row in (*rows, *sweep)})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,.4g}" for size in sizes], minor=False)
    _finish(axes)


def _gib(row: RowResult) -> float:
    return row.capacity * row.device_bytes / GIB


def _plot_residency(axes: Axes, rows: Sequence[RowResult]) -> None:
    """Pages in use as a share of the pool, for the first row whose pools are bounded."""
    row = next((row for row in rows if any(device_pages(row).values())), rows[0])
    hours = np.array(row.residency.time_s) / HOUR_S
    for name, total in device_pages(row).items():
        if total:
            axes.plot(hours, 100 * np.array(row.residency.pages[name]) / total, label=f"{name} ({total:,} pages)")
    axes.set(title=f"Residency by component over time, {row.policy}\n{'; '.join(pool_verdicts([row]))}")
    axes.set(xlabel="virtual time (hours)", ylabel="pages in use (% of the pool)", ylim=(0, 105))
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", ncols=4)
