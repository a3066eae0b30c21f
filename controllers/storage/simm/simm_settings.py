"""The settings of a SiMM engine."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import (
    LONGEST_S,
    SECONDS,
    Bounds,
    check_address,
    host_and_port,
)
from unified_tree.controllers.storage.registered_storage import RegisteredSettings
from unified_tree.terms.errors import ConfigurationError

LARGEST_BYTES = 67_088_384
"""What a client takes as one value; the servers of release 0.2.0 promise only 4 MB."""
_BOUNDS = {
    "thread_pool_size": Bounds(1, 1 << 12),
    "largest_value_bytes": Bounds(1, LARGEST_BYTES),
    "request_timeout_ms": Bounds(1, int(1000 * LONGEST_S)),
    "connect_timeout_s": SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimmSettings(RegisteredSettings):
    """Settings of SiMM's client, which holds them for the whole process: a process has one manager.

    Attributes:
        manager_address: "host:port" of the cluster manager; 30001 is its default port.
        devices: RDMA devices, by commas; "" for those of the NUMA nodes that this process may run on. SICL_NET_DEVICES wins.
        thread_pool_size: the client's.
        log_file: the client's; "" leaves its own choice, /var/log/simm/simm_clnt.log.
        largest_value_bytes: which the servers take.
        request_timeout_ms: of one request of the client.
        connect_timeout_s: to see whether the manager listens, before the client is made.

    Raises ConfigurationError for invalid values.
    """

    manager_address: str
    devices: str = ""
    thread_pool_size: int = 10
    log_file: str = ""
    largest_value_bytes: int = LARGEST_BYTES
    request_timeout_ms: int = 1000
    connect_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        self._check("simm", _BOUNDS)
        check_address("simm", "manager_address", self.manager_address)
        names = self.devices.split(",") if self.devices else []
        if not all(name and name.isprintable() and name == name.strip() for name in names):
            raise ConfigurationError(f"simm: devices must be names with commas between them, not {self.devices!r}")
        if "\0" in self.log_file:
            raise ConfigurationError(f"simm: log_file must be a path, not {self.log_file!r}")

    @property
    def manager(self) -> tuple[str, int]:
        """Host and port."""
        return host_and_port(self.manager_address)
