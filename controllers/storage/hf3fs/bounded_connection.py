"""HTTP whose every answer comes by one instant.

The time-outs of `http.client` begin anew with every byte. Here one instant bounds connecting, sending and the whole answer.
"""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import closing
from typing import Any


class _BoundedSocket(socket.socket):
    """A socket whose every wait ends at one instant."""

    deadline = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read, until the deadline."""
        self.hurry()
        return super().recv_into(buffer, nbytes, flags)

    def hurry(self) -> None:
        """Set the time that is left."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)


class BoundedConnection(http.client.HTTPConnection):
    """A connection that asks one question at a time."""

    _deadline = 0.0

    def connect(self) -> None:
        """Connect within the time that is left."""
        left = self._deadline - time.monotonic()
        made = socket.create_connection((self.host, self.port), timeout=max(left, 0.001))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _BoundedSocket(made.family, made.type, made.proto, fileno=made.detach())
        self.sock.deadline = self._deadline

    def ask(self, path: str, body: bytes, headers: dict[str, str], deadline: float) -> tuple[int, bytes]:
        """The status and the whole answer."""
        self._deadline = deadline
        if self.sock is None:
            self.connect()
        assert isinstance(self.sock, _BoundedSocket)
        self.sock.deadline = deadline
        self.sock.hurry()
        self.request("POST", path, body, headers)
        with closing(self.getresponse()) as response:
            return response.status, response.read()

    def is_quiet(self) -> bool:
        """Whether the other side has neither hung up nor said what it was not asked."""
        if self.sock is None:
            return False
        self.sock.settimeout(0)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False
