"""Real tensors through host memory and files: what one cache computed, another finds after a restart, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unified_tree import ConfigurationError, Key
from unified_tree.components import Composition, composition_for
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers

TOKENS = np.arange(200)


def small(name: str) -> Composition:
    return composition_for(name, page_size=16)


def tiers_of(model: Composition) -> TensorTiers:
    owners = [c.name for c in model.components if c.shares is None]
    return tensor_tiers(
        model,
        device_page_counts=dict.fromkeys(owners, 16),
        host_page_counts={c.name: 30 for c in model.components},
    )


def cache_over(tiers: TensorTiers, directory: Path, version: str) -> PrefixCache:
    storage = tiers.storage_tier(
        "file",
        weights_version=version,
        options={"directory": directory, "capacity_bytes": 1 << 31},
        prefetch=PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1),
    )
    model = tiers.composition
    counts = {name: pool.page_count for name, pool in tiers.device.items() if name in owners_of(model)}
    return PrefixCache(model.components, model.page_size, counts, host=tiers.host_tier(), storage=storage)


def owners_of(model: Composition) -> list[str]:
    return [c.name for c in model.components if c.shares is None]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama-3.1-8b"])
def test_a_restart_finds_every_byte(name: str, tmp_path: Path) -> None:
    model = small(name)
    tiers = tiers_of(model)
    cache = cache_over(tiers, tmp_path, "v1")
    lease = cache.acquire(Key(TOKENS))
    cache.allocate(lease, TOKENS.size)
    written = {}
    for owner, pool in tiers.device.items():
        ids = lease.pages(owner)[: TOKENS.size // 16]
        part = pool.format.parts[0]
        for layer in pool.format.layer_ids:
            tensor = pool.tensor(layer, part.name)
            values = torch.randint(0, 100, (ids.size, *tensor.shape[1:])).to(tensor.dtype)
            tensor[torch.from_numpy(ids[ids >= 0])] = values[: int((ids >= 0).sum())]
            written[owner, layer] = values
    cache.commit(lease, TOKENS)
    cache.release(lease)
    cache.flush()
    assert cache.stats().storage is not None
    cache.close()

    fresh = tiers_of(model)
    again = cache_over(fresh, tmp_path, "v1")
    prompt = Key(np.append(TOKENS, 7))
    assert again.prefetch("r", prompt)
    again.drain()
    assert again.prefetched("r")
    lease = again.acquire(prompt, request="r")
    again.drain()
    assert lease.cached_tokens == 192
    for (owner, layer), values in written.items():
        pool = fresh.device[owner]
        ids = lease.pages(owner)[:12]
        held = np.flatnonzero(ids >= 0)[-8:]
        tensor = pool.tensor(layer, pool.format.parts[0].name)
        assert torch.equal(tensor[torch.from_numpy(ids[held])], values[torch.from_numpy(held)])
    stats = again.stats()
    assert (stats.storage_hit_tokens, stats.host_hit_tokens) == (192, 192)
    again.release(lease)
    again.close()

    other = cache_over(tiers_of(model), tmp_path, "v2")
    other.prefetch("r", prompt)
    other.drain()
    assert other.acquire(prompt, request="r").cached_tokens == 0
    other.close()


def test_what_an_engine_cannot_keep_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    model = small("llama-3.1-8b")
    tiers = tensor_tiers(model, device_page_counts={"full": 4}, host_page_counts={"full": 4}, layout=HostLayout.LAYER_FIRST)
    with pytest.raises(ConfigurationError, match="its pages are layer_first"):
        tiers.storage_tier("file", weights_version="v1", options={"directory": tmp_path, "capacity_bytes": 1 << 30})
    tiers = tensor_tiers(model, device_page_counts={"full": 4}, host_page_counts={"full": 4})
    storage = tiers.storage_tier("memory", weights_version="v1")
    with pytest.raises(ConfigurationError, match="a store needs a host tier"):
        PrefixCache(model.components, 16, {"full": 4}, storage=storage)
