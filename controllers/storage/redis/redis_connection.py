"""redis-py's connection, in which every wait ends at a deadline.

The time-outs of redis-py begin anew with every piece that arrives, so that a server which trickles is waited for without end.
This is all that we add to it, and the certificates are loaded once instead of with every connection.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from redis import Connection, ConnectionPool, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from unified_tree.controllers.storage.redis.redis_settings import UNIX, RedisSettings
from unified_tree.controllers.storage.server_address import host_and_port
from unified_tree.terms.errors import ConfigurationError

_READ_BYTES = 1 << 18
"""In one call of the system."""
_PIECE_BYTES = 6000
"""Shorter words of commands are joined before they are sent."""


class _BoundedSocket:
    """A socket whose waits end at `deadline` (`time.monotonic`), unless it was told not to wait at all."""

    def __init__(self, plain: socket.socket, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self._plain = plain
        self.deadline = time.monotonic() + timeout_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def recv(self, *arguments: Any) -> bytes:
        return self._hurried().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        return self._hurried().recv_into(*arguments)

    def sendall(self, data: Any) -> None:
        self._hurried().sendall(data)

    def _hurried(self) -> socket.socket:
        if self._plain.gettimeout() != 0:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the server did not answer in time")
            self._plain.settimeout(left)
        return self._plain


class TcpConnection(Connection):
    """To a host and port, with or without TLS.

    Args:
        tls: for the encryption, see `tls_context`; None for none.
        others: see redis-py.
    """

    def __init__(self, *, tls: ssl.SSLContext | None, **others: Any) -> None:
        self._tls = tls
        super().__init__(**others)

    def expect(self, timeout_s: float) -> None:
        """Set the time for all that follows; after it redis-py's TimeoutError is raised."""
        self._bounded.deadline = time.monotonic() + timeout_s

    def _connect(self) -> _BoundedSocket:  # pyright: ignore[reportIncompatibleMethodOverride]
        plain = super()._connect()
        try:
            made = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise
        self._bounded = _BoundedSocket(made, self.socket_connect_timeout)
        return self._bounded


class UnixConnection(UnixDomainSocketConnection):
    """To a unix socket."""

    def expect(self, timeout_s: float) -> None:
        """See TcpConnection.expect."""
        self._bounded.deadline = time.monotonic() + timeout_s

    def _connect(self) -> _BoundedSocket:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._bounded = _BoundedSocket(super()._connect(), self.socket_connect_timeout)
        return self._bounded


def connections_to(address: str, settings: RedisSettings, tls: ssl.SSLContext | None) -> ConnectionPool:
    """The connections to one server: nothing is retried or decoded, and what is sent is not copied."""
    where: dict[str, Any]
    if address.startswith(UNIX):
        where = {"connection_class": UnixConnection, "path": address.removeprefix(UNIX)}
    else:
        host, port = host_and_port(address)
        where = {"connection_class": TcpConnection, "host": host, "port": port, "tls": tls}
    return ConnectionPool(
        max_connections=1 << 31,
        db=settings.database,
        username=settings.username or None,
        password=settings.password or None,
        socket_timeout=settings.request_timeout_s,
        socket_connect_timeout=settings.connect_timeout_s,
        socket_read_size=_READ_BYTES,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        command_packer=PythonRespSerializer(_PIECE_BYTES, _encoded),
        **where,
    )


def _encoded(word: object) -> bytes | memoryview:
    return word if isinstance(word, bytes | memoryview) else str(word).encode()


def tls_context(settings: RedisSettings) -> ssl.SSLContext | None:
    """What the settings say of TLS; None if they want none. Raises ConfigurationError for files that cannot be loaded."""
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        context.check_hostname = settings.tls_check_hostname
        if settings.tls_cert_file:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
    except OSError as error:
        files = [settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file]
        raise ConfigurationError(f"redis: the certificates {files} cannot be loaded: {error}") from error
    return context
