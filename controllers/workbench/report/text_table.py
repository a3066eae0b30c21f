"""Tables of text that fit a terminal of any width: what does not fit beside comes below, and nothing is cut."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unified_tree.components.equal_pages import EqualPages, equal_pages
from unified_tree.components.kinds import is_token_path
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.workbench.runs.plan import GIB, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from unified_tree.components import Composition
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

    NONE = ""
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


def print_models(console: Console, compositions: Sequence[Composition]) -> None:
    """One line a component: what a prefix needs of it, and its bytes on one rank."""
    lines: list[tuple[str, ...]] = []
    for composition in compositions:
        lines.append((composition.name, "", f"{composition.page_size}", "", "", ""))
        per_token, per_state = composition.bytes_per_token(), composition.bytes_per_state()
        for component in composition.components:
            name = component.name
            lines.append(
                (
                    f"  {name}",
                    component.coverage.describe() + ("" if component.required else " (optional)"),
                    "",
                    f"{per_token[name]:,.6g}" if name in per_token else "",
                    f"{per_state[name]:,}" if name in per_state else "",
                    f"pages of {component.shares}" if component.shares else "pages of its own",
                )
            )
    headings = ("model\n  component", "a prefix needs", "tokens\na page", "bytes\na token", "bytes\na state", "kept in")
    print_table(console, headings, lines, left=(0, 1, 5))


def print_model(console: Console, by_dtype: Mapping[str, Composition], vllm: Composition) -> None:
    """One model, read with several dtypes: its stack of layers, what a prefix needs, bytes, and where it can be resumed.

    `vllm` is the model as vLLM keeps it.
    """
    first = next(iter(by_dtype.values()))
    console.print(f"{first.name}: {stack_text(first)}")
    console.print()
    sizes = {label: {**each.bytes_per_token(), **each.bytes_per_state()} for label, each in by_dtype.items()}
    lines: list[tuple[str, ...]] = []
    for component in first.components:
        unit = "a state" if component.coverage.is_exact else "a token"
        needed = component.coverage.describe() + ("" if component.required else " (optional)")
        layers = "" if component.format is None else str(len(component.format.layer_ids))
        bytes_each = [f"{sizes[label].get(component.name, 0):,.6g}" for label in by_dtype]
        lines.append((component.name, needed, layers, *bytes_each, unit, component.shares or ""))
    headings = ("component", "a prefix needs", "layers", *(f"bytes\n{label}" for label in by_dtype), "of", "in the pages of")
    print_table(console, headings, lines, left=(0, 1, len(headings) - 2, len(headings) - 1))
    console.print()
    console.print(resume_text(first))
    pages = equal_pages(vllm)
    if pages is not None:
        console.print(equal_pages_text(pages))
    for note in first.notes:
        console.print(f"Note: {note}.")


def stack_text(composition: Composition) -> str:
    """A model's layers by the components that keep something of them, runs counted.

    >>> from unified_tree.components import composition_for
    >>> stack_text(composition_for("gemma-3-27b"))
    '62 layers: 10 x (5 swa, 1 full), 2 swa'
    """
    kept: dict[int, list[str]] = {}
    for component in composition.components:
        if component.format is not None and not is_token_path(component):
            for layer in component.format.layer_ids:
                kept.setdefault(layer, []).append(component.name)
    if not kept:
        return "no layers are stated"
    kinds = ["+".join(kept.get(layer, ["nothing"])) for layer in range(max(kept) + 1)]
    runs = [(len(list(same)), kind) for kind, same in groupby(kinds)]
    pieces, at = [], 0
    while at < len(runs):
        period, times = max(
            ((period, _times(runs, at, period)) for period in range(1, 9)), key=lambda each: each[0] * (each[1] - 1)
        )
        group = ", ".join(f"{count} {kind}" for count, kind in runs[at : at + (period if times > 1 else 1)])
        pieces.append(f"{times} x ({group})" if times > 1 else group)
        at += period * times if times > 1 else 1
    return f"{len(kinds)} layers: {', '.join(pieces)}"


def _times(runs: Sequence[tuple[int, str]], at: int, period: int) -> int:
    """How often the next `period` runs stand there one after the other."""
    times, pattern = 1, runs[at : at + period]
    while len(pattern) == period and runs[at + times * period : at + (times + 1) * period] == pattern:
        times += 1
    return times


def resume_text(composition: Composition) -> str:
    """Where a prompt can be resumed, in a sentence."""
    states = [c for c in composition.components if c.required and c.coverage.is_exact]
    grid = max((c.save_grid_tokens for c in states), default=composition.page_size)
    text = f"A prompt resumes at multiples of {composition.page_size:,} tokens"
    if states:
        text = f"A prompt resumes where a state was saved, at multiples of {grid:,} tokens"
    rebuild = composition.rebuild_tokens
    if rebuild:
        text += f"; a window that is missing is rebuilt from the last {rebuild:,}"
    return text + "."


def equal_pages_text(pages: EqualPages) -> str:
    """vLLM's pages of a model with states, in a sentence."""
    return (
        f"vLLM makes blocks of {pages.block_tokens:,} tokens, whose {pages.page_bytes:,} bytes in a layer are also a state's "
        f"page; the states of a boundary take {pages.boundary_bytes:,} bytes, {pages.padding_share:.1%} of them padding."
    )


def print_device_split(
    console: Console,
    composition: Composition,
    device_bytes: int,
    page_counts: Mapping[str, int],
    split_name: str = "",
) -> None:
    """Print the split of the device budget, and the room that the other pools leave the path; the split may have a name."""
    page_bytes = composition.pool_page_bytes()
    lines = []
    for component in composition.components:
        if component.shares is not None:
            lines.append((component.name, component.coverage.describe(), "", "", "", f"in the pages of {component.shares}"))
            continue
        pages = page_counts[component.name]
        size_bytes = pages * page_bytes[component.name]
        figures = (f"{pages:,}", f"{size_bytes / GIB:.2f}", f"{100 * size_bytes / device_bytes:.1f} %")
        lines.append(
            (
                component.name,
                component.coverage.describe(),
                *figures,
                component.coverage.describe_pages(pages, composition.page_size),
            )
        )
    headings = ("pool", "a prefix needs", "pages", "GiB", "share", "holds")
    print_table(
        console, headings, lines, title=f"{split_name} split of the device's budget".strip().capitalize(), left=(0, 1, 5)
    )
    names = [c.name for c in composition.components if c.shares is None and c.coverage.is_path]
    tokens = min(page_counts[name] for name in names) * composition.page_size
    alone = device_bytes // max(1, sum(page_bytes[name] for name in names)) * composition.page_size
    if tokens < alone and len(names) < len(page_counts):
        console.print(
            f"The other pools take {100 * (1 - tokens / alone):.1f} % of what {', '.join(names)} could hold with the whole "
            f"budget: {tokens:,} of {alone:,} tokens are left."
        )
    console.print()


def print_host_split(console: Console, composition: Composition, page_counts: Mapping[str, int]) -> None:
    """How the host's memory is split."""
    lines = []
    for component in composition.components:
        pages = page_counts[component.name]
        size_gib = pages * host_page_bytes(component.page_bytes) / GIB
        lines.append(
            (component.name, f"{pages:,}", f"{size_gib:.2f}", component.coverage.describe_pages(pages, composition.page_size))
        )
    print_table(console, ("pool", "pages", "GiB", "holds"), lines, title="Split of the host's memory", left=(0, 3))
    console.print()
