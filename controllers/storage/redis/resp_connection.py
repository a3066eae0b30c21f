"""One connection to one server, which sends pages from host memory and receives them into it without a copy."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from itertools import islice

from unified_tree.controllers.storage.redis.redis_settings import UNIX, RedisSettings
from unified_tree.controllers.storage.redis.resp_reader import Answer, RespError, RespReader
from unified_tree.controllers.storage.server_address import host_and_port
from unified_tree.errors import ConfigurationError, StorageError

_PIECES = 512
"""In one call of the system, which takes 1024 at most."""
Piece = bytes | memoryview


def command(*words: Piece) -> list[Piece]:
    """The pieces of a command; words that are memory are not copied."""
    pieces: list[Piece] = []
    head = b"*%d\r\n" % len(words)
    for word in words:
        if isinstance(word, memoryview):
            pieces += (head + b"$%d\r\n" % word.nbytes, word)
            head = b"\r\n"
        else:
            head += b"$%d\r\n%b\r\n" % (len(word), word)
    return [*pieces, head]


class RespConnection:
    """An open and authenticated connection. One thread at a time. After any error it must be closed.

    Args:
        address: of the server, as in the settings.
        settings: how to get in.
        tls: for the encryption, see `tls_context`; None for none. A unix socket has none.

    Raises OSError or StorageError if the server is unreachable or refuses us.
    """

    def __init__(self, address: str, settings: RedisSettings, tls: ssl.SSLContext | None) -> None:
        self._deadline = time.monotonic() + settings.connect_timeout_s
        self._socket = _connected(address, settings.connect_timeout_s, tls)
        self._reader = RespReader(self._receive)
        try:
            if settings.password:
                user = [settings.username.encode()] if settings.username else []
                self._ask("AUTH", *user, settings.password.encode())
            if settings.database:
                self._ask("SELECT", b"%d" % settings.database)
            self._ask("PING")
        except (OSError, StorageError):
            self.close()
            raise

    def expect(self, deadline: float) -> None:
        """Set the deadline of all following calls, in `time.monotonic`; after it they raise TimeoutError."""
        self._deadline = deadline

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send commands. Raises OSError."""
        if isinstance(self._socket, ssl.SSLSocket):
            for piece in pieces:
                self._wait()
                self._socket.sendall(piece)
            return
        position, left = 0, [piece.cast("B") if isinstance(piece, memoryview) else memoryview(piece) for piece in pieces]
        while position < len(left):
            self._wait()
            sent = self._socket.sendmsg(islice(left, position, position + _PIECES))
            while position < len(left) and sent >= left[position].nbytes:
                sent -= left[position].nbytes
                position += 1
            if sent:
                left[position] = left[position][sent:]

    def read(self, page: memoryview | None = None) -> Answer:
        """The next answer, see RespReader.read. Raises OSError and StorageError."""
        return self._reader.read(page)

    def is_quiet(self) -> bool:
        """Whether nothing unexpected waits to be read, such as the end of the connection."""
        if not self._reader.is_empty or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _ask(self, name: str, *words: bytes) -> None:
        self.send(command(name.encode(), *words))
        answer = self.read()
        if isinstance(answer, RespError):
            raise StorageError(f"redis: the server answers {name} with {answer.text}")

    def _wait(self) -> None:
        """Let the next call of the system wait until the deadline at most."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server did not answer in time")
        self._socket.settimeout(left)

    def _receive(self, target: memoryview) -> int:
        self._wait()
        return self._socket.recv_into(target)


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


def _connected(address: str, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    if address.startswith(UNIX):
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
        try:
            plain.connect(address.removeprefix(UNIX))
        except OSError:
            plain.close()
            raise
        return plain
    host, port = host_and_port(address)
    plain = socket.create_connection((host, port), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise
