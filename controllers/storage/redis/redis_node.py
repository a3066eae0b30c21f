"""One server: its connections, and whether it is believed to be unreachable."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from redis.exceptions import ClusterDownError, RedisError, ResponseError

from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.redis.redis_connection import TcpConnection, UnixConnection, connections_to
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.terms.errors import StorageError

Command: TypeAlias = tuple[bytes | memoryview, ...]
Reply: TypeAlias = "bytes | int | ResponseError | list[Reply] | None"
"""A string, a number, a refusal, several, or nothing."""
Asked: TypeAlias = TcpConnection | UnixConnection
_ALONE_BYTES = 1 << 17
"""Longer pieces are sent from where they lie."""
_TOGETHER_BYTES = 1 << 20
_LOST = (OSError, RedisError, ValueError)
"""Raised by redis-py for a server that is away or says what is not its protocol; ValueError for a refusal in odd words."""


class RedisNode:
    """Asks one server. Thread-safe; each thread has a connection of its own while it asks.

    Args:
        address: of the server.
        settings: credentials and time limits.
        tls: see `redis_connection.tls_context`.
    """

    def __init__(self, address: str, settings: RedisSettings, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.breaker = CircuitBreaker(settings.retry_pause_s, store=f"redis: the server at {address}")
        self._connections: Any = connections_to(address, settings, tls)

    def ask(self, commands: Sequence[Command], timeout_s: float) -> list[Reply]:
        """The replies. Raises StorageError for a server that is away."""
        return list(self.replies(self.send(commands, timeout_s), len(commands), timeout_s))

    def send(self, commands: Sequence[Command], timeout_s: float) -> Asked:
        """Send commands in a pipeline; the caller reads the replies. Raises StorageError."""
        connection: Asked | None = None
        try:
            taken: Asked = self._connections.get_connection()
            connection = taken
            taken.expect(timeout_s)
            taken.send_packed_command(_joined(taken.pack_commands(commands)))
        except _LOST as error:
            raise self._lost(connection, error) from error
        return taken

    def replies(self, connection: Asked, count: int, timeout_s: float) -> Iterator[Reply]:
        """What is answered on a connection, all within the time, and all must be read. Raises StorageError."""
        is_down = False
        try:
            connection.expect(timeout_s)
            for _ in range(count):
                try:
                    reply = connection.read_response()
                except ResponseError as refusal:
                    reply = refusal
                is_down = is_down or isinstance(reply, ClusterDownError)
                yield reply
        except _LOST as error:
            raise self._lost(connection, error) from error
        self._connections.release(connection)
        if is_down:
            self.breaker.failed()
        else:
            self.breaker.succeeded()

    def close(self) -> None:
        """Close idle connections."""
        self._connections.disconnect(inuse_connections=False)

    def _lost(self, connection: Asked | None, error: Exception) -> StorageError:
        self.breaker.failed()
        if connection is not None:
            connection.disconnect()
            self._connections.release(connection)
        self.close()
        return StorageError(f"redis: {self.address}: {error}")


def _joined(pieces: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Short pieces joined into longer ones, for each is a call of the system and may wake the server."""
    kept: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if len(piece) > _ALONE_BYTES or size > _TOGETHER_BYTES:
            yield b"".join(kept)
            kept, size = [], 0
        if len(piece) > _ALONE_BYTES:
            yield piece
        else:
            kept.append(piece)
            size += len(piece)
    yield b"".join(kept)
