"""Pages in Mooncake Store, between the store and host memory without a copy.

The master knows which keys there are, and the pages lie in the segments of clients. A call asks the master first and then
the peers, so two things can be away. Without the master nothing works: the breaker opens and everything is a miss. Without a
peer its pages FAIL, until the master notices.

The client aborts the process when it is called before its setup or after its close. It reads its time limits from the
environment, and waits without limit if there are none; they are set before its first import, unless they are set already.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unified_tree.controllers.storage.engine_settings import (
    BYTES,
    LONGEST_S,
    MAX_BYTES,
    Bounds,
    check_address,
    check_listens,
    engine_opener,
)
from unified_tree.controllers.storage.registered_storage import Direction, RegisteredSettings, RegisteredStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, StorageError

_BOUNDS = {
    "segment_bytes": Bounds(0, MAX_BYTES),
    "local_buffer_bytes": BYTES,
    "rpc_timeout_ms": Bounds(1, int(1000 * LONGEST_S)),
    "transfer_timeout_s": Bounds(1, int(LONGEST_S)),
    "setup_attempts": Bounds(1, 1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeSettings(RegisteredSettings):
    """Settings, the defaults being those for one machine and TCP. A batch must arrive well within the master's
    `--default_kv_lease_ttl` (5 s).

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
            raise ConfigurationError(f"mooncake: protocol must be tcp or rdma, not {repr_of(self.protocol)}")
        for name in ("metadata_server", "local_hostname"):
            text = getattr(self, name)
            if not text or not text.isprintable() or text != text.strip():
                raise ConfigurationError(f"mooncake: {name} must be an address, not {repr_of(text)}")
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


NO_ROOM = -200
BAD_ARGUMENT = -600
NOT_READY = -703
NOT_FOUND = -704
ALREADY_THERE = -705
LEASE_EXPIRED = -707
RPC_FAILED = -900
RPC_TIMED_OUT = -901
MASTER_AWAY = frozenset({RPC_FAILED, RPC_TIMED_OUT})


