"""Shows how far a command has come, and how long it will still take."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
