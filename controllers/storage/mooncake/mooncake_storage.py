"""Pages in Mooncake Store, between the store and host memory without a copy.

The master knows which keys there are, and the pages lie in the segments of clients. A call asks the master first and then
the peers, so two things can be away. Without the master nothing works: the breaker opens and everything is a miss. Without a
peer its pages FAIL, until the master notices.

A key of the store is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex. So a pool's
pages can be told from everybody else's, and `clear` takes those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.storage.bounce_buffer import BounceBuffer
from unified_tree.controllers.storage.call_gate import CallGate
from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.controllers.storage.mooncake import mooncake_client as codes
from unified_tree.controllers.storage.mooncake.mooncake_client import MooncakeClient
from unified_tree.controllers.storage.mooncake.mooncake_settings import MooncakeSettings
from unified_tree.controllers.storage.registered_memory import RegisteredMemory
from unified_tree.controllers.storage.registered_transfer import RegisteredTransfer, Way
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.storage_stats import StorageStats, Tally
from unified_tree.controllers.storage.stored_pool import StoredPool, known_pool, pools_by_name
from unified_tree.errors import StorageError

_PUT = {
    0: Outcome.DONE,
    codes.ALREADY_THERE: Outcome.PRESENT,
    codes.NO_ROOM: Outcome.DROPPED,
}
_GET = {codes.NOT_FOUND: Outcome.MISSING, codes.NOT_READY: Outcome.MISSING}
_Move = Callable[[list[str], list[int], list[int]], list[int]]


def open_mooncake(pools: Sequence[StoredPool], *, config_file: str | Path | None = None, **settings: Any) -> MooncakeStorage:
    """An engine with the settings of `MooncakeSettings`, from here, a file, or the environment (`load_settings`).

    Raises ConfigurationError for settings, or without the client's package; StorageError where there is no master.
    """
    return MooncakeStorage(pools, load_settings(MooncakeSettings, "mooncake", settings, file=config_file))


class MooncakeStorage:
    """A StorageEngine over one client of a Mooncake Store.

    `put` answers DONE for a page that another client stores at the same moment; both put the same bytes, or it is not the same
    key. `remove` and `clear` do not wait for readers elsewhere: one that reads meanwhile may be handed what now lies there,
    which `CheckedStorage` sees. Of several threads, those whose pages lie in registered memory do not wait for one another.

    Args:
        pools: what it keeps.
        settings: where and how.
        client: an open one, for tests; by default one is opened. Closed with the engine.

    Raises StorageError where there is no master, and as `MooncakeClient`.
    """

    def __init__(self, pools: Iterable[StoredPool], settings: MooncakeSettings, client: MooncakeClient | None = None) -> None:
        self._pools = pools_by_name(pools)
        self._settings = settings
        self._tags = {name: f"{settings.key_prefix}-{pool.format_digest[:8].hex()}-" for name, pool in self._pools.items()}
        self._tally = Tally({name: pool.value_bytes for name, pool in self._pools.items()})
        self._gate = CallGate("mooncake")
        bounce = BounceBuffer(max(settings.bounce_bytes, *(pool.value_bytes for pool in self._pools.values())))
        self._client = MooncakeClient(settings) if client is None else client
        self._breaker = CircuitBreaker(settings.retry_pause_s, self._client.is_reachable)
        self._memory = RegisteredMemory(self._client.register, self._client.unregister)
        try:
            self._transfer = RegisteredTransfer(self._memory, bounce, settings.batch_bytes)
        except StorageError:
            self._client.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return Capabilities(zero_copy=True, shared_between_hosts=True, survives_restart=not self._settings.segment_bytes)

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register. Cost: with RDMA, a pass over the memory."""
        with self._gate:
            for buffer in buffers:
                self._memory.add(buffer)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists. Raises StorageError when the master stops answering; later it is all a miss."""
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)
            found = np.zeros(len(keys), np.bool_)
            if keys and self._breaker.admits():
                answers = self._answered(self._client.exist(self._names(pool, keys)))
                lost = codes.MASTER_AWAY.intersection(answers)
                if lost:
                    raise StorageError(f"mooncake: the master at {self._settings.master} does not answer, error {min(lost)}")
                found[:] = np.array(answers) == 1
            self._tally.queried(pool, len(keys), int(found.sum()))
            return found

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get. A value of another length was not put by us; it is removed, and MISSING."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages, writable=True)
            outcomes = [Outcome.MISSING] * len(keys)
            if keys and self._breaker.admits():
                names = self._names(pool, keys)
                for index, code in self._run(self._read, names, pages, Way.FROM_STORE):
                    outcomes[index] = self._got(names[index], code, pages[index].nbytes)
            self._tally.got(pool, outcomes)
            return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put. DROPPED where the store has no room, which it makes then, or is away."""
        with self._gate:
            known_pool(self._pools, pool).check_batch(keys, pages)
            outcomes = [Outcome.DROPPED] * len(keys)
            if keys and self._breaker.admits():
                names = self._names(pool, keys)
                there = self._answered(self._client.exist(names))
                absent = [index for index, code in enumerate(there) if code == 0]
                for index, code in enumerate(there):
                    outcomes[index] = Outcome.PRESENT if code == 1 else Outcome.FAILED
                missing, absent_pages = [names[index] for index in absent], [pages[index] for index in absent]
                for position, code in self._run(self._client.put_from, missing, absent_pages, Way.TO_STORE):
                    outcomes[absent[position]] = _PUT.get(code, Outcome.FAILED)
            self._tally.put(pool, outcomes)
            return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove. Raises StorageError where the store cannot, or is away.

        A value that somebody else is putting at that moment comes after this.
        """
        with self._gate:
            known_pool(self._pools, pool).check_keys(keys)
            if keys:
                self._check_admitted("remove")
                gone = {0, codes.NOT_FOUND, codes.NOT_READY}
                wrong = set(self._answered(self._client.remove(self._names(pool, keys)))) - gone
                if wrong:
                    raise StorageError(f"mooncake: values of {pool} were not removed, errors {sorted(wrong)}")

    def clear(self) -> None:
        """See StorageEngine.clear. Raises as `remove`. Cost: for each pool the master looks at all its keys."""
        with self._gate:
            self._check_admitted("clear")
            for pool, tag in self._tags.items():
                [code] = self._answered([self._client.remove_matching(f"^{tag}")])
                if code < 0:
                    raise StorageError(f"mooncake: the values of {pool} were not removed, error {code}")

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._tally.snapshot(is_degraded=self._breaker.is_open)

    def close(self) -> None:
        """See StorageEngine.close. What lies in this process's segment is gone."""
        if self._gate.close():
            self._memory.release()
            self._client.close()

    def _names(self, pool: str, keys: Sequence[bytes]) -> list[str]:
        tag = self._tags[pool]
        return [tag + key.hex() for key in keys]

    def _answered(self, answers: list[int]) -> list[int]:
        """The same, after telling the breaker."""
        if codes.MASTER_AWAY.isdisjoint(answers):
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        return answers

    def _check_admitted(self, call: str) -> None:
        if not self._breaker.admits():
            raise StorageError(f"mooncake: cannot {call}, the master at {self._settings.master} is away")

    def _read(self, names: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        """Bytes or codes. A page whose lease ran out on the way may hold another value by now: once more, alone."""
        answers = self._client.get_into(names, addresses, sizes)
        for index, code in enumerate(answers):
            if code == codes.LEASE_EXPIRED:
                [answers[index]] = self._client.get_into([names[index]], [addresses[index]], [sizes[index]])
        return answers

    def _got(self, name: str, code: int, size_bytes: int) -> Outcome:
        if code == size_bytes:
            return Outcome.DONE
        stored_bytes = self._client.size_bytes(name) if code == codes.BAD_ARGUMENT else code
        if stored_bytes >= 0 and stored_bytes != size_bytes:
            self._client.remove([name])
            return Outcome.MISSING
        return _GET.get(code, Outcome.FAILED)

    def _run(self, move: _Move, names: list[str], pages: Sequence[memoryview], way: Way) -> Iterator[tuple[int, int]]:
        """Each page's index and answer; when the master is lost, here or in another thread, the rest is not tried."""
        size = pages[0].nbytes if pages else 0
        failures = self._breaker.failures

        def call(indices: list[int], addresses: list[int]) -> list[int]:
            if self._breaker.failures != failures:
                return [codes.RPC_FAILED] * len(indices)
            return self._answered(move([names[index] for index in indices], addresses, [size] * len(indices)))

        return self._transfer.answers(call, pages, way)
