"""A recorder beside a server: it takes what was served, and a thread of its own reads, hashes and writes it.

The caller appends to a queue and goes on. The queue is bounded by the bytes that wait in it; what comes beyond is dropped and
counted, so that a slow disk costs memory up to the bound, and then requests of the trace. Nothing here raises into the caller
or waits for the thread.

Cost of `offer` for the caller: some 1 µs. Cost in the thread: 1 to 1.5 µs for a block of 64 tokens, and 90 ns for each id of
the line; what is not yet tokens is parsed there, too.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.workbench.recorder.trace_writer import LOG
from unified_tree.inputs.arguments import integer
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unified_tree.controllers.workbench.recorder.trace_writer import RecordedRequest, TraceWriter

QUEUE_FULL: Final = "the queue was full"
UNREADABLE: Final = "unreadable"
CLOSED: Final = "came after the end"
DEFAULT_QUEUE_BYTES = 64 << 20
ENTRY_BYTES = 512
"""Bytes that an entry of the queue takes beside its contents."""


class UnrecordedError(Exception):
    """A request cannot be recorded, and this is the reason under which it is counted."""


class Recorder:
    """Records requests by a thread. Every method may be called from any thread.

    Args:
        writer: where they go. From now on the thread alone writes.
        queue_bytes: what waits to be written has no more.

    Raises ConfigurationError for a bound below 1.
    """

    def __init__(self, writer: TraceWriter, *, queue_bytes: int | Any = DEFAULT_QUEUE_BYTES) -> None:
        self._writer = writer
        self._room = integer(queue_bytes, "queue_bytes", ConfigurationError, minimum=1)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], Iterable[RecordedRequest]], int]] = deque()
        self._dropped: dict[str, int] = {}
        self._is_ending = self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="unified_tree recorder", daemon=True)
        self._thread.start()

    def record(self, request: RecordedRequest) -> bool:
        """Take a request; whether there was room for it. Its tokens must not change any more."""
        return self.offer(lambda: (request,), len(request.tokens) + len(request.answer))

    def offer(self, read: Callable[[], Iterable[RecordedRequest]], size_bytes: int) -> bool:
        """Take something that the thread makes requests of; whether there was room for it.

        Args:
            read: raises UnrecordedError for what has none.
            size_bytes: what it holds until then.
        """
        size_bytes += ENTRY_BYTES
        with self._changed:
            if self._is_ending or size_bytes > self._room:
                self.drop(CLOSED if self._is_ending else QUEUE_FULL)
                return False
            self._room -= size_bytes
            self._waiting.append((read, size_bytes))
            self._changed.notify_all()
            return True

    def drop(self, reason: str) -> None:
        """A request will be missing: it could not be offered."""
        with self._changed:
            self._dropped[reason] = self._dropped.get(reason, 0) + 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until all that was taken is written or lost."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._dropped or self._is_busy) or not self._thread.is_alive())

    def summary(self) -> str:
        """One line: what was recorded, and what was lost, so far."""
        return self._writer.summary()

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, for so long at most, and close the files. Idempotent."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._dropped or self._is_ending)
                dropped, self._dropped = self._dropped, {}
                entry = self._waiting.popleft() if self._waiting else None
                self._is_busy = True
            for reason, count in dropped.items():
                for _ in range(count):
                    self._writer.lose(reason)
            if entry is not None:
                self._write(entry[0])
                with self._changed:
                    self._room += entry[1]
            elif not dropped:
                break
        self._writer.close()
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _write(self, read: Callable[[], Iterable[RecordedRequest]]) -> None:
        try:
            for request in read():
                self._writer.write(request)
        except UnrecordedError as error:
            self._writer.lose(str(error))
        except Exception as error:  # what a client sends may be anything
            self._writer.lose(UNREADABLE)
            LOG.debug("a request could not be read: %s", type(error).__name__)  # its message may hold a prompt
