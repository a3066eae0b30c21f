"""Which server keeps a key: the only one, or the owner of the key's slot in a cluster.

redis-py's own cluster client would ask servers of which it is known that they do not answer, one after another, each for its
whole time: it has no circuit breaker. So the table of slots is kept here, and the breaker of a server decides who is asked.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError, ResponseError

from unified_tree.controllers.storage.guarded_storage import CircuitBreaker
from unified_tree.controllers.storage.redis.redis_connection import TcpConnection, UnixConnection, connections_to, tls_context
from unified_tree.controllers.storage.redis.redis_settings import UNIX, RedisSettings, is_address
from unified_tree.terms.errors import ConfigurationError, StorageError


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
