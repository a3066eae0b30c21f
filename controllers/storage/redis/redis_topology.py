"""Which server keeps a key: the only one, or the owner of the key's slot in a cluster.

redis-py's own cluster client would ask servers of which it is known that they do not answer, one after another, each for its
whole time: it has no circuit breaker. So the table of slots is kept here, and the breaker of a server decides who is asked.

redis-py's time-outs begin anew with every piece that arrives, so that a server which trickles is waited for without end. In its
connections here every wait ends at a deadline, and the certificates are loaded once instead of with every connection.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from redis import Connection, ConnectionPool, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError, ResponseError
from redis.retry import Retry

from unified_tree.controllers.storage.engine_settings import host_and_port
from unified_tree.controllers.storage.guarded_storage import CircuitBreaker
from unified_tree.controllers.storage.redis.redis_settings import UNIX, RedisSettings, is_address
from unified_tree.terms.errors import ConfigurationError, StorageError

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


class RedisTopology:
    """The servers and their slots. Thread-safe.

    Args:
        settings: where they are.

    Raises StorageError if no address accepts us, ConfigurationError if `cluster` does not match the server.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._tls = tls_context(settings)
        self._lock = threading.Lock()
        self._seeds = {address: RedisNode(address, settings, self._tls) for address in settings.addresses}
        self._nodes: dict[str, RedisNode] = {}
        self._owners: list[RedisNode | None] = []
        self._read_at = -math.inf
        try:
            troubles = self._read(list(self._seeds.values()))
        except ConfigurationError:
            self.close()
            raise
        if troubles:
            self.close()
            raise StorageError(f"redis: no server lets us in: {'; '.join(troubles)}")

    def owner(self, name: bytes) -> RedisNode | None:
        """The server of a key; None if no server has its slot."""
        owners = self._owners
        return owners[0] if len(owners) == 1 else owners[key_slot(name)]

    @property
    def nodes(self) -> list[RedisNode]:
        """The servers that keep something."""
        return list(dict.fromkeys(node for node in self._owners if node is not None))

    def refresh(self) -> bool:
        """Ask a reachable server for the current slots, at most once per pause; whether that was done.

        The addresses of the settings are asked too, in case all known nodes have moved. No effect without a cluster. Cost: a
        round trip; nothing if it is too early or another thread does it.
        """
        if not self._settings.cluster or not self._lock.acquire(blocking=False):
            return False
        try:
            now = time.monotonic()
            if now < self._read_at + self._settings.retry_pause_s:
                return False
            self._read_at = now
            there = [node for node in self._nodes.values() if not node.breaker.is_open]
            seeds = [node for address, node in self._seeds.items() if address not in self._nodes and node.breaker.admits()]
            return not self._read([*there, *seeds])
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close all connections."""
        for node in (*self._nodes.values(), *self._seeds.values()):
            node.close()

    def _read(self, candidates: list[RedisNode]) -> list[str]:
        """Read the slots from the first server that answers; else returns an error for each."""
        troubles = []
        words = (b"CLUSTER", b"SLOTS") if self._settings.cluster else (b"INFO", b"cluster")
        for node in candidates:
            try:
                [answer] = node.ask([words], self._settings.connect_timeout_s)
                self._learn(answer, node)
            except StorageError as error:
                troubles.append(f"{node.address}: {error}")
            else:
                return []
        return troubles or ["no server is there to be asked"]

    def _learn(self, answer: Reply, node: RedisNode) -> None:
        if not self._settings.cluster:
            if isinstance(answer, bytes) and b"cluster_enabled:1" in answer:
                raise ConfigurationError(f"redis: {node.address} belongs to a cluster; set cluster")
            self._owners, self._nodes = [node], {node.address: node}
            return
        if isinstance(answer, ResponseError) and "cluster support disabled" in str(answer):
            raise ConfigurationError(f"redis: {node.address} is no cluster; do not set cluster")
        owners: list[RedisNode | None] = [None] * SLOTS
        nodes: dict[str, RedisNode] = {}
        for first, last, address in _ranges(answer, node.address):
            if address not in nodes:
                known = self._nodes.get(address) or self._seeds.get(address)
                nodes[address] = known or RedisNode(address, self._settings, self._tls)
            owners[first : last + 1] = [nodes[address]] * (last + 1 - first)
        gone = [known for address, known in self._nodes.items() if address not in nodes and address not in self._seeds]
        self._owners, self._nodes = owners, nodes
        for lost in gone:
            lost.close()


def _ranges(answer: Reply, asked: str) -> Iterator[tuple[int, int, str]]:
    """First slot, last slot and master of each range. Raises StorageError for an answer that is no such table."""
    if not isinstance(answer, list):
        raise StorageError(f"redis: CLUSTER SLOTS is answered with {answer!r}")
    for entry in answer:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS and 0 < port < 1 << 16:
                name = host.decode("utf-8", "replace") if isinstance(host, bytes) else ""
                own = "127.0.0.1" if asked.startswith(UNIX) else asked.rpartition(":")[0]
                address = f"{name if name not in {'', '?'} else own}:{port}"
                if not is_address(address):
                    raise StorageError(f"redis: CLUSTER SLOTS holds {entry!r}")
                yield first, last, address
            case _:
                raise StorageError(f"redis: CLUSTER SLOTS holds {entry!r}")


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
        tls: see `tls_context`.
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
        """The answers on a connection, within the time; the caller reads all of them. Raises StorageError."""
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
