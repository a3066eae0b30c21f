"""Transfers between CPU tensors, on one thread of the engine's own.

One thread, since movers use as many cores as a copy pays for by themselves. It takes the next step from a Schedule, loads
before backups, so what a load or a cancel waits for is one chunk. `poll` looks at two containers without a lock before
anything else; that is all an idle tick costs.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.ledger import REMEMBERED
from unified_tree.controllers.transfer_engines.schedule import CHUNK_BLOCKS, Schedule
from unified_tree.controllers.transfer_engines.worker import LOOK_S, Worker
from unified_tree.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer


class CpuEngine:
    """A TransferEngine with a worker thread, which ends with `close`, with the engine, or with the process.

    Other threads than the caller's may wait at gates. A thread that died, by whatever its mover raised or because the process
    was forked, fails every open and every later transfer; it never leaves anybody waiting. A mover that hangs cannot be
    interrupted: what waits for its chunk waits, `close` too.

    Args:
        movers: by component; from now on only the worker calls them.
        chunk_blocks: the most blocks (a block is one layer of one page) of one call of a mover, one page at least: what a
            cancel and an overtaking load may have to wait for. Smaller chunks cost some 0.1 ms each.
        remembered: how many transfers `wait_layer` and `wait` know after their completion was polled.

    Raises ConfigurationError for numbers that are not positive integers.
    """

    def __init__(self, movers: Mapping[str, PageMover], chunk_blocks: int = CHUNK_BLOCKS, remembered: int = REMEMBERED) -> None:
        self._schedule = Schedule(movers, chunk_blocks, remembered)
        self._ledger = self._schedule.ledger
        self._worker = Worker(self._schedule)
        self._changed = self._worker.changed
        self._is_closed = False
        self._thread = self._worker.start()
        weakref.finalize(self, self._worker.stop).atexit = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        if self._is_closed:
            raise TransferError("this engine was closed; it takes no more transfers")
        with self._changed:
            self._schedule.submit(transfers)
            if self._worker.death is not None:
                self._schedule.abandon(self._worker.death)
        self._worker.wake()

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll. With nothing open it takes no lock."""
        if not self._ledger.open and not self._ledger.completions:
            return []
        self._look()
        with self._changed:
            return self._ledger.take()

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer; the calling thread waits, which may be any."""
        with self._changed:
            while not self._ledger.has_landed(ticket, layer_id):
                self._await_change()

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel; ends after the chunk that is being copied, or at once."""
        with self._changed:
            self._schedule.cancel(ticket)
            self._changed.notify_all()

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        with self._changed:
            self._ledger.find(ticket)
            while ticket in self._ledger.open:
                self._await_change()

    def drain(self) -> None:
        """See TransferEngine.drain."""
        with self._changed:
            while self._ledger.open:
                self._await_change()

    def close(self) -> None:
        """See TransferEngine.close; waits for the chunk that is being copied."""
        self._is_closed = True
        with self._changed:
            self._schedule.cancel_all("the engine was closed")
            self._changed.notify_all()
        self._worker.stop()
        self._thread.join()
        self._worker.die("the engine was closed")

    def _await_change(self) -> None:
        if not self._changed.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        """Notice a thread that went without a word, as all do in a forked process."""
        if not self._thread.is_alive():
            self._worker.die("the transfer thread is gone")
