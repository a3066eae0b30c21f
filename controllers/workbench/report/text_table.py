"""Tables of text that fit a terminal of any width: what does not fit beside comes below, and nothing is cut."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
