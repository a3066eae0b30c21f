"""The bytes of a verified replay: for each component a store of device pages and, with a host tier, a mover of pages.

Pools with a page count on both tiers are the library's own tensors, moved by a PagePair. Pools without end (the references'
rows have them) and pools that nothing moves are arrays in chunks; they need no torch. A page
holds bytes that follow from the tokens it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unified_tree.controllers.pools import HostLayout, PageFormat, Part, check_host_memory
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.storage_engine import Outcome
from unified_tree.declare.page_format import WHOLE
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.pools import DevicePool, PageMover
    from unified_tree.controllers.storage_tier import PageMemory
    from unified_tree.controllers.transfer_engines import Transfer

    Ids = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Digests = NDArray[np.uint64]
    PageStore: TypeAlias = "ChunkedPages | TensorPages"
    """Pages of one component, on either tier."""

    from unified_tree.controllers.storage.storage_engine import Capabilities, StorageEngine, StorageStats


CHUNK_PAGES = 1024


class ChunkedPages:
    """Pages of one component as the model sees them, and a PageMemory with a trailer behind each. Safe to use from two threads.

    Memory is taken a chunk at a time, as pages are used first. A page never written is all zero.

    Args:
        page_bytes: of a page without its trailer.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._stride = page_bytes + TRAILER_BYTES
        self._lock = Lock()
        self._chunks: dict[int, Bytes] = {}

    @property
    def payload_bytes(self) -> int:
        """See PageMemory."""
        return self._page_bytes

    def page_memory(self, page: int) -> memoryview:
        """See PageMemory."""
        chunk = self._chunk(page // CHUNK_PAGES)
        return memoryview(chunk[page % CHUNK_PAGES])

    def read(self, ids: Ids) -> Bytes:
        """The content of pages, uint8 [n, page_bytes]."""
        content = np.empty((ids.size, self._page_bytes), np.uint8)
        for number, where in self._by_chunk(ids):
            content[where] = self._chunk(number)[ids[where] % CHUNK_PAGES, : self._page_bytes]
        return content

    def write(self, ids: Ids, content: Bytes) -> None:
        """Fill pages."""
        for number, where in self._by_chunk(ids):
            self._chunk(number)[ids[where] % CHUNK_PAGES, : self._page_bytes] = content[where]

    def _by_chunk(self, ids: Ids) -> list[tuple[int, Ids]]:
        """The chunks of some pages, each with the places in `ids` of its pages."""
        numbers = ids // CHUNK_PAGES
        return [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]

    def _chunk(self, number: int) -> Bytes:
        with self._lock:
            if number not in self._chunks:
                self._chunks[number] = np.zeros((CHUNK_PAGES, self._stride), np.uint8)
            return self._chunks[number]


DIGEST_BYTES = 64
WORDS = DIGEST_BYTES // 8
BLOCK_STEP = np.uint64(0x9E3779B97F4A7C15)


def prefix_digests(namespace: str, tokens: NDArray[np.int64], page_size: int) -> Digests:
    """The digest of every whole page's prefix, uint64 [pages + 1, 8]; the first is that of no tokens at all.

    Cost: one hash of a page's tokens a page.
    """
    digest = blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
    digests = [digest]
    data, stride = tokens.tobytes(), page_size * tokens.itemsize
    for start in range(0, len(data) - stride + 1, stride):
        digest = blake2b(digest + data[start : start + stride], digest_size=DIGEST_BYTES).digest()
        digests.append(digest)
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, WORDS)


def component_digest(name: str) -> Digests:
    """What makes a component's content its own, uint64 [8]."""
    return np.frombuffer(
        blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"component").digest(), np.uint64
    )


