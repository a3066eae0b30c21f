"""Transfers between CPU tensors, on one thread of the engine's own.

One thread suffices, because movers use several cores themselves. It runs the next step of a Schedule, loads before backups, so
a load or a cancel waits for one chunk at most.

A worker refers to the schedule and the movers, never to the engine: an unreferenced engine is collected, and its finalizer
stops the worker. A finalizer may run in any thread at any point, even inside one of our locks. So it only sets a flag and puts
to a SimpleQueue, which is reentrant and on which an idle worker waits. The thread is a daemon, so that a forgotten `close` does
not keep the process alive. It is stopped and joined at exit, because a daemon thread inside a C++ copy at interpreter shutdown
aborts the process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.guarded_engine import CLOSED, GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS, Schedule
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import words_of

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.schedule import Step
    from unified_tree.controllers.transfer_engines.transfer import Transfer


class CpuEngine(GuardedEngine):
    """A TransferEngine with a worker thread, which ends with `close`, with the engine, or with the process.

    Any thread may call `wait_layer`. If the worker dies, because its mover raised or the process was forked, every open and
    later transfer fails, and no waiter hangs. `close` and a cancelled transfer wait for the chunk that is being copied. A mover
    that hangs cannot be interrupted.

    Args:
        movers: by component; from now on only the worker calls them.
        chunk_blocks: maximum number of blocks (a block is one layer of one page) in one call of a mover, but at least one page.
            A cancel or an overtaking load waits for one such call. Each chunk costs some 0.1 ms.
        remembered: how many transfers `wait_layer` and `wait` know after their completion was polled.

    Raises ConfigurationError for numbers that are not positive integers.
    """

    def __init__(self, movers: Mapping[str, PageMover], chunk_blocks: int = CHUNK_BLOCKS, remembered: int = REMEMBERED) -> None:
        self._schedule = Schedule(movers, chunk_blocks, remembered)
        self._worker = Worker(self._schedule)
        self._changed = self._worker.changed
        super().__init__(self._schedule.ledger, self._changed)
        self._thread = self._worker.start()
        weakref.finalize(self, self._worker.stop).atexit = False

    def _begin(self, transfers: Sequence[Transfer]) -> None:
        self._schedule.submit(transfers)
        if self._worker.death is not None:
            self._schedule.abandon(self._worker.death)
        self._worker.wake()

    def _cancel(self, ticket: int, reason: str) -> None:
        self._schedule.cancel(ticket, reason)
        self._changed.notify_all()

    def _advance(self) -> None:
        """Detect a thread that ended silently, as all do in a forked process."""
        if not self._thread.is_alive():
            self._worker.die("the transfer thread is gone")

    def _await_change(self) -> None:
        if not self._changed.wait(LOOK_S):
            self._advance()

    def _stop(self) -> None:
        self._worker.stop()
        self._thread.join()
        self._worker.die(CLOSED)


EXIT_WAIT_S = 10.0
"""How long the process waits at exit for a copy to end."""
LOOK_S = 1.0
"""How often somebody who waits makes sure that the thread still lives."""


class Worker:
    """Runs the steps of a schedule one by one, loads first.

    Everything in the schedule is read and written under `changed`, which is notified after every step.

    Attributes:
        schedule: what to run.
        changed: the lock and condition.
        death: why the thread ended unexpectedly.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.changed = threading.Condition()
        self.death: str | None = None
        self._stopped = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def start(self) -> threading.Thread:
        """The thread, running."""
        thread = threading.Thread(target=self._run, name="unified_tree transfers", daemon=True)
        thread.start()
        weakref.finalize(thread, _stop_at_exit, self, weakref.ref(thread))
        return thread

    def wake(self) -> None:
        """There is something to do."""
        self._wake.put(None)

    def stop(self) -> None:
        """End the thread after the step it is in. Takes no lock: safe in a finalizer."""
        self._stopped = True
        self._wake.put(None)

    def die(self, death: str) -> None:
        """End all transfers, because no step will run any more, and wake all waiters."""
        with self.changed:
            if self.death is None:
                self.death = death
                self.schedule.abandon(death)
                self.changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopped:
                step = self._begin()
                if step is None:
                    self._wake.get()
                    continue
                errors = step.run()
                with self.changed:
                    self.schedule.fail(step, errors)
                    self.schedule.finish(step)
                    self.changed.notify_all()
        except BaseException as error:
            self.die(f"the transfer thread died: {words_of(error)}")

    def _begin(self) -> Step | None:
        with self.changed:
            return self.schedule.begin(EffectKind.LOAD) or self.schedule.begin(EffectKind.BACKUP)


def _stop_at_exit(worker: Worker, thread: weakref.ref[threading.Thread]) -> None:
    worker.stop()
    running = thread()
    if running is not None and running is not threading.current_thread():
        running.join(EXIT_WAIT_S)
