"""The files a replay writes besides its table."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.report.charts import charts
from unified_tree.controllers.workbench.report.columns import pool_verdicts, record
from unified_tree.controllers.workbench.report.text_table import shown_rows
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.workbench.report.page import PageContent
    from unified_tree.controllers.workbench.runs.row_result import RowResult


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


def write_plot(path: Path, rows: Sequence[RowResult], sweep: Sequence[RowResult], title: str) -> None:
    """Draw the charts of the rows into `path`; its ending says the format (.png, .svg, .pdf).

    Args:
        sweep: further rows at other capacities, of any of the policies; may be empty.

    Raises OSError for a file that cannot be written, ValueError for an ending that stands for no format.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = shown_rows(rows)
    drawn = charts(shown, sweep)
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(11, 4 * len(drawn)), layout="constrained")
        figure.suptitle("\n".join([title, *pool_verdicts(shown[:1])]))
        for chart, axes in zip(drawn, figure.subplots(len(drawn), 1), strict=True):
            handles = [Patch(color=colour, label=label) for label, colour in chart.draw(axes)]
            axes.set(title=f"{chart.question} {chart.caption}", xlabel=chart.labels[0], ylabel=chart.labels[1])
            axes.grid(alpha=0.3)
            axes.legend(handles=handles, fontsize="small", ncols=4)
        figure.savefig(path)
