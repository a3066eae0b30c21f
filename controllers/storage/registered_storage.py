"""Common base of engines whose client needs registered memory: Mooncake's and SiMM's.

A name in the store is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex: so a pool's
pages can be told from everybody else's. The breaker opens when the client answers a code that says that the store is away.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from unified_tree.controllers.storage.circuit_breaker import CircuitBreaker
from unified_tree.controllers.storage.guarded_storage import GuardedStorage
from unified_tree.controllers.storage.registered_memory import RegisteredMemory
from unified_tree.controllers.storage.registered_settings import RegisteredSettings
from unified_tree.controllers.storage.registered_transfer import BounceBuffer, Direction, RegisteredTransfer
from unified_tree.controllers.storage.stored_pool import StoredPool, check_can_hold
from unified_tree.terms.errors import StorageError

Move = Callable[[Sequence[str], Sequence[int], int], list[int]]
"""Given names, the address of a page for each, and a page's bytes; answers a number for each."""


class RegisteringClient(Protocol):
    """A store's client, already open."""

    def register(self, address: int, size_bytes: int) -> None:
        """Make memory known. Raises StorageError."""
        ...

    def unregister(self, address: int) -> None:
        """Forget memory."""
        ...

    def close(self) -> None:
        """Leave the store."""
        ...


Client = TypeVar("Client", bound=RegisteringClient)


class RegisteredStorage(GuardedStorage, Generic[Client]):
    """An engine over such a client, which it closes.

    Threads whose pages lie in registered memory do not wait for one another.

    Args:
        name: of the engine.
        pools: what it keeps.
        settings: of the engine.
        open_client: makes the client, when the pools were found to fit.
        away: the codes of an answer that mean that the store is away.

    Raises ConfigurationError for pools that the store cannot keep, StorageError where memory cannot be registered, and what
    `open_client` raises.
    """

    def __init__(
        self,
        name: str,
        pools: Iterable[StoredPool],
        settings: RegisteredSettings,
        open_client: Callable[[], Client],
        away: frozenset[int],
    ) -> None:
        super().__init__(name, pools)
        check_can_hold(self.capabilities, self._pools.values())
        self._tags = {pool.name: f"{settings.key_prefix}-{pool.format_digest[:8].hex()}-" for pool in self._pools.values()}
        self._away = away
        bounce = BounceBuffer(max(settings.bounce_bytes, *(pool.value_bytes for pool in self._pools.values())))
        self._client = open_client()
        self._breaker = CircuitBreaker(settings.retry_pause_s, self._is_reachable, store=f"{name}: {self._where}")
        self._memory = RegisteredMemory(self._client.register, self._client.unregister)
        try:
            self._transfer = RegisteredTransfer(self._memory, bounce, settings.batch_bytes)
        except StorageError:
            self._client.close()
            raise

    @property
    @abstractmethod
    def _where(self) -> str:
        """The store and its address, in words."""

    def _is_reachable(self) -> bool:
        """What the client knows of its connection without asking the store."""
        return True

    def _register(self, buffers: Sequence[memoryview]) -> None:
        for buffer in buffers:
            self._memory.add(buffer)

    def _admits(self) -> bool:
        return self._breaker.admits()

    def _check_admitted(self, call: str) -> None:
        if not self._admits():
            raise StorageError(f"{self._name}: cannot {call}, {self._where} is away")

    def _is_degraded(self) -> bool:
        return self._breaker.is_open

    def _close(self) -> None:
        self._memory.release()
        self._client.close()

    def _names(self, pool: str, keys: Sequence[bytes]) -> list[str]:
        tag = self._tags[pool]
        return [tag + key.hex() for key in keys]

    def _answered(self, codes: list[int]) -> list[int]:
        """The same, after telling the breaker."""
        if self._away.isdisjoint(codes):
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        return codes

    def _moved(
        self, move: Move, names: list[str], pages: Sequence[memoryview], chosen: Sequence[int], way: Direction
    ) -> Iterator[tuple[int, int]]:
        """Index and answer of each chosen page; when the store is lost, here or in another thread, the rest is not tried."""
        failures, size = self._breaker.failures, pages[0].nbytes

        def call(positions: list[int], addresses: list[int]) -> list[int]:
            if self._breaker.failures != failures:
                return [min(self._away)] * len(positions)
            return self._answered(move([names[chosen[position]] for position in positions], addresses, size))

        for position, code in self._transfer.answers(call, [pages[index] for index in chosen], way):
            yield chosen[position], code
