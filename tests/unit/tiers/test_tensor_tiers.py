"""A cache over real pools: the bytes that come back are the bytes that left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from computed_pages import COMPOSITION, FORMATS, PAGE, blocks

from unified_tree import ConfigurationError, Key
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers

DEVICE = {"full": 12, "mamba": 6}


@pytest.fixture(params=list(HostLayout))
def tiers(request: pytest.FixtureRequest) -> Iterator[TensorTiers]:
    made = tensor_tiers(
        COMPOSITION,
        device_page_counts=DEVICE,
        host_page_counts={"full": 100, "indexer": 100, "mamba": 30},
        layout=request.param,
    )
    yield made
    made.engine.close()


def compute(tiers: TensorTiers, lease: Lease, tokens: np.ndarray) -> None:
    """Write what the lease's pages must hold, from where it starts."""
    for component in ("full", "indexer"):
        for i, page in enumerate(lease.pages(component)[lease.compute_from // PAGE :].tolist(), lease.compute_from // PAGE):
            for _, block, wanted in blocks(tiers, FORMATS[component], page, tokens[: (i + 1) * PAGE]):
                block.copy_(wanted)
    for length, page in lease.save_pages.items():
        for _, block, wanted in blocks(tiers, FORMATS["mamba"], page, tokens[:length]):
            block.copy_(wanted)


def check(cache: PrefixCache, tiers: TensorTiers, lease: Lease, tokens: np.ndarray) -> int:
    """Compare every cached byte, each layer behind its gate; returns how many blocks that were."""
    cached = [
        *((name, page, (i + 1) * PAGE)
          for name in ("full", "indexer") for i, page in enumerate(lease.pages(name)[: lease.cached_tokens // PAGE].tolist())),
        *(("mamba", copy.source, lease.cached_tokens) for copy in lease.state_copies),
    ]  # fmt: skip
    compared = 0
    for gate in range(4):
        cache.wait_layer(lease, gate)
        for name, page, length in cached:
            for layer, block, wanted in blocks(tiers, FORMATS[name], page, tokens[:length]):
                if layer == gate:
                    assert torch.equal(block, wanted)
                    compared += 1
    return compared


def test_every_byte_comes_back(tiers: TensorTiers) -> None:
    cache = PrefixCache(COMPOSITION.components, PAGE, DEVICE, host=tiers.host_tier())
    prompts = [np.arange(start, start + 17) for start in (0, 100, 200, 300)]
    for tokens in prompts:
        with cache.acquire(Key(tokens)) as lease:
            cache.allocate(lease, 17)
            compute(tiers, lease, tokens)
            cache.commit(lease, tokens, dict(lease.save_pages))
        cache.drain()
    compared = 0
    for tokens in prompts * 3:
        with cache.acquire(Key(tokens)) as lease:
            assert lease.cached_tokens == 16
            cache.poll()
            compared += check(cache, tiers, lease, tokens)
            cache.allocate(lease, 17)
            cache.commit(lease, tokens)
            compared += check(cache, tiers, lease, tokens)
        cache.poll()
        assert cache.tree.check() == []
    stats = cache.stats()
    assert stats.host_hit_tokens >= 8 * 16, "most of them had to come from host"
    assert compared == 12 * (2 * 2 * 4 * (2 + 2) + 2 * 2), "the pages twice; the state before the first run alone"
    assert stats.drops == {}
    cache.close()


def test_missing_counts_are_named() -> None:
    with pytest.raises(ConfigurationError, match="page counts are missing for indexer"):
        tensor_tiers(COMPOSITION, device_page_counts=DEVICE, host_page_counts={"full": 1, "mamba": 1})


@pytest.mark.parametrize("page_counts", [{"full": 13, "mamba": 6}, {"full": 12}, {}])
def test_a_cache_with_more_pages_than_the_device_pools_is_refused(page_counts: dict[str, int]) -> None:
    """Its leases would name pages that no tensor has."""
    tiers = tensor_tiers(COMPOSITION, device_page_counts=DEVICE, host_page_counts={"full": 9, "indexer": 9, "mamba": 3})
    with pytest.raises(ConfigurationError, match=r"device pages of '(full|mamba)', but its device pool has (12|6)"):
        PrefixCache(COMPOSITION.components, PAGE, page_counts, host=tiers.host_tier())
    fewer = {"full": 11, "mamba": 5}  # the last page is padding
    PrefixCache(COMPOSITION.components, PAGE, fewer, host=tiers.host_tier()).close()