class MooncakeClient:
    """A client that is set up with the master. The caller must not call anything after `close`.

    Raises ConfigurationError if the package is missing, StorageError if the master refuses this client.
    """

    def __init__(self, settings: MooncakeSettings) -> None:
        for name, value in settings.client_environment.items():
            os.environ.setdefault(name, value)
        store = _store_type()
        check_listens("mooncake", "master", settings.master, settings.rpc_timeout_ms / 1000)
        self._store = store()
        code = self._store.setup(
            settings.local_hostname,
            settings.metadata_server,
            settings.segment_bytes,
            settings.local_buffer_bytes,
            settings.protocol,
            settings.devices,
            settings.master,
        )
        if code:
            raise StorageError(f"mooncake: the master at {settings.master} does not take this client, error {code}")

    def is_reachable(self) -> bool:
        """What the last heartbeat said, at most some seconds old. Cost: microseconds, no call to the master."""
        return bool(self._store.health_check() == 0)

    def register(self, address: int, size_bytes: int) -> None:
        """Make memory known. Raises StorageError."""
        code = self._store.register_buffer(address, size_bytes)
        if code:
            raise StorageError(f"mooncake: {size_bytes} bytes at {address:#x} cannot be registered, error {code}")

    def unregister(self, address: int) -> None:
        """Forget memory; that which is not known is forgotten already."""
        self._store.unregister_buffer(address)

    def exist(self, keys: Sequence[str]) -> list[int]:
        """1, 0, or an error code for each. Takes a lease on what is there."""
        return list(self._store.batch_is_exist(keys))

    def put_from(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """0 or an error code for each value of this size; 0 for a key that is there already, too."""
        return list(self._store.batch_put_from(keys, addresses, [size_bytes] * len(keys)))

    def get_into(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """Bytes read or an error code for each."""
        return list(self._store.batch_get_into(keys, addresses, [size_bytes] * len(keys)))

    def size_bytes(self, key: str) -> int:
        """Of a value, or an error code."""
        return int(self._store.get_size(key))

    def remove(self, keys: Sequence[str]) -> list[int]:
        """0 or an error code for each. Leases do not protect a value from this."""
        return list(self._store.batch_remove(keys, True))

    def remove_matching(self, pattern: str) -> int:
        """How many values went, or an error code. Leases do not protect them. Cost: the master looks at all its keys."""
        return int(self._store.remove_by_regex(pattern, True))

    def close(self) -> None:
        """Leave the store; about a second if the master is away."""
        self._store.close()


def _store_type() -> Any:
    try:
        return importlib.import_module("mooncake.store").MooncakeDistributedStore
    except ImportError as error:
        raise ConfigurationError(
            f"mooncake: the client cannot be imported ({error}); pip install 'unified-tree[mooncake]', "
            "and on Debian apt-get install libibverbs1"
        ) from error


_PUT = {
    0: Outcome.DONE,
    ALREADY_THERE: Outcome.PRESENT,
    NO_ROOM: Outcome.DROPPED,
}
_GET = {NOT_FOUND: Outcome.MISSING, NOT_READY: Outcome.MISSING}


class MooncakeStorage(RegisteredStorage[MooncakeClient]):
    """A StorageEngine over one client of a Mooncake Store.

    `put` answers DONE for a page that another client stores at the same moment; both put the same bytes, or it is not the same
    key. It answers DROPPED where the store has no room, which it makes then. `get` removes a value of another length, which was
    not put by us. `remove` and `clear` do not wait for readers elsewhere: one that reads meanwhile may be handed what now lies
    there, which `CheckedStorage` sees; a value that somebody else is putting at that moment comes after them. For `clear` the
    master looks at all its keys, once a pool. `exists` raises StorageError when the master stops answering; later everything is
    a miss. With RDMA, `register` costs a pass over the memory.

    Args:
        pools: what it keeps.
        settings: where and how.
        client: an open one, for tests; by default one is opened. Closed with the engine.

    Raises StorageError where there is no master, and as `MooncakeClient`.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: MooncakeSettings, client: MooncakeClient | None = None) -> None:
        self._settings = settings
        super().__init__("mooncake", pools, settings, lambda: client or MooncakeClient(settings), MASTER_AWAY)

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=True, shared_between_hosts=True, survives_restart=not self._settings.segment_bytes)

    @property
    def _where(self) -> str:
        return f"the master at {self._settings.master}"

    def _is_reachable(self) -> bool:
        return self._client.is_reachable()

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool | None]:
        answers = self._answered(self._client.exist(self._names(pool, keys)))
        lost = MASTER_AWAY.intersection(answers)
        if lost:
            raise StorageError(f"mooncake: {self._where} does not answer, error {min(lost)}")
        return [None if answer < 0 else answer == 1 for answer in answers]

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        outcomes, names = [Outcome.MISSING] * len(keys), self._names(pool, keys)
        for index, code in self._moved(self._read, names, pages, range(len(keys)), Direction.FROM_STORE):
            outcomes[index] = self._got(names[index], code, pages[index].nbytes)
        return outcomes

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        there = self._answered(self._client.exist(names))
        outcomes = [Outcome.PRESENT if code == 1 else Outcome.FAILED for code in there]
        absent = [index for index, code in enumerate(there) if code == 0]
        for index, code in self._moved(self._client.put_from, names, pages, absent, Direction.TO_STORE):
            outcomes[index] = _PUT.get(code, Outcome.FAILED)
        return outcomes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        self._check_admitted("remove")
        gone = {0, NOT_FOUND, NOT_READY}
        wrong = set(self._answered(self._client.remove(self._names(pool, keys)))) - gone
        if wrong:
            raise StorageError(f"mooncake: values of {pool} were not removed, errors {sorted(wrong)}")

    def _clear(self) -> None:
        self._check_admitted("clear")
        for pool, tag in self._tags.items():
            [code] = self._answered([self._client.remove_matching(f"^{tag}")])
            if code < 0:
                raise StorageError(f"mooncake: the values of {pool} were not removed, error {code}")

    def _read(self, names: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """Bytes read or an error code for each. A page whose lease ran out on the way may hold another value by now, so it is
        read once more, alone."""
        answers = self._client.get_into(names, addresses, size_bytes)
        for index, code in enumerate(answers):
            if code == LEASE_EXPIRED:
                [answers[index]] = self._client.get_into([names[index]], [addresses[index]], size_bytes)
        return answers

    def _got(self, name: str, code: int, size_bytes: int) -> Outcome:
        if code == size_bytes:
            return Outcome.DONE
        stored_bytes = self._client.size_bytes(name) if code == BAD_ARGUMENT else code
        if stored_bytes >= 0 and stored_bytes != size_bytes:
            self._client.remove([name])
            return Outcome.MISSING
        return _GET.get(code, Outcome.FAILED)


open_mooncake = engine_opener("mooncake", MooncakeSettings, MooncakeStorage)
"""An engine with the settings of `MooncakeSettings`, from here, a file, or the environment; raises as both."""
