"""Where the frames of an inspector go: to the page's process, or into a file."""

from __future__ import annotations

import gzip
from collections import deque
from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.inspector.frames import MAGIC, FrameDecoder

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from unified_tree.controllers.inspector.frames import Frame

PIECE_BYTES = 1 << 16
QUESTION_BYTES = 1 << 18
"""As much of a pasted prompt is received in a step; it takes less than 0.1 ms, and a long prompt fewer steps."""


class Sink(Protocol):
    """Takes frames.

    Attributes:
        is_open: whether there is still someone to read them.
    """

    is_open: bool

    def put(self, frame: bytes) -> None:
        """Take a frame."""

    def flush(self) -> bool:
        """Pass on what can be passed on without waiting; whether nothing is left."""
        ...

    def take(self) -> list[Frame]:
        """The questions that have come."""
        ...

    def close(self) -> None:
        """No more frames come. Idempotent."""


class SocketSink:
    """The page's process, through a socket that never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.is_open = True
        self._connection = connection
        self._pending: deque[memoryview] = deque()
        self._decoder = FrameDecoder()
        self._received = memoryview(bytearray(QUESTION_BYTES))

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
        """See Sink."""
        if not self.is_open:
            return []
        try:
            size = self._connection.recv_into(self._received)
        except BlockingIOError:
            return []
        except OSError:
            size = 0
        if not size:
            self.close()
            return []
        return list(self._decoder.feed(self._received[:size]))

    def close(self) -> None:
        """See Sink. The page's process ends by it."""
        self.is_open = False
        self._pending.clear()
        self._connection.close()


class FileSink:
    """A recording. Raises OSError where the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.is_open = True
        self._file = gzip.open(path, "wb", compresslevel=1)  # noqa: SIM115  open until `close`
        self._file.write(MAGIC)

    def put(self, frame: bytes) -> None:
        """See Sink."""
        self._file.write(frame)

    def flush(self) -> bool:
        """See Sink."""
        return True

    def take(self) -> list[Frame]:
        """See Sink; a file asks nothing."""
        return []

    def close(self) -> None:
        """See Sink."""
        self.is_open = False
        self._file.close()
