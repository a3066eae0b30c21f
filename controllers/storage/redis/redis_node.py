"""One server: its connections, and whether it is believed to be unreachable."""

from __future__ import annotations

import ssl

from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.connection_pool import ConnectionPool
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.resp_connection import RespConnection


class RedisNode:
    """Provides connections, each to one thread, without a limit on their number.

    Args:
        address: of the server.
        settings: credentials and time limits.
        tls: see RespConnection.
    """

    def __init__(self, address: str, settings: RedisSettings, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.breaker = CircuitBreaker(settings.retry_pause_s, store=f"redis: the server at {address}")
        self._connections = ConnectionPool(lambda: RespConnection(address, settings, tls))

    def acquire(self) -> RespConnection:
        """A connection, an idle one if it is still open. Raises as RespConnection."""
        return self._connections.acquire()

    def release(self, connection: RespConnection) -> None:
        """Return a connection on which all replies were read."""
        self.breaker.succeeded()
        self._connections.release(connection)

    def lost(self, connection: RespConnection | None = None) -> None:
        """Report a connection that failed or could not be opened; idle ones are closed too."""
        self.breaker.failed()
        if connection is not None:
            connection.close()
        self._connections.close_idle()

    def retire(self) -> None:
        """Close idle connections now, and others when they are released. Nothing is acquired any more."""
        self._connections.retire()
