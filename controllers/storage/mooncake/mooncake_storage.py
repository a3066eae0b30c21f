"""Pages in Mooncake Store, between the store and host memory without a copy.

The master knows which keys there are, and the pages lie in the segments of clients. A call asks the master first and then
the peers, so two things can be away. Without the master nothing works: the breaker opens and everything is a miss. Without a
peer its pages FAIL, until the master notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unified_tree.controllers.storage.engine_settings import engine_opener
from unified_tree.controllers.storage.mooncake import mooncake_client as codes
from unified_tree.controllers.storage.mooncake.mooncake_client import MooncakeClient
from unified_tree.controllers.storage.mooncake.mooncake_settings import MooncakeSettings
from unified_tree.controllers.storage.registered_storage import Direction, RegisteredStorage
from unified_tree.controllers.storage.storage_engine import Capabilities, Outcome
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.terms.errors import StorageError

_PUT = {
    0: Outcome.DONE,
    codes.ALREADY_THERE: Outcome.PRESENT,
    codes.NO_ROOM: Outcome.DROPPED,
}
_GET = {codes.NOT_FOUND: Outcome.MISSING, codes.NOT_READY: Outcome.MISSING}


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
        super().__init__("mooncake", pools, settings, lambda: client or MooncakeClient(settings), codes.MASTER_AWAY)

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
        lost = codes.MASTER_AWAY.intersection(answers)
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
        gone = {0, codes.NOT_FOUND, codes.NOT_READY}
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
        """Bytes or codes. A page whose lease ran out on the way may hold another value by now: once more, alone."""
        answers = self._client.get_into(names, addresses, size_bytes)
        for index, code in enumerate(answers):
            if code == codes.LEASE_EXPIRED:
                [answers[index]] = self._client.get_into([names[index]], [addresses[index]], size_bytes)
        return answers

    def _got(self, name: str, code: int, size_bytes: int) -> Outcome:
        if code == size_bytes:
            return Outcome.DONE
        stored_bytes = self._client.size_bytes(name) if code == codes.BAD_ARGUMENT else code
        if stored_bytes >= 0 and stored_bytes != size_bytes:
            self._client.remove([name])
            return Outcome.MISSING
        return _GET.get(code, Outcome.FAILED)


open_mooncake = engine_opener("mooncake", MooncakeSettings, MooncakeStorage)
"""An engine with the settings of `MooncakeSettings`, from here, a file, or the environment; raises as both."""
