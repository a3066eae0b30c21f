"""The settings of a Mooncake engine."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.controllers.storage.engine_settings import (
    BYTES,
    LONGEST_S,
    MAX_BYTES,
    Bounds,
    check_address,
)
from unified_tree.controllers.storage.registered_storage import RegisteredSettings
from unified_tree.terms.errors import ConfigurationError

_BOUNDS = {
    "segment_bytes": Bounds(0, MAX_BYTES),
    "local_buffer_bytes": BYTES,
    "rpc_timeout_ms": Bounds(1, int(1000 * LONGEST_S)),
    "transfer_timeout_s": Bounds(1, int(LONGEST_S)),
    "setup_attempts": Bounds(1, 1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeSettings(RegisteredSettings):
    """Settings, the defaults being those for one machine and TCP. A batch must arrive well within the master's lease (5 s).

    Attributes:
        master: "host:port" of the master.
        metadata_server: "P2PHANDSHAKE" needs no server.
        local_hostname: under which other clients reach this one.
        protocol: "tcp" or "rdma".
        devices: RDMA devices, by commas; "" for none.
        segment_bytes: memory that this process gives to the store; its values go when it ends. 0 gives none.
        local_buffer_bytes: the client's own buffer, which this engine does not use.
        rpc_timeout_ms: for an answer of the master. One per process: what is in the environment as MC_RPC_TIMEOUT_MS wins.
        transfer_timeout_s: without a byte from a peer. The same for MC_TCP_PROGRESS_TIMEOUT_SEC and MC_TCP_STATUS_TIMEOUT_SEC.
        setup_attempts: to register with the master, some seconds each; MC_STORE_CLIENT_SETUP_RETRIES wins.

    Raises ConfigurationError for invalid values.
    """

    master: str
    metadata_server: str = "P2PHANDSHAKE"
    local_hostname: str = "127.0.0.1"
    protocol: str = "tcp"
    devices: str = ""
    segment_bytes: int = 0
    local_buffer_bytes: int = 16 << 20
    rpc_timeout_ms: int = 2000
    transfer_timeout_s: int = 10
    setup_attempts: int = 1

    def __post_init__(self) -> None:
        self._check("mooncake", _BOUNDS)
        check_address("mooncake", "master", self.master)
        if self.protocol not in {"tcp", "rdma"}:
            raise ConfigurationError(f"mooncake: protocol must be tcp or rdma, not {self.protocol!r}")
        for name in ("metadata_server", "local_hostname"):
            text = getattr(self, name)
            if not text or not text.isprintable() or text != text.strip():
                raise ConfigurationError(f"mooncake: {name} must be an address, not {text!r}")
        if self.devices and self.protocol == "tcp":
            raise ConfigurationError(f"mooncake: devices {self.devices!r} need protocol rdma; tcp would ignore them")

    @property
    def client_environment(self) -> dict[str, str]:
        """What the client reads from the environment, and nowhere else."""
        seconds = str(self.transfer_timeout_s)
        return {
            "MC_RPC_TIMEOUT_MS": str(self.rpc_timeout_ms),
            "MC_RPC_CONNECT_TIMEOUT_MS": str(self.rpc_timeout_ms),
            "MC_TCP_PROGRESS_TIMEOUT_SEC": seconds,
            "MC_TCP_STATUS_TIMEOUT_SEC": seconds,
            "MC_STORE_CLIENT_SETUP_RETRIES": str(self.setup_attempts),
        }
