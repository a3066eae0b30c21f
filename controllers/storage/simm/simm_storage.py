"""Pages in SiMM, between its servers and registered host memory without a copy.

The client answers a miss and a failed read with the same code, and replaces what is stored. So `get` and `put` ask which keys
are there first: what is not is a miss, and what is is not sent again. It answers no to that question also when nobody could be
asked; only reads and writes tell that the store is away, or is back.

A key of the store is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex. SiMM has
neither a list of its keys nor a way to remove by a pattern, so `clear` removes what this engine stored, and remembers it for
that: some 100 bytes a page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.bounce_buffer import BounceBuffer
from unified_tree.controllers.storage.call_gate import CallGate
from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.controllers.storage.registered_memory import RegisteredMemory
from unified_tree.controllers.storage.registered_transfer import RegisteredTransfer, Way
from unified_tree.controllers.storage.simm.simm_client import AWAY, NOT_GOT, SimmClient
from unified_tree.controllers.storage.simm.simm_settings import SimmSettings
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.storage_stats import StorageStats, Tally
from unified_tree.controllers.storage.stored_pool import StoredPool, check_can_hold, known_pool, pools_by_name
from unified_tree.errors import StorageError

_Move = Callable[[list[str], list[int], int], list[int]]


def open_simm(pools: Sequence[StoredPool], *, config_file: str | Path | None = None, **settings: Any) -> SimmStorage:
    """An engine with the settings of `SimmSettings`, from here, a file, or the environment (`load_settings`).

    Raises ConfigurationError for settings, or without the client's package; StorageError where there is no manager.
    """
    return SimmStorage(pools, load_settings(SimmSettings, "simm", settings, file=config_file))


class SimmStorage:
    """A StorageEngine over one client of SiMM.

    Two clients that put the same key at the same moment both replace it; they put the same bytes, or it is not the same key.

    Args:
        pools: what it keeps.
        settings: where and how.
        client: an open one, for tests; by default one is made.

    Raises ConfigurationError for values larger than the store takes, and as `SimmClient`.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: SimmSettings, client: SimmClient | None = None) -> None:
        self._pools = pools_by_name(pools)
        self._settings = settings
        check_can_hold(self.capabilities, self._pools.values())
        self._tags = {name: f"{settings.key_prefix}-{pool.format_digest[:8].hex()}-" for name, pool in self._pools.items()}
        self._tally = Tally({name: pool.value_bytes for name, pool in self._pools.items()})
        self._gate = CallGate("simm")
        bounce = BounceBuffer(max(settings.bounce_bytes, *(pool.value_bytes for pool in self._pools.values())))
        self._client = SimmClient(settings) if client is None else client
        self._breaker = CircuitBreaker(settings.retry_pause_s)
        self._memory = RegisteredMemory(self._client.register, self._client.unregister)
        self._lock = threading.Lock()
        self._stored: dict[str, set[bytes]] = {name: set() for name in self._pools}
        try:
            self._transfer = RegisteredTransfer(self._memory, bounce, settings.batch_bytes)
        except StorageError:
            self._client.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(
            zero_copy=True,
            largest_value_bytes=self._settings.largest_value_bytes,
            shared_between_hosts=True,
            survives_restart=True,
        )

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register. Cost: a pass over the memory, which is pinned from then on."""
        with self._gate:
            for buffer in buffers:
                self._memory.add(buffer)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists. A store that is away has nothing; the client does not say which it was."""
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)
            found = np.zeros(len(keys), np.bool_)
            if keys and self._breaker.admits():
                found[:] = self._asked(pool, self._names(pool, keys))
            self._tally.queried(pool, len(keys), int(found.sum()))
            return found

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get. A value of another length was not put by us; it is removed, and MISSING."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages, writable=True)
            outcomes = [Outcome.MISSING] * len(keys)
            if keys and self._breaker.admits():
                names = self._names(pool, keys)
                there = self._asked(pool, names)
                present = [index for index, is_there in enumerate(there) if is_there]
                for index, code in self._run(self._client.get_into, names, pages, present, Way.FROM_STORE):
                    outcomes[index] = self._got(names[index], code, pages[index].nbytes)
            self._tally.got(pool, outcomes)
            return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put. DROPPED where the store is away; one that is full evicts."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages)
            outcomes = [Outcome.DROPPED] * len(keys)
            if keys and self._breaker.admits():
                names = self._names(pool, keys)
                there = self._client.exist(names)
                if any(there):
                    self._breaker.succeeded()
                outcomes = [Outcome.PRESENT if is_there else Outcome.FAILED for is_there in there]
                absent = [index for index, is_there in enumerate(there) if not is_there]
                for index, code in self._run(self._client.put_from, names, pages, absent, Way.TO_STORE):
                    outcomes[index] = Outcome.DONE if code == 0 else Outcome.FAILED
                with self._lock:
                    self._stored[pool].update(keys[index] for index in absent if outcomes[index] is Outcome.DONE)
            self._tally.put(pool, outcomes)
            return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove. Raises StorageError where the store is away. Cost: a request a key."""
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)
            self._remove(pool, keys)

    def clear(self) -> None:
        """See StorageEngine.clear; what this engine stored, and what others put under the same keys. Raises as `remove`."""
        with self._gate:
            for pool, stored in self._stored.items():
                with self._lock:
                    keys = list(stored)
                self._remove(pool, keys)

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._tally.snapshot(is_degraded=self._breaker.is_open)

    def close(self) -> None:
        """See StorageEngine.close."""
        if self._gate.close():
            self._memory.release()
            self._client.close()

    def _names(self, pool: str, keys: Sequence[bytes]) -> list[str]:
        tag = self._tags[pool]
        return [tag + key.hex() for key in keys]

    def _asked(self, pool: str, names: list[str]) -> list[bool]:
        """Which are there. That something is proves that the store is; that nothing is proves nothing, so a store that is taken
        to be away is asked to read the first of them, which tells: else one that is back and empty would never be used."""
        there = self._client.exist(names)
        if any(there):
            self._breaker.succeeded()
        elif self._breaker.is_open:
            page = memoryview(bytearray(self._pools[pool].value_bytes))
            for _ in self._run(self._client.get_into, names, [page], [0], Way.FROM_STORE):
                pass
        return there

    def _answered(self, codes: list[int]) -> list[int]:
        """The same, after telling the breaker."""
        if AWAY.isdisjoint(codes):
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        return codes

    def _remove(self, pool: str, keys: Sequence[bytes]) -> None:
        for key, name in zip(keys, self._names(pool, keys), strict=True):
            if not self._breaker.admits():
                raise StorageError(f"simm: cannot remove, the store of {self._settings.manager_address} is away")
            [code] = self._answered([self._client.remove(name)])
            if code not in {0, NOT_GOT}:
                raise StorageError(f"simm: a value of {pool} was not removed, error {code}")
            with self._lock:
                self._stored[pool].discard(key)

    def _got(self, name: str, code: int, size_bytes: int) -> Outcome:
        if code == size_bytes:
            return Outcome.DONE
        if code >= 0:
            self._client.remove(name)
            return Outcome.MISSING
        if code == NOT_GOT and not self._client.exist([name])[0]:
            return Outcome.MISSING  # evicted since it was asked for
        return Outcome.FAILED

    def _run(
        self, move: _Move, names: list[str], pages: Sequence[memoryview], chosen: list[int], way: Way
    ) -> Iterator[tuple[int, int]]:
        """Index and answer of each chosen page; when the store is lost the rest is not tried."""
        size = pages[0].nbytes if pages else 0
        away: list[int] = []

        def call(positions: list[int], addresses: list[int]) -> list[int]:
            if away:
                return away[:1] * len(positions)
            codes = self._answered(move([names[chosen[position]] for position in positions], addresses, size))
            away.extend(AWAY.intersection(codes))
            return codes

        for position, code in self._transfer.answers(call, [pages[index] for index in chosen], way):
            yield chosen[position], code
