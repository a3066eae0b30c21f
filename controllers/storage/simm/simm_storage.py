"""Pages in SiMM, between its servers and registered host memory without a copy.

The client answers a miss and a failed read with the same code, and replaces what is stored. So `get` and `put` ask which keys
are there first: what is not is a miss, and what is is not sent again. It answers no to that question also when nobody could be
asked; only reads and writes tell that the store is away, or is back.

SiMM has neither a list of its keys nor a way to remove by a pattern, so `clear` removes what this engine stored, and remembers
it for that: some 100 bytes a page.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from unified_tree.controllers.storage.engine_settings import engine_opener
from unified_tree.controllers.storage.registered_storage import Direction, RegisteredStorage
from unified_tree.controllers.storage.simm.simm_client import AWAY, NOT_GOT, SimmClient
from unified_tree.controllers.storage.simm.simm_settings import SimmSettings
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.terms.errors import StorageError


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
