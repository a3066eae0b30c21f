"""Engines with real servers behind a whole cache: what one process's tensors held, the next one's hold again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mooncake_server
import numpy as np
import pytest
import redis_server

torch = pytest.importorskip("torch")

from unified_tree import Key  # noqa: E402
from unified_tree.components import Composition, composition_for  # noqa: E402
from unified_tree.controllers import PrefixCache  # noqa: E402
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy  # noqa: E402
from unified_tree.controllers.tensor_tiers import TensorTiers, tensor_tiers  # noqa: E402

TOKENS = np.arange(200)
Store = tuple[str, dict[str, Any], Callable[[], None]]
"""An engine's name and options, and what kills its server."""


@pytest.fixture(params=["mooncake", "redis", "redis_cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "mooncake":
        mooncake_server.skip_unless_it_runs()
        with mooncake_server.Mooncake(segment_bytes=256 << 20) as master:
            yield "mooncake", {"master": master.master, **mooncake_server.SETTINGS}, master.kill
    elif request.param == "redis":
        redis_server.skip_unless_it_runs()
        with redis_server.Redis(tmp_path, over="unix") as server:
            yield "redis", {"address": server.address}, server.stop
    else:
        redis_server.skip_unless_it_runs()
        with redis_server.Cluster(tmp_path) as cluster:
            yield "redis", {"address": cluster.address, "cluster": True}, cluster.stop


def opened(model: Composition, name: str, options: dict[str, Any]) -> tuple[TensorTiers, PrefixCache]:
    kinds = [component.name for component in model.components]
    tiers = tensor_tiers(model, device_page_counts=dict.fromkeys(kinds, 16), host_page_counts=dict.fromkeys(kinds, 30))
    storage = tiers.storage_tier(
        name,
        weights_version="v1",
        options=options,
        prefetch=PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, least_tokens=1),
    )
    counts = dict.fromkeys(kinds, 16)
    return tiers, PrefixCache(model.components, model.page_size, counts, host=tiers.host_tier(), storage=storage)


def compute(cache: PrefixCache, tiers: TensorTiers) -> dict[tuple[str, int], Any]:
    """Publish a prefix whose state is random; the bytes by component and layer."""
    written = {}
    with cache.acquire(Key(TOKENS)) as lease:
        cache.allocate(lease, TOKENS.size)
        for kind, pool in tiers.device.items():
            ids = torch.from_numpy(lease.pages(kind)[: TOKENS.size // 16].copy())
            for layer in pool.format.layer_ids:
                tensor = pool.tensor(layer, pool.format.parts[0].name)
                written[kind, layer] = torch.randint(0, 100, (len(ids), *tensor.shape[1:]), dtype=torch.uint8).view(
                    tensor.dtype
                )
                tensor[ids[ids >= 0]] = written[kind, layer][ids >= 0]
        cache.commit(lease, TOKENS)
    cache.flush()
    return written


def test_a_restart_finds_every_byte_and_lives_without_its_store(store: Store) -> None:
    name, options, kill = store
    model = composition_for("gpt-oss-20b", page_size=16)
    tiers, cache = opened(model, name, options)
    written = compute(cache, tiers)
    cache.close()

    tiers, cache = opened(model, name, options)
    prompt = Key(np.append(TOKENS, 7))
    assert cache.prefetch("r", prompt)
    cache.drain()
    assert cache.prefetched("r")
    with cache.acquire(prompt, request="r") as lease:
        cache.drain()
        assert lease.cached_tokens == 192
        for (kind, layer), values in written.items():
            ids = lease.pages(kind)[:12]
            held = np.flatnonzero(ids >= 0)[-8:]
            tensor = tiers.device[kind].tensor(layer, tiers.device[kind].format.parts[0].name)
            assert torch.equal(tensor[torch.from_numpy(ids[held])], values[torch.from_numpy(held)])
    assert cache.stats().storage_hit_tokens == 192

    kill()
    cache.prefetch("s", Key(np.arange(1000, 1200)))
    cache.drain()
    with cache.acquire(Key(np.arange(1000, 1200)), request="s") as lease:
        assert lease.cached_tokens == 0
        cache.allocate(lease, 200)
        cache.commit(lease, np.arange(1000, 1200))
    cache.flush()
    with cache.acquire(Key(np.arange(1000, 1200))) as lease:
        assert lease.cached_tokens == 192, "the cache goes on without its store"
    cache.close()
