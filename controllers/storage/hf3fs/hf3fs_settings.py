"""What a 3FS engine is told."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from unified_tree.controllers.storage.engine_settings import BYTES, SECONDS, Bounds, check_settings, is_loopback
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

_RANK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WAYS = ("auto", "posix", "usrbio")
_BOUNDS = {
    "capacity_bytes": BYTES,
    "request_timeout_s": SECONDS,
    "io_timeout_s": SECONDS,
    "retry_pause_s": SECONDS,
    "io_threads": Bounds(1, 256),
    "ring_entries": Bounds(1, 1 << 16),
    "piece_bytes": Bounds(512, 1 << 30),
    "share_bytes": BYTES,
    "thread_idle_s": SECONDS,
    "close_wait_s": SECONDS,
    "ended_leases": Bounds(1, 1 << 16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hf3fsSettings:
    """Settings of an engine over one rank's file.

    Attributes:
        metadata: "http://host:port" of the metadata service.
        directory: where the file lies, on a mount of 3FS.
        rank: names the file, `<rank>.pages`. Who should share pages has the same; tensor-parallel ranks differ in it.
        capacity_bytes: of the file, which is allocated at once; every sharer's must be the same.
        io: "usrbio", "posix" (preadv and pwritev), or "auto", which is usrbio where its module and a mount of 3FS are.
        mount: must be a mount point when the engine is made, with `directory` on it, else it refuses; "" is not checked. A
            directory whose mount is missing is a directory on another disk.
        token: of the metadata service; "" for none, which only one on loopback has.
        request_timeout_s: for one answer of the metadata service, connecting included.
        io_timeout_s: for reading or writing all pages of one call; must be shorter than the service's lease.
        retry_pause_s: between two tries of a service or a file that is away.
        io_threads: of POSIX; so many pages are read or written at once.
        ring_entries: of USRBIO; as many pages in flight, each way, and as many slots of shared memory of the largest page.
        preallocate: reserve the file's room on the disk, where the file system can.
        piece_bytes: of POSIX: read at once into a thread's buffer, which should stay in its processor's cache.
        share_bytes: of POSIX: another thread is woken for so much.
        thread_idle_s: of POSIX: a thread without work ends after it.
        close_wait_s: how long closing a file is waited for; a frozen mount holds up even that.
        ended_leases: reads whose end the service has not been told yet; of more the oldest end by themselves, with their lease.

    Raises ConfigurationError for invalid values.
    """

    metadata: str
    directory: str
    rank: str
    capacity_bytes: int
    io: str = "auto"
    mount: str = ""
    token: str = field(default="", repr=False)
    request_timeout_s: float = 2.0
    io_timeout_s: float = 10.0
    retry_pause_s: float = 1.0
    io_threads: int = 4
    ring_entries: int = 64
    preallocate: bool = True
    piece_bytes: int = 256 << 10
    share_bytes: int = 1 << 20
    thread_idle_s: float = 10.0
    close_wait_s: float = 1.0
    ended_leases: int = 256

    def __post_init__(self) -> None:
        check_settings("hf3fs", self, _BOUNDS)
        host, _ = self.address
        if not self.directory or "\0" in self.directory or "\0" in self.mount:
            raise ConfigurationError(
                f"hf3fs: directory and mount must be paths, not {repr_of(self.directory)} and {repr_of(self.mount)}"
            )
        if not _RANK.fullmatch(self.rank):
            raise ConfigurationError(
                "hf3fs: rank must be 1 to 64 letters, digits, ., - and _, with a letter or digit first, "
                f"not {repr_of(self.rank)}"
            )
        if self.io not in _WAYS:
            raise ConfigurationError(f"hf3fs: io must be one of {', '.join(_WAYS)}, not {repr_of(self.io)}")
        if not self.token.isascii() or not self.token.isprintable() or self.token != self.token.strip():
            raise ConfigurationError(
                "hf3fs: token must be printable ASCII without white space around it, which what was given is not"
            )
        if not self.token and not is_loopback(host):
            raise ConfigurationError(f"hf3fs: the metadata service at {self.metadata} is not on loopback, so it wants a token")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the metadata service. Raises ConfigurationError."""
        parts = urlsplit("")
        host = port = None
        with suppress(ValueError):
            parts = urlsplit(self.metadata)
            host, port = parts.hostname, parts.port
        given = (parts.path.removesuffix("/"), parts.query, parts.fragment, parts.username, parts.password)
        if not host or not port or parts.scheme != "http" or any(given):
            raise ConfigurationError(f"hf3fs: metadata must be http://host:port, not {repr_of(self.metadata)}")
        return host, port
