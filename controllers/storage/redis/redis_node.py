"""A server, the connections to it, and whether it is taken to be away."""

from __future__ import annotations

import ssl

from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.connection_pool import ConnectionPool
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.resp_connection import RespConnection


class RedisNode:
    """Lends connections, each to one thread; as many as are asked for at once.

    Args:
        address: of the server.
        settings: how to get in.
        tls: see RespConnection.
    """

    def __init__(self, address: str, settings: RedisSettings, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.breaker = CircuitBreaker(settings.retry_pause_s, store=f"redis: the server at {address}")
        self._connections = ConnectionPool(lambda: RespConnection(address, settings, tls))

    def acquire(self) -> RespConnection:
        """A connection, an old one if it still stands. Raises as RespConnection."""
        return self._connections.acquire()

    def release(self, connection: RespConnection) -> None:
        """All answers were read."""
        self.breaker.succeeded()
        self._connections.release(connection)

    def lost(self, connection: RespConnection | None = None) -> None:
        """The connection failed, or could not be made; the others will not do either."""
        self.breaker.failed()
        if connection is not None:
            connection.close()
        self._connections.close_idle()

    def retire(self) -> None:
        """Hang up what is idle, and what is released later. Nothing is acquired any more."""
        self._connections.retire()
