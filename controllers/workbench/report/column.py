"""A column of the report: one figure of a row, declared once for the table, the files and the explanation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from unified_tree.controllers.workbench.runs.row_result import RowResult

HEADING_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One figure.

    Attributes:
        key: its name in JSON and CSV; empty for one that only the table has.
        heading: in the table; empty for one that only the files have.
        text: the figure as the table shows it.
        value: the figure of a row, a JSON value.
        meaning: for the reader, with the unit.
        applies: whether a row has such a figure.
    """

    key: str
    heading: str
    text: Callable[[Any], str]
    value: Callable[[RowResult], Any]
    meaning: str
    applies: Callable[[RowResult], bool] = lambda _: True

    def columns(self, rows: Sequence[RowResult]) -> list[Column]:
        """This column, if any of the rows has such a figure."""
        return [self] if any(map(self.applies, rows)) else []


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """Figures by component, or by reason: a column each.

    Attributes:
        key: before a point and the name; empty as in Column.
        heading: behind the name; None as an empty one in Column.
    """

    key: str
    heading: str | None
    text: Callable[[Any], str]
    values: Callable[[RowResult], Mapping[str, Any]]
    meaning: str

    def columns(self, rows: Sequence[RowResult]) -> list[Column]:
        """A column for each name that any of the rows has."""
        return [self._column(name) for name in dict.fromkeys(name for row in rows for name in self.values(row))]

    def _column(self, name: str) -> Column:
        key = f"{self.key}.{name}" if self.key else ""
        words = "" if self.heading is None else f"{name} {self.heading}"
        return Column(
            key,
            "\n".join(wrap(words, HEADING_COLUMNS, break_long_words=False)),
            self.text,
            lambda row: self.values(row)[name],
            self.meaning,
            lambda row: name in self.values(row),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report."""

    title: str
    columns: tuple[Column | ColumnFamily, ...]

    def shown(self, rows: Sequence[RowResult]) -> list[Column]:
        """The columns of the table for these rows."""
        return [column for source in self.columns for column in source.columns(rows) if column.heading]


def only(applies: Callable[[RowResult], bool], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """These columns, for rows to which they apply."""
    return tuple(replace(column, applies=applies) for column in columns)


def integer(value: float) -> str:
    """1,234."""
    return f"{value:,.0f}"


def decimals(digits: int, factor: float = 1.0) -> Callable[[float | None], str]:
    """So many digits behind the point, of the value times the factor; nothing for None."""
    return lambda value: "" if value is None else f"{value * factor:,.{digits}f}"


def stated(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """The figure, or that it is not stated for None."""
    return lambda value: "not stated" if value is None else text(value)


def short_count(count: int | None) -> str:
    """A number in at most five characters: 950, 12.3k, 4.56M, 789M; ∞ for None."""
    if count is None:
        return "∞"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            value = count / limit
            return f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"
    return str(count)
