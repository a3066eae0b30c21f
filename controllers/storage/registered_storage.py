"""Common base of engines whose client needs registered memory: Mooncake's and SiMM's.

A name in the store is the prefix, the first 8 bytes of the pool's format digest and the key, the latter two in hex: so a pool's
pages can be told from everybody else's. The breaker opens when the client answers a code that says that the store is away.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

import numpy as np

from unified_tree.controllers.storage.engine_settings import BYTES, SECONDS, Bounds, check_key_prefix, check_settings
from unified_tree.controllers.storage.guarded_storage import CircuitBreaker, GuardedStorage
from unified_tree.controllers.storage.storage_engine import StoredPool, check_can_hold
from unified_tree.terms.errors import PageError, StorageError

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


def address_of(memory: memoryview) -> int:
    """Where contiguous memory begins. Raises PageError for other memory. Cost: about a microsecond."""
    if not memory.nbytes or not memory.c_contiguous:
        raise PageError(f"a buffer must be contiguous memory of at least a byte, not {memory.nbytes} bytes of other memory")
    if memory.readonly:
        return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # eight times faster


@dataclass(frozen=True, slots=True)
class _Region:
    start: int
    end: int
    owner: memoryview


class RegisteredMemory:
    """Disjoint regions, kept alive while they are registered. Thread-safe.

    Of a buffer that overlaps registered regions only the rest is registered, because clients refuse overlaps. Idempotent.

    Args:
        register: registers (address, size in bytes) with the client; raises if it refuses.
        unregister: the opposite, by address.
    """

    def __init__(self, register: Callable[[int, int], None], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._lock = threading.Lock()
        self._regions: tuple[_Region, ...] = ()

    def add(self, buffer: memoryview) -> None:
        """Register a buffer. If the client refuses a part, the parts before it stay registered. Cost: O(regions)."""
        start = address_of(buffer)
        with self._lock:
            for gap_start, gap_end in self._gaps(start, start + buffer.nbytes):
                self._register(gap_start, gap_end - gap_start)
                self._regions = tuple(sorted((*self._regions, _Region(gap_start, gap_end, buffer)), key=lambda r: r.start))

    def __contains__(self, memory: memoryview) -> bool:
        """Whether all of it lies in one region. Cost: O(log regions)."""
        return self.holds(address_of(memory), memory.nbytes)

    def holds(self, address: int, size_bytes: int) -> bool:
        """The same of an address and a size."""
        regions = self._regions
        index = bisect_right(regions, address, key=lambda region: region.start) - 1
        return index >= 0 and address + size_bytes <= regions[index].end

    def release(self) -> None:
        """Unregister everything."""
        with self._lock:
            regions, self._regions = self._regions, ()
            for region in regions:
                self._unregister(region.start)

    def _gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for region in self._regions:
            if region.end <= start or region.start >= end:
                continue
            if start < region.start:
                yield start, region.start
            start = region.end
        if start < end:
            yield start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSettings:
    """Attributes:
    key_prefix: of every key, letters, digits, - and _: users of one store that should not share pages differ in it.
    bounce_bytes: registered memory for pages that lie in no registered buffer; at least one value of every pool.
    batch_bytes: of pages in one call of the client.
    retry_pause_s: between two tries of a store that is away.
    """

    key_prefix: str = "ut"
    bounce_bytes: int = 32 << 20
    batch_bytes: int = 128 << 20
    retry_pause_s: float = 1.0

    def _check(self, engine: str, bounds: Mapping[str, Bounds]) -> None:
        """Raise ConfigurationError for invalid values; `bounds` are of the other numbers."""
        own = {"bounce_bytes": BYTES, "batch_bytes": BYTES, "retry_pause_s": SECONDS}
        check_settings(engine, self, {**own, **bounds})
        check_key_prefix(engine, self.key_prefix)


class Direction(Enum):
    """The direction of a transfer."""

    TO_STORE = "to the store"
    FROM_STORE = "from the store"


Call = Callable[[list[int], list[int]], list[int]]
"""Given indices into the batch and the address of each page; answers a number for each."""


class RegisteredTransfer:
    """Splits a batch of pages into calls of the client.

    Args:
        memory: the registered memory; the bounce buffer is added to it.
        bounce: for pages in other memory.
        batch_bytes: of one call, but at least a page.
    """

    def __init__(self, memory: RegisteredMemory, bounce: BounceBuffer, batch_bytes: int) -> None:
        self._memory = memory
        self._bounce = bounce
        self._batch_bytes = batch_bytes
        memory.add(bounce.memory)

    def answers(self, call: Call, pages: Sequence[memoryview], way: Direction) -> Iterator[tuple[int, int]]:
        """Each page's index and answer, direct ones first; ending early leaves the rest untried.

        Pages are of one size. Pages from the store are filled whatever the answer was, their bytes being good if that is.
        """
        if not pages:
            return
        size = pages[0].nbytes
        direct: list[int] = []
        bounced: list[int] = []
        addresses = [address_of(page) for page in pages]
        for index, address in enumerate(addresses):
            (direct if self._memory.holds(address, size) else bounced).append(index)
        for some in _batches(direct, max(1, self._batch_bytes // size)):
            yield from zip(some, call(some, [addresses[index] for index in some]), strict=True)
        for some in _batches(bounced, self._bounce.batch_pages(size)):
            yield from zip(some, self._bounced(call, some, [pages[index] for index in some], way), strict=True)

    def _bounced(self, call: Call, indices: list[int], pages: list[memoryview], way: Direction) -> list[int]:
        with self._bounce.lent(len(indices), pages[0].nbytes) as slots:
            if way is Direction.TO_STORE:
                copy_pages(pages, slots)
            answers = call(indices, [address_of(slot) for slot in slots])
            if way is Direction.FROM_STORE:
                copy_pages(slots, pages)
            return answers


def _batches(indices: list[int], batch_size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), batch_size):
        yield indices[start : start + batch_size]


class BounceBuffer:
    """Slots for pages of one size at a time; one caller uses all of it while others wait.

    Args:
        size_bytes: must hold the largest page.
    """

    def __init__(self, size_bytes: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, size_bytes))
        self._lock = threading.Lock()

    @property
    def memory(self) -> memoryview:
        """All of it, to be registered."""
        return self._memory

    def batch_pages(self, page_bytes: int) -> int:
        """How many pages of this size fit at once."""
        return self._memory.nbytes // page_bytes

    @contextmanager
    def lent(self, count: int, page_bytes: int) -> Iterator[list[memoryview]]:
        """So many slots, until the block ends; their bytes are left over from others."""
        with self._lock:
            yield [self._memory[index * page_bytes : (index + 1) * page_bytes] for index in range(count)]


def copy_pages(sources: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
    """Copy page by page, whatever the items of the buffers are."""
    for source, target in zip(sources, targets, strict=True):
        target.cast("B")[:] = source.cast("B")
