"""Ranks that are processes: workers that are started once, make a gloo group for each script, and are ended by pid.

Every wait has a limit, after which all workers are killed and the test fails. A worker ends when its parent does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from waiting import PATIENCE_S

SCRIPT_LIMIT_S = 4 * PATIENCE_S


@dataclass(frozen=True, slots=True)
class Raised:
    """A script ended with this error."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process is no more."""

    signal: int


class RankWorkers:
    """A pool of worker processes, one a rank.

    Args:
        folder: for the files by which groups find each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._groups = 0

    def ready(self, count: int) -> None:
        """Start workers, or again those that died, until there are `count`; returns when all have imported torch."""
        self._workers = [(process, pipe) for process, pipe in self._workers if process.is_alive()]
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed"])  # imported once, for all workers
        fresh = []
        while len(self._workers) < count:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
            fresh.append(ours)
        for pipe in fresh:
            if not pipe.poll(SCRIPT_LIMIT_S):
                self.kill()
                raise AssertionError("a worker does not start")
            assert pipe.recv() == "ready"

    def run(self, script: Callable[..., Any], ranks: int, *, stops: int | None = None, **given: Any) -> list[Any]:
        """Call `script(group, rank, **given)` in `ranks` processes.

        Args:
            stops: this rank will stop itself for ever, and is killed when all others have ended.

        Returns by rank what the script returned, Raised or Died.
        """
        self.ready(ranks)
        self._groups += 1
        store = str(self._folder / f"group {self._groups}")
        pending = {}
        for rank, (process, pipe) in enumerate(self._workers[:ranks]):
            pipe.send((script, store, rank, ranks, given))
            pending[pipe] = (rank, process)
        results: list[Any] = [None] * ranks
        deadline = time.monotonic() + SCRIPT_LIMIT_S
        while pending:
            if stops is not None and [rank for rank, _ in pending.values()] == [stops]:
                self._workers[stops][0].kill()
            limit = max(0, deadline - time.monotonic())
            ended = [pipe for pipe in wait(list(pending), limit) if isinstance(pipe, Connection)]
            if not ended:
                self.kill()
                raise AssertionError(f"ranks {[rank for rank, _ in pending.values()]} hang; of the others came {results}")
            for pipe in ended:
                rank, process = pending.pop(pipe)
                try:
                    results[rank] = pipe.recv()
                except EOFError:
                    process.join(PATIENCE_S)
                    results[rank] = Died(-(process.exitcode or 0))
        return results

    def end(self) -> list[int | None]:
        """Have those that are alive end by themselves, and return how they did; one that does not is killed: a failure."""
        alive = [(process, pipe) for process, pipe in self._workers if process.is_alive()]
        for _, pipe in alive:
            pipe.send(None)
        for process, _ in alive:
            process.join(PATIENCE_S)
        codes = [process.exitcode for process, _ in alive]
        self.kill()
        return codes

    def kill(self) -> None:
        """End all by pid."""
        for process, pipe in self._workers:
            process.kill()
            process.join(PATIENCE_S)
            pipe.close()
        self._workers = []


def _serve(pipe: Connection) -> None:
    import torch
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import ProcessGroupGloo

    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    pipe.send("ready")
    while (task := pipe.recv()) is not None:
        script, path, rank, ranks, given = task
        group: Any = None
        try:
            group = ProcessGroupGloo(FileStore(path, ranks), rank, ranks, timedelta(seconds=PATIENCE_S))
            result = script(group, rank, **given)
        except Exception as error:
            result = Raised(type(error).__name__, str(error))
            if not type(error).__module__.startswith("unified_tree"):
                result = Raised(type(error).__name__, traceback.format_exc())
        group = None  # waits for what gloo has under way
        pipe.send(result)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    with contextlib.suppress(Exception):
        parent.join()
    os._exit(1)


def stop() -> None:
    """Hang for ever, connections open, as a process does that a debugger holds."""
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
