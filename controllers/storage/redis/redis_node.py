"""A server, the connections to it that wait for use, and whether it is taken to be away."""

from __future__ import annotations

import ssl
import threading

from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
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
        self.breaker = CircuitBreaker(settings.retry_pause_s)
        self._settings = settings
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: list[RespConnection] = []
        self._is_retired = False

    def take(self) -> RespConnection:
        """A connection, an old one if it still stands. Raises as RespConnection."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return RespConnection(self.address, self._settings, self._tls)

    def give_back(self, connection: RespConnection) -> None:
        """All answers were read."""
        self.breaker.succeeded()
        with self._lock:
            if not self._is_retired:
                self._idle.append(connection)
                return
        connection.close()

    def lost(self, connection: RespConnection | None = None) -> None:
        """The connection failed, or could not be made; the others will not do either."""
        self.breaker.failed()
        if connection is not None:
            connection.close()
        self._hang_up()

    def retire(self) -> None:
        """Hang up what is idle, and what is given back later. Nothing is taken any more."""
        with self._lock:
            self._is_retired = True
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
