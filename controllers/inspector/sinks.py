"""Where the frames of an inspector go: to the page's process, or into a file."""

from __future__ import annotations

import gzip
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.inspector.frames import MAGIC, QuestionReader

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from unified_tree.controllers.inspector.frames import Frame

PIECE_BYTES = 1 << 16
WAITING_BYTES = 8 << 20
"""While more than this waits to be written into a file, an inspector does nothing."""
FILE_ENDS_S = 30.0
"""So long the end of a recording waits for its disk."""


class Sink(Protocol):
    """Takes frames.

    Attributes:
        is_open: whether there is still someone to read them.
    """

    is_open: bool

    def put(self, frame: bytes) -> None:
        """Take a frame. Never blocks, and never raises."""

    def flush(self) -> bool:
        """Pass on what can be passed on without waiting; whether there is room for more. Raises OSError where nothing more can
        be passed on, ever.
        """
        ...

    def take(self) -> list[Frame]:
        """The questions that have come."""
        ...

    def close(self) -> None:
        """No more frames come. Idempotent. Raises OSError if not all was passed on that had to be."""


class SocketSink:
    """The page's process, through a socket that never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.is_open = True
        self._connection = connection
        self._pending: deque[memoryview] = deque()
        self._questions = QuestionReader()

    def put(self, frame: bytes) -> None:
        """See Sink."""
        if self.is_open:
            self._pending.append(memoryview(frame))

    def flush(self) -> bool:
        """See Sink. One system call for each piece that the socket takes."""
        while self._pending and self.is_open:
            frame = self._pending[0]
            try:
                sent = self._connection.send(frame[:PIECE_BYTES])
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                break
            if sent == len(frame):
                self._pending.popleft()
            else:
                self._pending[0] = frame[sent:]
        return True

    def take(self) -> list[Frame]:
        """See Sink. One system call."""
        if not self.is_open:
            return []
        try:
            question = self._questions.read(self._connection)
        except BlockingIOError:
            return []
        except OSError:  # the page's process is gone
            self.close()
            return []
        return [] if question is None else [question]

    def close(self) -> None:
        """See Sink. The page's process ends by it."""
        self.is_open = False
        self._pending.clear()
        self._connection.close()


class FileSink:
    """A recording. A thread writes it, so that no step waits for a disk. Raises OSError where it cannot be begun."""

    def __init__(self, path: Path) -> None:
        self.is_open = True
        self._failure: OSError | None = None
        self._path = path
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque((MAGIC,))
        self._waiting_bytes = 0
        self._is_ending = self._is_awaited = self._is_flushing = False
        opened = open(path, "wb", opener=_open_without_waiting)  # noqa: SIM115  the thread closes it
        self._file = gzip.GzipFile(fileobj=opened, filename="", mode="wb", compresslevel=1)
        self._opened = opened
        self._thread = threading.Thread(target=self._write, name="unified_tree recording", daemon=True)
        self._thread.start()

    def put(self, frame: bytes) -> None:
        """See Sink."""
        with self._changed:
            if self.is_open and self._failure is None:
                self._waiting.append(frame)
                self._waiting_bytes += len(frame)
                self._changed.notify_all()

    def flush(self) -> bool:
        """See Sink."""
        if self._failure is not None:
            raise self._failure
        return self._waiting_bytes <= WAITING_BYTES

    def wait(self) -> None:
        """Wait until the disk has all that was put. Raises OSError as `flush`."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.flush() and not self._is_awaited)

    def take(self) -> list[Frame]:
        """See Sink; a file asks nothing."""
        return []

    def close(self) -> None:
        """See Sink. Waits for the disk, FILE_ENDS_S at most."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(FILE_ENDS_S)
        with self._changed:
            if self._thread.is_alive():
                self._failure = TimeoutError(f"{self._path}: the disk has not taken all of it for {FILE_ENDS_S:g} s")
            self.is_open = False
            self._forget()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        """Write what is put, in a thread of its own."""
        unflushed = 0
        try:
            with self._opened, self._file:
                while (frame := self._next()) is not None:
                    self._file.write(frame)
                    unflushed += len(frame)
                    if not frame or unflushed > PIECE_BYTES:  # so that a full disk is seen early, and a crash costs little
                        self._file.flush()
                        unflushed = 0
        except OSError as error:
            with self._changed:
                self._failure = OSError(error.errno, f"{error.strerror or error}", str(self._path))
                self._forget()

    def _next(self) -> bytes | None:
        """The oldest frame that waits; an empty one where somebody waits for all to be written; None if no more come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending or self._is_awaited)
            if self._waiting:
                frame = self._waiting.popleft()
                self._waiting_bytes = max(0, self._waiting_bytes - len(frame))
                return frame
            if self._is_awaited and not self._is_flushing:
                self._is_flushing = True
                return b""
            self._is_awaited = self._is_flushing = False
            self._changed.notify_all()
            return None if self._is_ending else b""

    def _forget(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._changed.notify_all()


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens a file; one that would wait for somebody to read it, a FIFO, is an error."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor
