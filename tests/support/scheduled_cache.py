"""A whole cache with tensors on device and host and a store behind them, driven as a scheduler drives it, tick by tick.

Every page is filled from a hash of component, layer and prefix, and every byte of every hit is compared. The clock that
time-outs go by is the scheduler's own: it moves by a tick a step while `time_passes`, and stands still otherwise, so that
how long a request waits is known to the tick on any machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from computed_pages import blocks
from numpy.typing import NDArray
from watchdog import until

from unified_tree import Component, Key, Path, Point, Tier, Trailing
from unified_tree.components import Composition
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.pools import PageFormat, mha_format, state_format
from unified_tree.controllers.storage import StorageEngine, StorageRegistry, StoredPool
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy, StorageTier, StorageTierStats
from unified_tree.controllers.tiers.tensor_memory import tensor_tiers
from unified_tree.declare.page_format import WHOLE

PAGE = 4
WINDOW = 7
FORMATS: dict[str, PageFormat] = {
    "full": mha_format("full", layer_ids=(0, 2), page_size=PAGE, kv_heads=2, head_dim=8, shard=WHOLE),
    "swa": mha_format("swa", layer_ids=(1,), page_size=PAGE, kv_heads=2, head_dim=8, shard=WHOLE),
    "mamba": state_format("mamba", layer_ids=(3,), conv_shape=(6, 3), state_shape=(2, 4, 4), shard=WHOLE),
}
COMPOSITION = Composition(
    name="tiny hybrid",
    page_size=PAGE,
    components=(
        Component(name="full", coverage=Path(), format=FORMATS["full"]),
        Component(name="swa", coverage=Trailing(WINDOW), format=FORMATS["swa"]),
        Component(name="mamba", coverage=Point(), format=FORMATS["mamba"]),
    ),
)
DEVICE = {"full": 64, "swa": 48, "mamba": 12}
HOST = {"full": 96, "swa": 64, "mamba": 24}
TICK_S = 0.125
"""A power of two, so that sums of it are exact."""
PATIENCE = PrefetchPolicy(
    mode=PrefetchMode.TIMEOUT, min_tokens=1, max_host_share=1.0, base_s=2.0, per_token_s=0.0, batch_pages=4, grace_s=0.5
)
LONGEST_WAIT_TICKS = int((PATIENCE.base_s + PATIENCE.grace_s) / TICK_S) + 1
Tokens = NDArray[np.int64]
Opener = Callable[[Sequence[StoredPool]], StorageEngine]


def prompt(number: int, tokens: int = 41) -> Tokens:
    """Every third prompt begins as the one before it."""
    ids = np.random.default_rng(number).integers(0, 50_000, tokens)
    ids[:20] = np.random.default_rng(1000 + number // 3).integers(0, 50_000, 20)
    return ids


class ScheduledCache:
    """The cache and its scheduler.

    Attributes:
        now: the scheduler's clock, in seconds.
        time_passes: whether a tick moves it.
        doing: which call of the cache is being made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.time_passes = False
        self.doing = "nothing"
        self._names = itertools.count()
        self.tiers = tensor_tiers(COMPOSITION, device_page_counts=DEVICE, host_page_counts=HOST)
        self.cache = PrefixCache(COMPOSITION.components, PAGE, DEVICE, host=self.tiers.host_tier())

    def attach(self, opener: Opener) -> None:
        """Put a store behind it."""
        registry = StorageRegistry()
        registry.register("under test", opener)
        self.cache.attach_storage(self._tier(registry))

    def _tier(self, registry: StorageRegistry) -> StorageTier:
        return self.tiers.storage_tier(
            "under test", weights_version="v1", registry=registry, prefetch=PATIENCE, clock=lambda: self.now
        )

    @property
    def figures(self) -> StorageTierStats:
        """Of the store."""
        found = self.cache.stats().storage
        assert found is not None
        return found

    def tick(self) -> None:
        """One step of the scheduler."""
        if self.time_passes:
            self.now += TICK_S
        else:
            time.sleep(0.0005)  # a store's threads have the processor, too
        self._call("poll")

    def serve(self, *prompts: Tokens) -> list[int]:
        """Requests that arrive together, from `prefetch` to `release`; how many tokens of each were cached.

        One more arrives with them, and is cancelled a tick later.
        """
        names = [next(self._names) for _ in prompts]
        for name, tokens in zip(names, prompts, strict=True):
            self._call("prefetch", name, Key(tokens))
        self._call("prefetch", "cancelled", Key(np.append(prompts[0], prompts[0])))
        self.tick()
        self._call("cancel", "cancelled")
        ticks = 1
        waiting = names
        while waiting := [name for name in waiting if not self._call("prefetched", name)]:
            self.tick()
            ticks += 1
            assert not self.time_passes or ticks <= LONGEST_WAIT_TICKS, "a request waits longer than its time-out"
        cached = []
        for name, tokens in zip(names, prompts, strict=True):
            lease = self._call("acquire", Key(tokens), [tokens.size // PAGE * PAGE], request=name)
            cached.append(lease.cached_tokens)
            self._verify(lease, tokens)
            self._call("allocate", lease, tokens.size)
            self._compute(lease, tokens)
            self._call("commit", lease, tokens, dict(lease.save_pages))
            self.tick()
            self._call("release", lease)
        self.tick()
        return cached

    def settle(self) -> None:
        """Tick until nothing is under way between the tiers."""

        def is_quiet() -> bool:
            self.tick()
            assert self.cache.controller is not None
            self.cache.controller.drain()
            storage = self.cache.storage
            return storage is None or not storage.is_busy

        until(is_quiet, "the tiers come to rest")

    def forget(self) -> None:
        """Device and host lose all that nobody uses."""
        tree, controller = self.cache.tree, self.cache.controller
        assert controller is not None
        for pages, tier in ((self.cache.device, Tier.DEVICE), (controller.host, Tier.HOST)) * 2:
            for name in pages.allocators:
                pages.free_evicted(tree.evict({name: tree.pool(name, tier).used_pages}, tier))

    def found_again(self, tokens: Tokens) -> int:
        """How much of a prompt comes back from the store alone."""
        self.settle()
        self.forget()
        before = self.cache.stats().storage_hit_tokens
        self.serve(tokens)
        return self.cache.stats().storage_hit_tokens - before

    def close(self) -> None:
        """Close it; then every page is at home, whatever the store did."""
        self.doing = "close"
        self.cache.close()
        assert self.cache.tree.check() == []
        stats = self.cache.stats()
        assert stats.leases == 0
        assert not any(pool.leased or pool.protected for pool in stats.pools.values()), stats.pools
        assert not any(pool.used - pool.tree or pool.protected for pool in stats.host_pools.values()), stats.host_pools
        self.forget()
        stats = self.cache.stats()
        assert not any([*(pool.used for pool in stats.pools.values()), *(pool.used for pool in stats.host_pools.values())])

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        self.doing = name
        result = getattr(self.cache, name)(*given, **named)
        self.doing = "nothing"
        return result

    def _verify(self, lease: Lease, tokens: Tokens) -> None:
        """Every cached byte, layer by layer behind the gates; then the state is copied."""
        for layer in range(4):
            self.cache.wait_layer(lease, layer)
        last = lease.cached_tokens // PAGE
        for component, first in (("full", 0), ("swa", max(0, lease.cached_tokens - WINDOW) // PAGE)):
            for index, page in enumerate(lease.pages(component)[first:last].tolist(), first):
                assert page >= 0, f"{component} lacks page {index} of a hit"
                self._compare(component, page, tokens[: (index + 1) * PAGE])
        assert lease.state_copies or not lease.cached_tokens
        for copy in lease.state_copies:
            self._compare("mamba", copy.source, tokens[: lease.cached_tokens])

    def _compare(self, component: str, page: int, prefix: Tokens) -> None:
        for _, block, wanted in blocks(self.tiers, FORMATS[component], page, prefix):
            assert torch.equal(block, wanted), f"{component} page {page} does not hold the end of {prefix.size} tokens"

    def _compute(self, lease: Lease, tokens: Tokens) -> None:
        """What a model would write."""
        for component in ("full", "swa"):
            first = lease.compute_from // PAGE
            for index, page in enumerate(lease.pages(component)[first:].tolist(), first):
                if page >= 0:
                    self._write(component, page, tokens[: (index + 1) * PAGE])
        for length, page in lease.save_pages.items():
            self._write("mamba", page, tokens[:length])

    def _write(self, component: str, page: int, prefix: Tokens) -> None:
        for _, block, wanted in blocks(self.tiers, FORMATS[component], page, prefix):
            block.copy_(wanted)
