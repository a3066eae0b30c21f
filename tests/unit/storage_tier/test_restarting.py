"""Real bytes through a store in files: what one server computed another one reads, over threads and tensors."""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
import pytest
import torch
from computed_pages import COMPOSITION, FORMATS, PAGE, blocks
from stored_cache import EAGER

from unified_tree import Key
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.storage_tier import StorageTier, stored_pools
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers

DEVICE = {"full": 40, "mamba": 6}
PROMPT = np.arange(81)


class Server:
    """One life of a server: pools, threads, files."""

    def __init__(self, directory: FilePath, layout: HostLayout) -> None:
        self.tiers: TensorTiers = tensor_tiers(
            COMPOSITION,
            device_page_counts=DEVICE,
            host_page_counts={"full": 100, "indexer": 100, "mamba": 30},
            layout=layout,
        )
        pools = stored_pools(COMPOSITION, layout=layout)
        self.cache = PrefixCache(COMPOSITION.components, PAGE, DEVICE, host=self.tiers.host_tier())
        self.cache.attach_storage(
            StorageTier(
                engine=FileStorage(pools, directory, 1 << 22),
                pools={pool.name: pool for pool in pools if pool.name != RECORDS},
                memory=self.tiers.host,
                weights_version="v1",
                prefetch=EAGER,
            )
        )

    def compute(self, tokens: np.ndarray, checkpoint: int) -> None:
        """A request runs through its prompt; what it published is stored."""
        with self.cache.acquire(Key(tokens), [checkpoint]) as lease:
            self.cache.allocate(lease, len(tokens))
            for component in ("full", "indexer"):
                for i, page in enumerate(lease.pages(component)[lease.compute_from // PAGE :], lease.compute_from // PAGE):
                    for _, block, wanted in blocks(self.tiers, FORMATS[component], int(page), tokens[: (i + 1) * PAGE]):
                        block.copy_(wanted)
            for length, page in lease.save_pages.items():
                for _, block, wanted in blocks(self.tiers, FORMATS["mamba"], page, tokens[:length]):
                    block.copy_(wanted)
            self.cache.commit(lease, tokens, dict(lease.save_pages))
        self.cache.flush()

    def hit(self, tokens: np.ndarray) -> int:
        """Prefetch, acquire, compare every byte of what was cached."""
        assert self.cache.prefetch("request", Key(tokens))
        while not self.cache.prefetched("request"):
            self.cache.poll()
        with self.cache.acquire(Key(tokens), request="request") as lease:
            for layer in (0, 1, 2, 3):
                self.cache.wait_layer(lease, layer)
            self.compare(lease, tokens)
            self.cache.drain()
            return lease.cached_tokens

    def compare(self, lease: Lease, tokens: np.ndarray) -> None:
        for component in ("full", "indexer"):
            for i, page in enumerate(lease.pages(component)[: lease.cached_tokens // PAGE].tolist()):
                for _, block, wanted in blocks(self.tiers, FORMATS[component], page, tokens[: (i + 1) * PAGE]):
                    assert torch.equal(block, wanted), (component, i)
        for copy in lease.state_copies:
            for _, block, wanted in blocks(self.tiers, FORMATS["mamba"], copy.source, tokens[: lease.cached_tokens]):
                assert torch.equal(block, wanted)


@pytest.mark.parametrize("layout", [HostLayout.PAGE_FIRST, HostLayout.PAGE_FIRST_DIRECT])
def test_a_new_server_finds_what_the_last_one_stored(tmp_path: FilePath, layout: HostLayout) -> None:
    first = Server(tmp_path, layout)
    first.compute(PROMPT, 60)
    first.cache.close()
    second = Server(tmp_path, layout)
    assert second.hit(PROMPT) in (60, 80)
    stats = second.cache.stats()
    assert stats.storage is not None
    assert stats.storage_hit_tokens == stats.hit_tokens >= 60
    assert not stats.storage.quarantined and not stats.storage.errors and not stats.drops
    second.cache.close()
