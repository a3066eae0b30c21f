"""Connections to one server that are kept open; an acquired one is its thread's alone, and every thread gets one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Pooled(Protocol):
    """A connection that can be kept open for later."""

    def is_quiet(self) -> bool:
        """Whether it still stands, and nothing waits to be read."""
        ...

    def close(self) -> None:
        """Hang up; idempotent."""
        ...


Connection = TypeVar("Connection", bound=Pooled)


class ConnectionPool(Generic[Connection]):
    """Lends connections, the one used last first, and makes one where none is idle.

    Args:
        connect: makes a connection.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_retired = False

    def acquire(self) -> Connection:
        """A connection, an old one if it still stands. Raises as `connect`."""
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
        """Keep a connection on which all answers were read."""
        with self._lock:
            if not self._is_retired:
                self._idle.append(connection)
                return
        connection.close()

    def close_idle(self) -> None:
        """Hang up what is not in use: the server is away, or was."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def retire(self) -> None:
        """Hang up what is idle, and later what is released."""
        with self._lock:
            self._is_retired = True
        self.close_idle()
