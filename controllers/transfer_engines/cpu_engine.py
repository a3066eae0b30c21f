"""Transfers between CPU tensors, on one thread of the engine's own.

One thread suffices, because movers use several cores themselves. It runs the next step of a Schedule, loads before backups, so
a load or a cancel waits for one chunk at most.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.guarded_engine import CLOSED, GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS, Schedule
from unified_tree.controllers.transfer_engines.worker import LOOK_S, Worker

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
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
