"""Pages in SiMM, between its servers and registered host memory without a copy.

The client answers a miss and a failed read with the same code, and replaces what is stored. So `get` and `put` ask which keys
are there first: what is not is a miss, and what is is not sent again. It answers no to that question also when nobody could be
asked; only reads and writes tell that the store is away, or is back.

SiMM has neither a list of its keys nor a way to remove by a pattern, so `clear` removes what this engine stored, and remembers
it for that: some 100 bytes a page.

The client ends the process when it is made without a manager, so it is made only when the manager was seen to listen. It is
configured by flags of the process, and finds its RDMA devices in the environment; both are set before it is made.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_tree.controllers.storage.engine_settings import (
    LONGEST_S,
    SECONDS,
    Bounds,
    check_address,
    check_listens,
    engine_opener,
    host_and_port,
)
from unified_tree.controllers.storage.registered_storage import Direction, RegisteredSettings, RegisteredStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome, StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, StorageError

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
            raise ConfigurationError(f"simm: devices must be names with commas between them, not {repr_of(self.devices)}")
        if "\0" in self.log_file:
            raise ConfigurationError(f"simm: log_file must be a path, not {repr_of(self.log_file)}")

    @property
    def manager(self) -> tuple[str, int]:
        """Host and port."""
        return host_and_port(self.manager_address)


BAD_ARGUMENT = -1000
NO_ROUTE = -2002
NOT_GOT = -2101
TIMED_OUT = -2300
NO_CONNECTION = -2301
AWAY = frozenset({NO_ROUTE, TIMED_OUT, NO_CONNECTION})
DEVICES_VARIABLE = "SICL_NET_DEVICES"
DEFAULT_PORT = 30001
_INSTALL = "build it from github.com/scitix/SiMM (its wheel needs torch); `pip install simm` brings another package"
_IF_NONE_LISTENS = (
    "check manager_address, that cluster_manager runs, "
    f"and that its port (--cm_rpc_inter_port, {DEFAULT_PORT}) can be reached from here"
)


class SimmClient:
    """A store of the manager at the address of the settings. Any thread may call.

    Args:
        settings: where and how.
        module: in place of `simm.kv`; for tests.

    Raises ConfigurationError without the client's package, or where it does not know a flag; StorageError without a manager.
    """

    def __init__(self, settings: SimmSettings, module: Any = None) -> None:
        self._module = _client_module() if module is None else module
        check_listens("simm", "manager", settings.manager_address, settings.connect_timeout_s, _IF_NONE_LISTENS)
        devices = settings.devices or ",".join(near_devices())
        if devices:
            os.environ.setdefault(DEVICES_VARIABLE, devices)
        self._set_flags(settings)
        self._store: Any = self._module.Store()
        self._lock = threading.Lock()
        self._regions: tuple[tuple[int, Any], ...] = ()

    def register(self, address: int, size_bytes: int) -> None:
        """Make memory known, which its owner keeps alive. Raises StorageError. Cost: with RDMA, a pass over the memory."""
        torch = importlib.import_module("torch")
        memory = (ctypes.c_char * size_bytes).from_address(address)
        region = self._module.register_mr(torch.frombuffer(memory, dtype=torch.uint8))
        if region is None:
            raise StorageError(
                f"simm: {size_bytes} bytes at {address:#x} cannot be registered: check `ulimit -l` and the RDMA devices"
            )
        with self._lock:
            self._regions = tuple(sorted((*self._regions, (address, region)), key=lambda known: known[0]))

    def unregister(self, address: int) -> None:
        """Forget memory."""
        with self._lock:
            [region] = [region for start, region in self._regions if start == address]
            self._regions = tuple(known for known in self._regions if known[0] != address)
        self._module.deregister_mr(region)

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which keys exist; False for those that could not be asked for."""
        return list(self._store.mexists(list(keys)))

    def put_from(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """0 or an error code for each; what is there already is replaced. Addresses lie in registered memory."""
        return list(self._store.mput(list(keys), self._views(addresses, size_bytes)))

    def get_into(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        """Bytes read or an error code for each. Addresses lie in registered memory."""
        return list(self._store.mget(list(keys), self._views(addresses, size_bytes)))

    def remove(self, key: str) -> int:
        """0 or an error code; there is no call for several."""
        return int(self._store.delete(key))

    def close(self) -> None:
        """Drop the reference to the store; the client has no call to close it."""
        self._store = None

    def _views(self, addresses: Sequence[int], size_bytes: int) -> list[Any]:
        regions, view = self._regions, self._module.BlockView.from_buffer
        at = [bisect_right(regions, address, key=lambda known: known[0]) - 1 for address in addresses]
        return [view(address, size_bytes, regions[index][1]) for address, index in zip(addresses, at, strict=True)]

    def _set_flags(self, settings: SimmSettings) -> None:
        """A flag that the client does not know is none that must be set if it would have had that value anyway."""
        host, port = settings.manager
        flags: tuple[tuple[str, str, bool], ...] = (
            ("cm_primary_node_ip", host, True),
            ("cm_primary_node_port", str(port), port != DEFAULT_PORT),
            ("clnt_thread_pool_size", str(settings.thread_pool_size), settings.thread_pool_size != 10),
            ("clnt_sync_req_timeout_ms", str(settings.request_timeout_ms), settings.request_timeout_ms != 1000),
            *([("clnt_log_file", settings.log_file, True)] if settings.log_file else []),
        )
        for name, value, must in flags:
            if self._module.set_flag(name, value) is False and must:
                raise ConfigurationError(f"simm: this client has no flag {name}, or does not take {value!r} for it")


def _client_module() -> Any:
    try:
        return importlib.import_module("simm.kv")
    except ImportError as error:
        raise ConfigurationError(f"simm: the client cannot be imported ({error}): {_INSTALL}") from error


SYSFS = Path("/sys")


def near_devices(sysfs: Path = SYSFS, processors: frozenset[int] | None = None) -> tuple[str, ...]:
    """Names of devices on the NUMA nodes of these processors, sorted; none where there are no such.

    Args:
        sysfs: where the kernel tells of them.
        processors: by default those that this process is allowed.

    A machine without NUMA says node -1 of its devices; such are near to every processor.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if processors is None else processors
    nodes = {
        int(path.parent.name.removeprefix("node"))
        for path in (sysfs / "devices/system/node").glob("node[0-9]*/cpulist")
        if not allowed.isdisjoint(_listed(path.read_text()))
    }
    near = [
        path.parent.parent.name
        for path in (sysfs / "class/infiniband").glob("*/device/numa_node")
        if int(path.read_text()) in nodes | {-1}
    ]
    return tuple(sorted(near))


def _listed(text: str) -> set[int]:
    """Of "0-3,8": 0, 1, 2, 3 and 8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


class SimmStorage(RegisteredStorage[SimmClient]):
    """A StorageEngine over one client of SiMM.

    Two clients that put the same key at the same moment both replace it; they put the same bytes, or it is not the same key. A
    store that is full evicts. `get` removes a value of another length, which was not put by us. `remove` costs a request a key;
    `clear` removes what this engine stored, and what others put under the same keys. `register` costs a pass over the memory,
    which is pinned from then on.

    Args:
        pools: what it keeps.
        settings: where and how.
        client: an open one, for tests; by default one is made.

    Raises ConfigurationError for values larger than the store takes, and as `SimmClient`.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: SimmSettings, client: SimmClient | None = None) -> None:
        self._settings = settings
        super().__init__("simm", pools, settings, lambda: client or SimmClient(settings), AWAY)
        self._lock = threading.Lock()
        self._stored: dict[str, set[bytes]] = {name: set() for name in self._pools}

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(
            zero_copy=True,
            largest_value_bytes=self._settings.largest_value_bytes,
            shared_between_hosts=True,
            survives_restart=True,
        )

    @property
    def _where(self) -> str:
        return f"the store of {self._settings.manager_address}"

    def _exists(self, pool: str, keys: Sequence[bytes]) -> list[bool | None]:
        there = self._asked(pool, self._names(pool, keys))
        return [None] * len(keys) if self._breaker.is_open else list(there)

    def _get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        outcomes, names = [Outcome.MISSING] * len(keys), self._names(pool, keys)
        present = [index for index, is_there in enumerate(self._asked(pool, names)) if is_there]
        for index, code in self._moved(self._client.get_into, names, pages, present, Direction.FROM_STORE):
            outcomes[index] = self._got(names[index], code, pages[index].nbytes)
        return outcomes

    def _put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        names = self._names(pool, keys)
        there = self._client.exist(names)
        if any(there):
            self._breaker.succeeded()
        outcomes = [Outcome.PRESENT if is_there else Outcome.FAILED for is_there in there]
        absent = [index for index, is_there in enumerate(there) if not is_there]
        for index, code in self._moved(self._client.put_from, names, pages, absent, Direction.TO_STORE):
            outcomes[index] = Outcome.DONE if code == 0 else Outcome.FAILED
        with self._lock:
            self._stored[pool].update(keys[index] for index in absent if outcomes[index] is Outcome.DONE)
        return outcomes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        for key, name in zip(keys, self._names(pool, keys), strict=True):
            self._check_admitted("remove")
            [code] = self._answered([self._client.remove(name)])
            if code not in {0, NOT_GOT}:
                raise StorageError(f"simm: a value of {pool} was not removed, error {code}")
            with self._lock:
                self._stored[pool].discard(key)

    def _clear(self) -> None:
        for pool, stored in self._stored.items():
            with self._lock:
                keys = list(stored)
            self._remove(pool, keys)

    def _asked(self, pool: str, names: list[str]) -> list[bool]:
        """Which are there. That something is proves that the store is; that nothing is proves nothing, so a store that is taken
        to be away is asked to read the first of them, which tells: else one that is back and empty would never be used."""
        there = self._client.exist(names)
        if any(there):
            self._breaker.succeeded()
        elif self._breaker.is_open:
            page = memoryview(bytearray(self._pools[pool].value_bytes))
            for _ in self._moved(self._client.get_into, names, [page], [0], Direction.FROM_STORE):
                pass
        return there

    def _got(self, name: str, code: int, size_bytes: int) -> Outcome:
        if code == size_bytes:
            return Outcome.DONE
        if code >= 0:
            self._client.remove(name)
            return Outcome.MISSING
        if code == NOT_GOT and not self._client.exist([name])[0]:
            return Outcome.MISSING  # evicted since it was asked for
        return Outcome.FAILED


open_simm = engine_opener("simm", SimmSettings, SimmStorage)
"""An engine with the settings of `SimmSettings`, from here, a file, or the environment; raises as both."""
