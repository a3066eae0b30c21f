"""A cache over a store for unit tests: it computes prompts, forgets them, and says how much of one it finds again.

Every byte that a prompt hits is compared with what was computed for it (`memory_model`). Time stands still unless a test
moves it, or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memory_model import Request, Runner
from page_memory import PageMemory

from unified_tree import Component, Key, Tenants, Tier
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.storage import MemoryStorage, StorageEngine, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import Jobs, PersistPolicy, PrefetchMode, PrefetchPolicy, StorageTier, ThreadJobs
from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.testing import SimulatedEngine, SimulatedJobs
from unified_tree.controllers.transfer_engines import VirtualClock

STEP_NS = 1_000
"""Virtual time of a step of a job: `step` does one of each job."""
EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0, batch_pages=2, grace_s=0.0)


class Kept(MemoryStorage):
    """A store that outlives whoever closes it, as one on another machine does, and that a test may take from."""

    def __init__(self, pools: Sequence[StoredPool], capacity_bytes: int = 1 << 26) -> None:
        super().__init__(pools, capacity_bytes)
        self.calls: list[tuple[str, str, int]] = []

    def close(self) -> None:
        """Nothing."""

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        """Noted down."""
        self.calls.append(("exists", pool, len(keys)))
        return super().exists(pool, keys)

    def get(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> Any:
        """Noted down."""
        self.calls.append(("get", pool, len(keys)))
        return super().get(pool, keys, pages)

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> Any:
        """Noted down."""
        self.calls.append(("put", pool, len(keys)))
        return super().put(pool, keys, pages)

    def count(self, call: str, pool: str) -> int:
        """Pages in calls of that kind so far."""
        return sum(count for name, where, count in self.calls if (name, where) == (call, pool))

    def keys(self, pool: str) -> list[bytes]:
        """What is stored of a pool, in the order it came or was read last."""
        return [key for name, key in self._values if name == pool]

    def spoil(self, pool: str, key: bytes) -> None:
        """Flip a bit of a value."""
        value = bytearray(self._values[pool, key])
        value[0] ^= 1
        self._values[pool, key] = bytes(value)


def pools_for(components: Sequence[Component], memory: PageMemory) -> dict[str, StoredPool]:
    """A stored pool a component."""
    return {
        c.name: StoredPool(name=c.name, format_digest=bytes([i + 1]) * 32, value_bytes=memory.host_pages[c.name].value_bytes)
        for i, c in enumerate(components)
    }


def all_pools(components: Sequence[Component], pools: dict[str, StoredPool]) -> list[StoredPool]:
    """These and, if there is one, that of the restore points."""
    trailing = [pools[c.name] for c in components if c.required and type(c.coverage).__name__ != "Path"]
    return [*pools.values(), *([record_pool(trailing, RECORDS)] if trailing else [])]


class StoredCache:
    """A PrefixCache over a store.

    Args:
        components: its kinds of state.
        store: what opens the engine for given pools; None for a `Kept` in memory, of which later caches find the values.
        threads: whether jobs run on threads of their own rather than in virtual time.
        attach: whether the store is attached from the beginning.
        written, weights_version: see StorageTier.
        ranks, max_versions, tenants: see PrefixCache.
    """

    def __init__(
        self,
        components: Sequence[Component],
        *,
        page_size: int = 2,
        store: Callable[[list[StoredPool]], StorageEngine] | None = None,
        threads: bool = False,
        attach: bool = True,
        device_pages: int = 400,
        host_pages: dict[str, int] | int = 400,
        prefetch: PrefetchPolicy = EAGER,
        persist: PersistPolicy | None = None,
        written: Sequence[str] | None = None,
        weights_version: str = "weights 0",
        known: Any = None,
        ranks: Consensus | None = None,
        max_versions: int = 16_384,
        tenants: Tenants | None = None,
    ) -> None:
        self.components = list(components)
        self.page_size = page_size
        self.clock = VirtualClock()
        self.memory = PageMemory(self.components, known)
        self.pools = pools_for(self.components, self.memory)
        self.every_pool = all_pools(self.components, self.pools)
        self._open = store
        self._kept = Kept(self.every_pool)
        self.threads = threads
        self._tier = {"prefetch": prefetch, "persist": persist or PersistPolicy(), "written": written}
        self.weights_version = weights_version
        host = dict.fromkeys(self.pools, host_pages) if isinstance(host_pages, int) else host_pages
        tier = HostTier(page_counts=host, engine=SimulatedEngine(0, self.clock, movers=self.memory.movers()))
        counts = {c.name: device_pages for c in self.components if c.shares is None}
        self.cache = PrefixCache(
            self.components, page_size, counts, host=tier, ranks=ranks, max_versions=max_versions, tenants=tenants
        )
        self.runner = Runner(self.cache, self.components, self.memory)
        self.tier: StorageTier | None = None
        if attach:
            self.attach()

    @property
    def store(self) -> Kept:
        """The store in memory."""
        assert self._open is None
        return self._kept

    @property
    def figures(self) -> StorageTierStats:
        """The figures of the attached store."""
        figures = self.cache.stats().storage
        assert figures is not None
        return figures

    def jobs(self, seed: int) -> Jobs:
        """New ones."""
        return ThreadJobs() if self.threads else SimulatedJobs(seed, self.clock, STEP_NS, spread=0)

    def make_tier(self, **settings: Any) -> StorageTier:
        """Settings of a tier over the store as it is."""
        return StorageTier(
            **{
                "engine": self._kept if self._open is None else self._open(self.every_pool),
                "pools": self.pools,
                "memory": self.memory.host_pages,
                "weights_version": self.weights_version,
                "reading": self.jobs(1),
                "writing": self.jobs(2),
                "clock": lambda: self.clock.now / 1e9,
                **self._tier,
                **settings,
            }
        )

    def attach(self, **settings: Any) -> None:
        """Attach the store, or attach it anew."""
        self.tier = self.make_tier(**settings)
        self.cache.attach_storage(self.tier)

    def like_this(self, **settings: Any) -> StoredCache:
        """Another server, that knows nothing but the same store."""
        twin = StoredCache(
            self.components,
            **{
                "page_size": self.page_size,
                "store": self._open,
                "threads": self.threads,
                "weights_version": self.weights_version,
                "known": self.memory.known,
                "attach": False,
                **self._tier,
                **settings,
            },
        )
        twin._kept = self._kept
        if settings.get("attach", True):
            twin.attach()
        return twin

    def compute(
        self, tokens: Sequence[int], namespace: str = "", checkpoints: Sequence[int] = (), without: Sequence[str] = ()
    ) -> None:
        """A request runs through its whole prompt and is done; what it published goes to host and to the store."""
        request = self.runner.start(tokens, namespace, checkpoints)
        self.cache.allocate(request.lease, len(tokens))
        for length in [*sorted(set(checkpoints)), len(tokens)]:
            if length > request.computed:
                self.runner.compute(request, length, without)
                self.runner.commit(request, without=without, resumable=True)
        self.runner.finish(request)
        self.cache.drain()
        self.runner.check()

    def forget(self) -> None:
        """Device and host lose all that nobody uses."""
        tree, controller = self.cache.tree, self.cache.controller
        assert controller is not None
        for pages, tier in ((self.cache.device, Tier.DEVICE), (controller.host, Tier.HOST)) * 2:
            for name in pages.allocators:
                pages.free_evicted(tree.evict({name: tree.pool(name, tier).used_pages}, tier))

    def prefetch(self, tokens: Sequence[int], namespace: str = "", request: Any = "request") -> bool:
        """Begin a prefetch."""
        return self.cache.prefetch(request, Key(list(tokens), namespace))

    def step(self, times: int = 1) -> None:
        """Every job does a step; then it is seen what has ended."""
        for _ in range(times):
            self.clock.advance(STEP_NS)
            self.cache.poll()
            self.runner.check()

    def reach(self, tokens: Sequence[int], namespace: str = "") -> int:
        """How many tokens of a prompt lie on host."""
        return self.cache.tree.transfers.host_path_end(Key(list(tokens), namespace), limit=len(tokens) - 1).length

    def hit(self, tokens: Sequence[int], namespace: str = "", request: Any = None) -> int:
        """How many tokens a prompt finds, every byte of them compared."""
        found: Request = self.runner.start(tokens, namespace, request=request)
        if not found.verified:
            self.runner.verify(found)
        self.cache.drain()
        length = found.lease.compute_from
        self.runner.finish(found)
        self.runner.check()
        return length

    def fetch(self, tokens: Sequence[int], namespace: str = "") -> int:
        """Prefetch a prompt to the end, then use it: how many tokens are found."""
        self.prefetch(tokens, namespace)
        self.cache.drain()
        assert self.cache.prefetched("request")
        return self.hit(tokens, namespace, "request")

    def drops(self) -> dict[str, int]:
        """Dropped operations, by reason."""
        return dict(self.cache.stats().drops)

    def end(self) -> None:
        """Everything is let go, and every page comes home."""
        self.runner.end()
        self.cache.close()


def policy(**settings: Any) -> PrefetchPolicy:
    """EAGER, with other settings."""
    return replace(EAGER, **settings)
