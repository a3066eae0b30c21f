"""The rows side by side, as tables of text: a table a question, for a terminal and for a page alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.runs.plan import SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.workbench.report.columns import Column, Section
    from unified_tree.controllers.workbench.runs.row_result import RowResult

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
