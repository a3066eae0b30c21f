"""What a SiMM engine is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unified_tree.errors import ConfigurationError

LARGEST_BYTES = 67_088_384
"""What a client takes as one value; the servers of release 0.2.0 promise only 4 MB."""
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")
_POSITIVE = (
    "thread_pool_size",
    "request_timeout_ms",
    "connect_timeout_s",
    "retry_pause_s",
    "bounce_bytes",
    "batch_bytes",
    "largest_value_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimmSettings:
    """Settings of SiMM's client, which holds them for the whole process: a process has one manager.

    Attributes:
        manager_address: "host:port" of the cluster manager; 30001 is its default port.
        devices: RDMA devices, by commas; "" for those of the NUMA nodes that this process may run on. SICL_NET_DEVICES wins.
        thread_pool_size: the client's.
        log_file: the client's; "" leaves its own choice, /var/log/simm/simm_clnt.log.
        key_prefix: of every key, letters, digits, - and _: users of one store that should not share pages differ in it.
        largest_value_bytes: which the servers take.
        request_timeout_ms: of one request of the client.
        connect_timeout_s: to see whether the manager listens, before the client is made.
        retry_pause_s: between two tries of a store that is away.
        bounce_bytes: registered memory for pages that lie in no registered buffer; at least one value of every pool.
        batch_bytes: of pages in one call of the client.

    Raises ConfigurationError for values that cannot be.
    """

    manager_address: str
    devices: str = ""
    thread_pool_size: int = 10
    log_file: str = ""
    key_prefix: str = "ut"
    largest_value_bytes: int = LARGEST_BYTES
    request_timeout_ms: int = 1000
    connect_timeout_s: float = 2.0
    retry_pause_s: float = 1.0
    bounce_bytes: int = 32 << 20
    batch_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        host, _, port = self.manager_address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigurationError(
                f"simm: manager_address must be host:port, as in 10.0.0.7:30001, not {self.manager_address!r}"
            )
        if not _PREFIX.fullmatch(self.key_prefix):
            raise ConfigurationError(
                f"simm: key_prefix must be 1 to 32 letters, digits, - and _, which {self.key_prefix!r} is not"
            )
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"simm: {name} must be positive, not {getattr(self, name)!r}")
        if self.largest_value_bytes > LARGEST_BYTES:
            raise ConfigurationError(
                f"simm: largest_value_bytes must be at most {LARGEST_BYTES}, the client's limit, not {self.largest_value_bytes}"
            )

    @property
    def manager(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.manager_address.rpartition(":")
        return host.strip("[]"), int(port)
