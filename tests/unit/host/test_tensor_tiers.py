"""A cache over real pools: the bytes that come back are the bytes that left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from unified_tree import ConfigurationError, Key
from unified_tree.component import Component
from unified_tree.components import Composition
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.host.tensor_pools import TensorTiers, tensor_tiers
from unified_tree.controllers.pools import HostLayout, PageFormat, indexer_format, mha_format, state_format
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


def expected(component: str, layer: int, part: str, prefix: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """What a model would have computed into a page: bytes that follow from everything before its end."""
    digest = hashlib.shake_128(f"{component} {layer} {part}".encode() + prefix.tobytes()).digest(
        like.numel() * like.element_size()
    )
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def blocks(tiers: TensorTiers, component: str, page: int) -> Iterator[tuple[int, str, torch.Tensor]]:
    page_format = FORMATS[component]
    for layer in page_format.layer_ids:
        for part in page_format.parts:
            yield layer, part.name, tiers.device[component].tensor(layer, part.name)[page]


def as_bytes(block: torch.Tensor) -> torch.Tensor:
    return block.reshape(-1).view(torch.uint8)


def compute(tiers: TensorTiers, lease: Lease, tokens: np.ndarray) -> None:
    """Write what the lease's pages must hold, from where it starts."""
    for component in ("full", "indexer"):
        for i, page in enumerate(lease.pages(component)[lease.compute_from // PAGE :].tolist(), lease.compute_from // PAGE):
            for layer, part, block in blocks(tiers, component, page):
                as_bytes(block).copy_(expected(component, layer, part, tokens[: (i + 1) * PAGE], block))
    for length, page in lease.save_pages.items():
        for layer, part, block in blocks(tiers, "mamba", page):
            as_bytes(block).copy_(expected("mamba", layer, part, tokens[:length], block))


def check(cache: PrefixCache, tiers: TensorTiers, lease: Lease, tokens: np.ndarray) -> int:
    """Compare every cached byte, each layer behind its gate; returns how many blocks that were."""
    compared = 0
    for wanted in range(4):
        cache.wait_layer(lease, wanted)
        for component in ("full", "indexer"):
            for i, page in enumerate(lease.pages(component)[: lease.cached_tokens // PAGE].tolist()):
                for layer, part, block in blocks(tiers, component, page):
                    if layer == wanted:
                        assert torch.equal(as_bytes(block), expected(component, layer, part, tokens[: (i + 1) * PAGE], block))
                        compared += 1
        for copy in lease.state_copies:
            for layer, part, block in blocks(tiers, "mamba", copy.source):
                if layer == wanted:
                    assert torch.equal(as_bytes(block), expected("mamba", layer, part, tokens[: lease.cached_tokens], block))
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
    assert compared == 12 * 2 * (2 * 4 * (2 + 2) + 2 * 2)
    assert stats.drops == {}
    cache.close()


def test_missing_counts_are_named() -> None:
    with pytest.raises(ConfigurationError, match="page counts are missing for indexer"):
        tensor_tiers(COMPOSITION, device_page_counts=DEVICE, host_page_counts={"full": 1, "mamba": 1})
