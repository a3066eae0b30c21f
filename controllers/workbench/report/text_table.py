"""Tables of text that fit a terminal of any width: what does not fit beside comes below, and nothing is cut."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unified_tree.controllers.workbench.runs.plan import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from unified_tree.controllers.workbench.report.columns import Column, Section
    from unified_tree.controllers.workbench.runs.row_result import RowResult


PIPE_COLUMNS = 80
"""Width of a report that goes to no terminal; the variable COLUMNS says another."""
GAP = 2


def report_console() -> Console:
    """A console on stdout that is as wide as the terminal, or as stated; names are printed as they are, brackets and all."""
    width = None if Console().is_terminal else get_terminal_size((PIPE_COLUMNS, 0)).columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_table(
    console: Console,
    headings: Sequence[str],
    lines: Sequence[Sequence[str | Text]],
    *,
    title: str = "",
    left: Collection[int] = (0,),
) -> None:
    """Print a table; the first column names the lines and comes again in every part.

    Args:
        headings: one a column; a newline in it is where it is broken.
        lines: cells in the order of the headings.
        left: the columns aligned at their left; the others are figures.
    """
    if title:
        console.print(title, style="italic")
    for part in _parts(console.width, headings, lines):
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        for i in part:
            table.add_column(headings[i], justify="left" if i in left else "right", no_wrap=True, vertical="bottom")
        for line in lines:
            table.add_row(*(line[i] for i in part))
        console.print(table, crop=False, width=max(console.width, console.measure(table).maximum))


def _parts(width: int, headings: Sequence[str], lines: Sequence[Sequence[str | Text]]) -> list[list[int]]:
    """The columns of each part: as many as fit, at least one beside the first."""
    widths = [
        GAP + max(Text(piece).cell_len for cell in (heading, *(line[i] for line in lines)) for piece in str(cell).split("\n"))
        for i, heading in enumerate(headings)
    ]
    parts, free = [[0]], width + GAP - widths[0]
    for i in range(1, len(headings)):
        if widths[i] > free and len(parts[-1]) > 1:
            parts.append([0])
            free = width + GAP - widths[0]
        parts[-1].append(i)
        free -= widths[i]
    return parts


REFERENCES = {
    "clairvoyant": "knows all requests to come, and follows the best plan found",
    "unbounded": "never evicts: a device without limit; windows and states still limit its hits",
}
"""Rows that no server could be, by their names."""


class Mark(Enum):
    """How a cell stands out."""

    NONE = "none"
    BEST = "best"
    WRONG = "wrong"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    mark: Mark = Mark.NONE


def shown_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows that tables show; of path-only twins only files have figures."""
    return [row for row in rows if not row.is_path_only]


def table_of(section: Section, rows: Sequence[RowResult]) -> tuple[list[str], list[list[Cell]]]:
    """The headings and the lines of a section, the first cell of each its name; no lines if nothing applies to these rows."""
    columns = section.shown(rows)
    served = [row for row in rows if any(column.applies(row) for column in columns)]
    names = [Cell(row.policy, Mark.REFERENCE if row.policy.removeprefix(SHARED) in REFERENCES else Mark.NONE) for row in served]
    if section.by_figure:
        lines = [[Cell(column.heading), *(_cell(column, row) for row in served)] for column in columns]
        return ["", *(row.policy for row in served)], lines
    lines = [[name, *(_cell(column, row) for column in columns)] for name, row in zip(names, served, strict=True)]
    return ["policy", *(column.heading for column in columns)], lines


def _cell(column: Column, row: RowResult) -> Cell:
    if not column.applies(row):
        return Cell("")
    value = column.value(row)
    wrong = Mark.WRONG if column.key == "wrong_bytes" and value else Mark.NONE
    return Cell(column.text(value), Mark.BEST if column.key == "hit_rate" else wrong)


@contextmanager
def progress_bar(what: str, total: int | None, *, then: str = "finishing") -> Iterator[Callable[[int], None]]:
    """A bar on stderr with an estimate of the time left, where stderr is a terminal. It advances by what it is called with.

    Args:
        what: what is done.
        total: how far it goes; None where that is not known.
        then: what is still to do when all of that is done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=120) as bar:
        task = bar.add_task(what, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            if bar.tasks[0].finished and len(bar.tasks) == 1:
                bar.update(task, visible=False)
                bar.add_task(then, total=None)

        yield advance