def page_contents(digests: Digests, component: Digests, page_bytes: int) -> Bytes:
    """The content of pages with these digests, uint8 [n, page_bytes]. Cost: O(bytes)."""
    words = digests ^ component
    block_count = -(-page_bytes // DIGEST_BYTES)
    if block_count > 1:
        blocks = np.arange(block_count, dtype=np.uint64) * BLOCK_STEP
        words = (words[:, np.newaxis, :] + blocks[np.newaxis, :, np.newaxis]).reshape(len(digests), -1)
    return np.ascontiguousarray(words).view(np.uint8)[:, :page_bytes]


NEEDS_TORCH = "--verify with a host tier, or a linker, moves tensors and needs torch; run: pip install 'unified-tree[tensors]'"


class ChunkedPair:
    """A PageMover between two tiers of pages without end; one layer, 0."""

    layer_ids: tuple[int, ...] = (0,)

    def __init__(self, device: PageStore, host: PageStore) -> None:
        self._device = device
        self._host = host

    def backup(self, source: Ids, target: Ids) -> None:
        """See PageMover.backup."""
        self._host.write(target, self._device.read(source))

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        """See PageMover.load_layers."""
        assert layer_ids == (0,), layer_ids
        self._device.write(target, self._host.read(source))


class TensorPages:
    """The pages of a pool of raw bytes, layer by layer: arrays of [page, bytes]."""

    def __init__(self, layers: Sequence[Bytes]) -> None:
        self._layers = layers
        self._size = layers[0].shape[1]

    def read(self, ids: Ids) -> Bytes:
        """See ChunkedPages."""
        return np.concatenate([layer[ids] for layer in self._layers], axis=1)

    def write(self, ids: Ids, content: Bytes) -> None:
        """See ChunkedPages."""
        for i, layer in enumerate(self._layers):
            layer[ids] = content[:, i * self._size : (i + 1) * self._size]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStores:
    """Stores of both tiers and what moves pages between them, by component; without a host tier only those of the device.

    Attributes:
        memory: the host pages as a store of pages sees them.
        pools: the tensors among the device pools.
    """

    page_bytes: Mapping[str, int]
    device: dict[str, PageStore] = field(default_factory=dict)
    host: dict[str, PageStore] = field(default_factory=dict)
    movers: dict[str, PageMover] = field(default_factory=dict)
    memory: dict[str, PageMemory] = field(default_factory=dict)
    pools: dict[str, DevicePool] = field(default_factory=dict)

    def blank(self, transfer: Transfer) -> None:
        """Clear the pages a transfer is to write, so that nothing it fails to copy is there from an earlier time."""
        stores = self.device if transfer.kind is EffectKind.LOAD else self.host
        for copy in transfer.copies:
            zeros = np.zeros((copy.target.size, self.page_bytes[copy.component]), np.uint8)
            stores[copy.component].write(copy.target, zeros)


def raw_layers(component: str, page_bytes: int) -> PageFormat:
    """A page of plain bytes, in two layers where that can be, so that a load has more than one to wait for; whole."""
    layer_ids = (0, 1) if page_bytes % 2 == 0 else (0,)
    part = Part("raw", "uint8", (page_bytes // len(layer_ids),))
    return PageFormat(component=component, layer_ids=layer_ids, parts=(part,), slots_per_page=1, shard=WHOLE)


def make_stores(
    page_bytes: Mapping[str, int],
    device: Mapping[str, int | None],
    host: Mapping[str, int | None] | None,
    prepare: Callable[[Mapping[str, DevicePool]], None] | None = None,
) -> PageStores:
    """Stores and movers by component.

    Args:
        page_bytes: of one page, by component.
        device, host: pages by component, None for a pool without end; `host` None where there is no host tier.
        prepare: called with the device pools before anything takes a view of them; with it those with an end are tensors,
            whether or not there is a host tier.

    Raises ConfigurationError for more memory than there is, and where tensors are needed and torch is not installed.
    """
    size_bytes = sum((device[name] or 0) * size for name, size in page_bytes.items())
    check_host_memory(size_bytes, component="--verify: device pages of " + ", ".join(page_bytes))
    stores = PageStores(page_bytes=page_bytes)
    bounded: dict[str, tuple[int, int | None]] = {}
    for name, count in device.items():
        host_count = None if host is None else host[name]
        if count is not None and (host_count is not None or (host is None and prepare is not None)):
            bounded[name] = (count, host_count)
            continue
        pages = ChunkedPages(page_bytes[name])
        stores.device[name] = pages
        if host is not None:
            behind = ChunkedPages(page_bytes[name])
            stores.host[name] = stores.memory[name] = behind
            stores.movers[name] = ChunkedPair(pages, behind)
    if bounded:
        _add_tensors(stores, bounded, prepare)
    return stores


def _add_tensors(
    stores: PageStores,
    counts: Mapping[str, tuple[int, int | None]],
    prepare: Callable[[Mapping[str, DevicePool]], None] | None,
) -> None:
    """Pools with so many pages on device and host, or on device alone."""
    try:
        from unified_tree.controllers.pools import DevicePool, PagePair, host_pools
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ConfigurationError(NEEDS_TORCH) from error
    formats = {name: raw_layers(name, stores.page_bytes[name]) for name in counts}
    host_counts = {name: host_count for name, (_, host_count) in counts.items() if host_count is not None}
    hosts = host_pools({name: formats[name] for name in host_counts}, host_counts, layout=HostLayout.PAGE_FIRST_DIRECT)
    stores.pools.update({name: DevicePool(formats[name], device_count) for name, (device_count, _) in counts.items()})
    if prepare is not None:
        prepare(stores.pools)
    for name, pool in stores.pools.items():
        stores.device[name] = TensorPages([pool.tensor(layer, "raw")[:, 0].numpy() for layer in formats[name].layer_ids])
        if name not in hosts:
            continue
        stores.host[name] = TensorPages(list(hosts[name].tensor("raw")[:, :, 0].movedim(1, 0).numpy()))
        stores.movers[name] = PagePair(pool, hosts[name])
        stores.memory[name] = hosts[name]


class MeteredStorage:
    """A StorageEngine over another, used by one thread.

    Args:
        inner: does all the work, and is closed with this one.
        page_bytes: the true size of a page, by pool; of a pool that is left out nothing is counted but its calls.

    Attributes:
        read_bytes, written_bytes: of pages read or stored so far.
    """

    def __init__(self, inner: StorageEngine, page_bytes: Mapping[str, int]) -> None:
        self.read_bytes = 0
        self.written_bytes = 0
        self._inner = inner
        self._page_bytes = dict(page_bytes)
        self._calls = 0
        self._moved_bytes = 0

    def take(self) -> tuple[int, int]:
        """Calls, and bytes that they moved, since this was asked last."""
        taken = self._calls, self._moved_bytes
        self._calls = self._moved_bytes = 0
        return taken

    @property
    def capabilities(self) -> Capabilities:
        """See StorageEngine.capabilities."""
        return self._inner.capabilities

    def register(self, buffers: Sequence[memoryview]) -> None:
        """See StorageEngine.register."""
        self._inner.register(buffers)

    def exists(self, pool: str, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """See StorageEngine.exists."""
        self._calls += 1
        return self._inner.exists(pool, keys)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.get."""
        self._calls += 1
        outcomes = self._inner.get(pool, keys, pages)
        self.read_bytes += self._moved(pool, outcomes)
        return outcomes

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """See StorageEngine.put."""
        self._calls += 1
        outcomes = self._inner.put(pool, keys, pages)
        self.written_bytes += self._moved(pool, outcomes)
        return outcomes

    def remove(self, pool: str, keys: Sequence[bytes]) -> None:
        """See StorageEngine.remove."""
        self._inner.remove(pool, keys)

    def clear(self) -> None:
        """See StorageEngine.clear."""
        self._inner.clear()

    def stats(self) -> StorageStats:
        """See StorageEngine.stats."""
        return self._inner.stats()

    def close(self) -> None:
        """See StorageEngine.close."""
        self._inner.close()

    def _moved(self, pool: str, outcomes: Sequence[Outcome]) -> int:
        moved_bytes = self._page_bytes.get(pool, 0) * sum(outcome is Outcome.DONE for outcome in outcomes)
        self._moved_bytes += moved_bytes
        return moved_bytes
