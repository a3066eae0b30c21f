"""What the engine asks the metadata service, over connections that are kept, each question within its time.

The time-outs of `http.client` begin anew with every byte. Here one instant bounds connecting, sending and the whole answer.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from unified_tree.controllers.storage.hf3fs.file_layout import FileLayout
from unified_tree.controllers.storage.hf3fs.metadata_wire import LARGEST_BATCH, WireError, pack_request, unpack_answer
from unified_tree.terms.errors import StorageError


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


class ConnectionPool:
    """Open connections to one server: returns the idle one used last, and opens one if none is idle. One thread uses each.

    Args:
        connect: makes a connection.
    """

    def __init__(self, connect: Callable[[], BoundedConnection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[BoundedConnection] = []
        self._is_retired = False

    def acquire(self) -> BoundedConnection:
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

    def release(self, connection: BoundedConnection) -> None:
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


class MetadataAwayError(StorageError):
    """The service cannot be reached, does not answer in time, or answers nonsense."""


class MetadataRefusedError(StorageError):
    """The service answers, but does not do it. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"hf3fs: the metadata service refuses: {reason} (HTTP {status})")
        self.status = status


@dataclass(frozen=True, slots=True)
class Opened:
    """A rank's epoch, and how long leases last."""

    epoch: int
    lease_s: float


class MetadataClient:
    """One rank of one metadata service. Threads that ask at once have a connection each.

    Every method raises MetadataAwayError or MetadataRefusedError. No batch is longer than `metadata_wire.LARGEST_BATCH`.

    Args:
        address: host and port.
        rank: the rank's name.
        token: "" for none.
        timeout_s: for each answer.
        ended_leases: that are remembered until the next question, the youngest.
    """

    def __init__(self, address: tuple[str, int], rank: str, token: str, timeout_s: float, ended_leases: int = 256) -> None:
        assert ended_leases > 0
        self._ended_leases = ended_leases
        self._address = address
        self._rank = rank
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._lock = threading.Lock()
        self._connections = ConnectionPool(lambda: BoundedConnection(*address, timeout=timeout_s))
        self._ended: list[int] = []

    def open(self, layout: FileLayout, seen: int, *, may_replace: bool) -> Opened:
        """Open the rank, whose file bears the epoch `seen` (`RankFile.epoch`)."""
        said = self._json(
            "open",
            {"rank": self._rank, "namespaces": layout.described(), "seen": seen, "may_replace": may_replace},
        )
        epoch, lease_s = said.get("epoch"), said.get("lease_s")
        if type(epoch) is not int or not isinstance(lease_s, int | float):
            raise MetadataAwayError(f"hf3fs: what answers at {self._where} is no metadata service")
        return Opened(epoch, float(lease_s))

    def lookup(self, epoch: int, namespace: str, keys: Sequence[bytes]) -> list[int]:
        """Each key's page, or NOWHERE."""
        return self._keys("lookup", epoch, namespace, keys)[1]

    def read(self, epoch: int, namespace: str, keys: Sequence[bytes]) -> tuple[int, list[int]]:
        """A lease, and each key's page or NOWHERE."""
        return self._keys("read", epoch, namespace, keys)

    def reserve(self, epoch: int, namespace: str, keys: Sequence[bytes]) -> tuple[int, list[int]]:
        """A lease, and each key's page, PRESENT, BUSY or FULL."""
        return self._keys("reserve", epoch, namespace, keys)

    def confirm(self, epoch: int, namespace: str, lease: int, keys: Sequence[bytes], flags: bytes) -> list[int]:
        """Say how the writing of reserved keys ended: PRESENT or GONE for each."""
        return self._keys("confirm", epoch, namespace, keys, flags, lease=lease)[1]

    def delete(self, epoch: int, namespace: str, keys: Sequence[bytes]) -> None:
        """Forget keys."""
        self._keys("delete", epoch, namespace, keys)

    def clear(self, epoch: int, namespace: str) -> None:
        """Forget all keys of a namespace."""
        self._json("clear", {"rank": self._rank, "epoch": epoch, "namespace": namespace})

    def ended(self, lease: int) -> None:
        """Reading under a lease is over; the service learns it with the next question. Not an answer to anything."""
        with self._lock:
            self._ended.append(lease)
            del self._ended[: -self._ended_leases]  # a service that is away forgets them itself

    def close(self) -> None:
        """Close the connection."""
        self._connections.retire()

    @property
    def _where(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}"

    def _keys(
        self, name: str, epoch: int, namespace: str, keys: Sequence[bytes], flags: bytes = b"", **more: int
    ) -> tuple[int, list[int]]:
        assert len(keys) <= LARGEST_BATCH
        query = urlencode({"rank": self._rank, "epoch": epoch, "namespace": namespace, **more}, quote_via=quote)
        with self._lock:
            ended, self._ended = self._ended, []
        body = self._asked(f"/v1/{name}?{query}", pack_request(keys, ended, flags))
        try:
            return unpack_answer(body, len(keys))
        except WireError as error:
            raise MetadataAwayError(f"hf3fs: what answers at {self._where} is no metadata service: {error}") from error

    def _json(self, name: str, said: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = json.loads(self._asked(f"/v1/{name}", json.dumps(said).encode()))
        except ValueError as error:
            raise MetadataAwayError(f"hf3fs: what answers at {self._where} is no metadata service: {error}") from error
        return answer if isinstance(answer, dict) else {}

    def _asked(self, path: str, body: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        connection = self._connections.acquire()
        try:
            status, answer = connection.ask(path, body, self._headers, deadline)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connections.close_idle()
            raise MetadataAwayError(f"hf3fs: the metadata service at {self._where} does not answer: {error!r}") from error
        except BaseException:
            connection.close()
            raise
        if connection.sock is None:
            connection.close()
        else:
            self._connections.release(connection)
        if status != 200:
            raise MetadataRefusedError(status, _reason(answer))
        return answer


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return repr(answer[:200])
