"""Real bytes through a store in files: what one server computed another one reads, over threads and tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np
import pytest
import torch
from kinds import SETS
from stored_cache import EAGER, StoredCache

from unified_tree import Key
from unified_tree.component import Component
from unified_tree.components import Composition
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.host.tensor_pools import TensorTiers, tensor_tiers
from unified_tree.controllers.pools import HostLayout, PageFormat, indexer_format, mha_format, state_format
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.storage_tier import StorageTier, stored_pools
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.coverage import Path, Point
from unified_tree.page_format import WHOLE

PAGE = 4
FORMATS: dict[str, PageFormat] = {
    "full": mha_format("full", layer_ids=(0, 2), page_size=PAGE, kv_heads=2, head_dim=8, shard=WHOLE),
    "indexer": indexer_format("indexer", layer_ids=(0, 2), page_size=PAGE, key_dim=8, shard=WHOLE),
    "mamba": state_format("mamba", layer_ids=(1, 3), conv_shape=(6, 3), state_shape=(2, 4, 4), shard=WHOLE),
}
COMPOSITION = Composition(
    name="tiny hybrid",
    page_size=PAGE,
    components=(
        Component(name="full", coverage=Path(), format=FORMATS["full"]),
        Component(name="indexer", coverage=Path(), shares="full", format=FORMATS["indexer"]),
        Component(name="mamba", coverage=Point(), format=FORMATS["mamba"]),
    ),
)
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

    def blocks(self, component: str, page: int, prefix: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parts of a device page, and what a model computes into them."""
        for layer in FORMATS[component].layer_ids:
            for part in FORMATS[component].parts:
                block = self.tiers.device[component].tensor(layer, part.name)[page].reshape(-1).view(torch.uint8)
                seed = f"{component} {layer} {part.name}".encode() + prefix.tobytes()
                wanted = hashlib.shake_128(seed).digest(block.numel())
                yield block, torch.frombuffer(bytearray(wanted), dtype=torch.uint8)

    def compute(self, tokens: np.ndarray, checkpoint: int) -> None:
        """A request runs through its prompt; what it published is stored."""
        with self.cache.acquire(Key(tokens), [checkpoint]) as lease:
            self.cache.allocate(lease, len(tokens))
            for component in ("full", "indexer"):
                for i, page in enumerate(lease.pages(component)[lease.compute_from // PAGE :], lease.compute_from // PAGE):
                    for block, wanted in self.blocks(component, int(page), tokens[: (i + 1) * PAGE]):
                        block.copy_(wanted)
            for length, page in lease.save_pages.items():
                for block, wanted in self.blocks("mamba", page, tokens[:length]):
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
                for block, wanted in self.blocks(component, page, tokens[: (i + 1) * PAGE]):
                    assert torch.equal(block, wanted), (component, i)
        for copy in lease.state_copies:
            for block, wanted in self.blocks("mamba", copy.source, tokens[: lease.cached_tokens]):
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


def test_a_server_with_another_layout_finds_nothing(tmp_path: FilePath) -> None:
    first = Server(tmp_path / "a", HostLayout.PAGE_FIRST)
    first.compute(PROMPT, 60)
    first.cache.close()
    second = Server(tmp_path / "a", HostLayout.PAGE_FIRST_DIRECT)
    assert second.hit(PROMPT) == 0
    second.cache.close()


@pytest.mark.parametrize("kinds", ["full", "window and mamba", "draft", "everything"])
@pytest.mark.parametrize("threads", [False, True])
def test_caches_one_after_another_over_the_same_files(tmp_path: FilePath, kinds: str, threads: bool) -> None:
    cache = StoredCache(SETS[kinds], store=lambda pools: FileStorage(pools, tmp_path, 1 << 24), threads=threads)
    prompt = list(range(41))
    cache.compute(prompt, checkpoints=[20, 40])
    cache.end()
    for length in (21, 41):
        cache = cache.like_this()
        assert cache.fetch(prompt[:length]) == length - 1
        cache.end()
