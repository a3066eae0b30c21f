"""The settings of a Redis engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from unified_tree.controllers.storage.engine_settings import (
    BYTES,
    SECONDS,
    Bounds,
    check_key_prefix,
    check_settings,
    host_and_port,
)
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

UNIX = "unix:"
"""Before the path of a unix socket."""
_LONGEST_PATH_BYTES = 107
"""Of a unix socket (`sun_path`, with a zero behind it)."""
_BOUNDS = {
    "database": Bounds(0, (1 << 31) - 1),
    "ttl_s": Bounds(0, 1 << 31),
    "connect_timeout_s": SECONDS,
    "request_timeout_s": SECONDS,
    "retry_pause_s": SECONDS,
    "batch_bytes": BYTES,
    "scan_keys": Bounds(1, 1 << 16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Settings of a client of Redis or Valkey.

    Attributes:
        address: "host:port" or "unix:PATH"; of a cluster some of its nodes, separated by commas.
        cluster: the server is a cluster.
        username, password: of AUTH; without a password there is none.
        database: of SELECT; a cluster has only 0.
        tls: encrypt, and verify the server's certificate; not over a unix socket.
        tls_ca_file, tls_cert_file, tls_key_file: PEM; "" for the system's authorities and for no certificate of ours. Only with
            `tls`, and a key only with its certificate.
        tls_check_hostname: the certificate must be for the host of the address.
        key_prefix: of every key: users of one server that should not share pages differ in it.
        ttl_s: after which the server forgets a page; 0 for never.
        connect_timeout_s: to connect and be let in.
        request_timeout_s: for all answers to one batch, however they trickle.
        retry_pause_s: between two tries of a server that is away.
        batch_bytes: of pages in one pipeline to one server.
        scan_keys: that a server looks at in one step of `clear`; it serves others between the steps.

    Raises ConfigurationError for invalid values, and for those that would be ignored.
    """

    address: str
    cluster: bool = False
    username: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_check_hostname: bool = True
    key_prefix: str = "ut"
    ttl_s: int = 0
    connect_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    retry_pause_s: float = 1.0
    batch_bytes: int = 32 << 20
    scan_keys: int = 1000

    def __post_init__(self) -> None:
        check_settings("redis", self, _BOUNDS)
        if not self.addresses or not all(map(is_address, self.addresses)):
            raise ConfigurationError(f"redis: address must be host:port or unix:PATH, not {repr_of(self.address)}")
        if len(self.addresses) > 1 and not self.cluster:
            raise ConfigurationError(f"redis: more than one address needs cluster: {self.address!r}")
        if self.cluster and self.database:
            raise ConfigurationError(f"redis: a cluster has no database {self.database}")
        if self.username and not self.password:
            raise ConfigurationError("redis: a username needs a password")
        check_key_prefix("redis", self.key_prefix, signs=":-_")
        files = [self.tls_ca_file, self.tls_cert_file, self.tls_key_file]
        if any(files) and not self.tls:
            raise ConfigurationError(f"redis: the certificates {files} need tls")
        if self.tls_key_file and not self.tls_cert_file:
            raise ConfigurationError(f"redis: tls_key_file {self.tls_key_file!r} needs a tls_cert_file")
        if self.tls and any(address.startswith(UNIX) for address in self.addresses):
            raise ConfigurationError(f"redis: a unix socket has no tls: {self.address!r}")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of `address`, one by one."""
        return tuple(part.strip() for part in self.address.split(",") if part.strip())


def is_address(text: str) -> bool:
    """Whether a server can listen there."""
    if text.startswith(UNIX):
        return len(UNIX) < len(text.encode("utf-8", "surrogateescape")) <= len(UNIX) + _LONGEST_PATH_BYTES and "\0" not in text
    try:
        host_and_port(text)
    except ValueError:
        return False
    return True
