"""Rows side by side: each is a replay of its own, so they can run in processes of their own."""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.managers import SyncManager
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.runs.row import run_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unified_tree.controllers.workbench.runs.plan import Plan, RowSpec
    from unified_tree.controllers.workbench.runs.row_result import RowResult

    Progress = Callable[[int, int], None]
    Channel = Queue[tuple[int, int]]

REPORT_EVERY = 64
POLL_S = 0.1


def run_rows(plan: Plan, specs: Sequence[RowSpec], jobs: int, progress: Progress) -> list[RowResult]:
    """Run the rows, in this process or in at most `jobs` others; the results come in the order of `specs`.

    Args:
        progress: called with a row's number and how many of its requests ended since the last call.

    Raises what a row raises.
    """
    if jobs <= 1 or len(specs) <= 1:
        return [_run(plan, spec, partial(progress, i)) for i, spec in enumerate(specs)]
    context = get_context("spawn")  # a fork would inherit the threads of whoever draws the progress
    workers = min(jobs, len(specs))
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with manager, ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as executor:
        channel: Channel = manager.Queue()
        futures = [executor.submit(_run_in_worker, plan, spec, i, channel) for i, spec in enumerate(specs)]
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, POLL_S, FIRST_COMPLETED)
                _drain(channel, progress)
                for future in finished:
                    future.result()
        finally:
            executor.shutdown(cancel_futures=True)  # after a row that raised, the others are not begun
        _drain(channel, progress)
        return [future.result() for future in futures]


class _Batched:
    """Passes every 64th call on, with the count: a message a request would cost more than the request."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count == REPORT_EVERY:
            self.flush()

    def flush(self) -> None:
        self._report(self._count)
        self._count = 0


def _run(plan: Plan, spec: RowSpec, report: Callable[[int], None]) -> RowResult:
    batched = _Batched(report)
    result = run_row(plan, spec, batched)
    batched.flush()
    return result


def _end_with_parent() -> None:
    """Have this process end when its parent does, which may have been killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _run_in_worker(plan: Plan, spec: RowSpec, number: int, channel: Channel) -> RowResult:
    return _run(plan, spec, lambda count: channel.put((number, count)))


def _drain(channel: Channel, progress: Progress) -> None:
    try:
        while True:
            progress(*channel.get_nowait())
    except Empty:
        pass
