"""A pool of open connections to one server; an acquired connection belongs to one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Pooled(Protocol):
    """A connection that can be kept open for later."""

    def is_quiet(self) -> bool:
        """Whether it is still open, and nothing waits to be read."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


Connection = TypeVar("Connection", bound=Pooled)


class ConnectionPool(Generic[Connection]):
    """Returns idle connections, the one used last first, and opens one if none is idle.

    Args:
        connect: makes a connection.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_retired = False

    def acquire(self) -> Connection:
        """A connection, an idle one if it is still open. Raises as `connect`."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return self._connect()

    def release(self, connection: Connection) -> None:
        """Return a connection on which all replies were read."""
        with self._lock:
            if not self._is_retired:
                self._idle.append(connection)
                return
        connection.close()

    def close_idle(self) -> None:
        """Close idle connections, after the server was unreachable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def retire(self) -> None:
        """Close idle connections now, and others when they are released."""
        with self._lock:
            self._is_retired = True
        self.close_idle()
