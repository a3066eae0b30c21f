"""Pages of SGLang's own pool classes go to host and come back, all of their bytes: index keys, scales, a draft.

A CPU cannot run the models that have most of these pools, but it can make the pools. Every tensor of a pool with a row for each
slot or page is compared, whatever the adapter knows of it. Run from the repository's root with the engine's python, as
`test_scheduler_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    import numpy as np
    import torch
    from sglang.srt.layers.quantization.fp4_kv_cache_quant_method import (
        CPUFP8KVCacheMethod,
        FP4MXBlock16KVCacheMethod,
        NVFP4KVCacheMethod,
    )
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.runtime_context import get_parallel

    from unified_tree.controllers.adapters.sglang.device_pools import PageNumbers
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover, RankParts, engine_tensors
    from unified_tree.controllers.pools import HostLayout
    from unified_tree.controllers.pools.host_pool import host_pools
    from unified_tree.declare.page_format import EVERY_SLOT, WHOLE, ContextShard

pytestmark = pytest.mark.filterwarnings("ignore")
FP8, FP4 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
PAGES = 5
"""Of a pool, the padding page among them."""


def heads(kind: str, dtype: torch.dtype, page_size: int = 16, **more: Any) -> Any:
    """A pool of keys and values by head."""
    made: Any = getattr(memory_pool, kind)
    size = (PAGES - 1) * page_size
    sizes = {"size": size, "page_size": page_size, "head_num": 2, "head_dim": 64, "layer_num": 2}
    return made(dtype=dtype, device="cpu", enable_memory_saver=False, **sizes, **more)


def latents(kind: str, dtype: torch.dtype, page_size: int = 64, **more: Any) -> Any:
    """A pool of latents, of three layers."""
    made: Any = getattr(memory_pool, kind)
    size = (PAGES - 1) * page_size
    sizes = {"size": size, "page_size": page_size, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "layer_num": 3}
    return made(dtype=dtype, device="cpu", enable_memory_saver=False, **sizes, **more)


def sparse(dtype: torch.dtype, width: int, skipped: tuple[bool, ...] = (False,) * 3) -> Any:
    """The pool of DeepSeek V3.2, whose layers run an indexer of their own unless they are skipped."""
    return latents("DSATokenToKVPool", dtype, index_head_dim=128, kv_cache_dim=width, skip_topk_layers=list(skipped))


def nvfp4(*, native: bool) -> Any:
    method = NVFP4KVCacheMethod(2, "cpu", 16, native_scale_layout=native)
    return heads("MHATokenToKVPool", FP4, quant_method=method)


KINDS: dict[str, tuple[Callable[[], Any], dict[str, list[str]]]] = {
    "fp8": (lambda: heads("MHATokenToKVPool", FP8), {"full": ["k", "v"]}),
    "fp8 of a CPU": (lambda: heads("MHATokenToKVPool", FP8, quant_method=CPUFP8KVCacheMethod()), {"full": ["k", "v"]}),
    "fp4": (lambda: heads("MHATokenToKVPoolFP4", FP4), {"full": ["k", "v", "k_scale", "v_scale"]}),
    "fp4 by blocks": (
        lambda: heads("MHATokenToKVPool", FP4, quant_method=FP4MXBlock16KVCacheMethod()),
        {"full": ["k", "v", "k_scale", "v_scale"]},
    ),
    "nvfp4": (lambda: nvfp4(native=False), {"full": ["k", "v", "k_scale", "v_scale"]}),
    "nvfp4 in the kernel's order": (
        lambda: nvfp4(native=True),
        {"full": ["k", "v", "k_scale", "v_scale", "k_block_scale", "v_block_scale"]},
    ),
    "mxfp8": (lambda: heads("MHATokenToKVPoolMXFP8", FP8), {"full": ["k", "v", "k_scale", "v_scale"]}),
    "mxfp8 by pages": (lambda: heads("MHATokenToKVPoolMXFP8", FP8, 128), {"full": ["k", "v", "k_scale", "v_scale"]}),
    "latents": (lambda: latents("MLATokenToKVPool", torch.bfloat16), {"full": ["latent"]}),
    "fp4 latents": (lambda: latents("MLATokenToKVPoolFP4", FP4), {"full": ["latent", "latent_scale"]}),
    "index keys": (lambda: sparse(torch.bfloat16, 576), {"full": ["latent"], "indexer": ["key"]}),
    "index keys and fp8": (lambda: sparse(FP8, 656), {"full": ["latent"], "indexer": ["key"]}),
    "index keys of some layers": (
        lambda: sparse(torch.bfloat16, 576, (False, True, False)),
        {"full": ["latent"], "indexer": ["key"]},
    ),
}


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    """What a server would have said."""
    with get_parallel().override(attn_dcp_size=1):
        yield


def rows_of(pool: Any) -> Iterator[torch.Tensor]:
    """All tensors by layer that a pool has, under whatever name, each by page and in bytes."""
    for name in dir(pool):
        found = getattr(pool, name)
        for tensor in found if isinstance(found, list) else ():
            if isinstance(tensor, torch.Tensor) and len(tensor):
                yield tensor.view(torch.uint8).view(PAGES, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_of_a_page_comes_back(kind: str) -> None:
    make, expected = KINDS[kind]
    pool, draft = make(), make()
    found = engine_tensors(
        pool, None, pool.page_size, RankParts.of(0, 1), has_windows=False, has_states=False, draft_pools=[draft]
    )
    parts = {name: [part.name for part in each.format.parts] for name, each in found.items()}
    assert {name: each for name, each in parts.items() if not name.startswith("draft")} == expected
    rows = [*rows_of(pool), *rows_of(draft)]
    for tensor in rows:
        tensor.random_(256)
    before = [tensor.clone() for tensor in rows]
    assert sum(tensor[0].numel() for tensor in rows) == sum(each.format.page_bytes for each in found.values())
    names = PageNumbers(PAGES)
    source, target = names.assign(np.array([3, 1])), names.assign(np.array([2, 4]))
    hosts = host_pools(
        {name: each.format for name, each in found.items()}, dict.fromkeys(found, 8), layout=HostLayout.PAGE_FIRST_DIRECT
    )
    for name, each in found.items():
        mover = EngineMover(each, names, hosts[name])
        mover.backup(source, np.array([7, 5]))
        for layer in mover.layer_ids:
            mover.load_layers((layer,), np.array([7, 5]), target)
    for tensor, old in zip(rows, before, strict=True):
        assert torch.equal(tensor, old[[0, 1, 3, 3, 1]])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["latents", "index keys"])
def test_a_page_that_ranks_divide_is_what_sglang_copies_of_it(kind: str, rank: int) -> None:
    with get_parallel().override(attn_dcp_size=2, attn_dcp_rank=rank):
        pool = KINDS[kind][0]()
        size = 2 * pool.page_size
        found = engine_tensors(pool, None, size, RankParts.of(rank, 2, division=2), has_windows=False, has_states=False)
        tensors = [tensor for each in found.values() for parts in each.by_part.values() for tensor in parts]
        for tensor in tensors:
            tensor.view(torch.uint8).random_(256)
        assert found["full"].format.context == ContextShard(rank, 2)
        for page in range(PAGES):
            slots = torch.arange(page * size, (page + 1) * size)
            copied = memory_pool.MLATokenToKVPool.get_cpu_copy(pool, slots)
            for mine, [theirs] in zip(found["full"].by_part["latent"], copied, strict=True):
                assert torch.equal(mine[page].view(torch.uint8), theirs.view(torch.uint8))
        if kind == "index keys":
            assert (found["indexer"].format.context, found["indexer"].format.shard) == (EVERY_SLOT, WHOLE)
            [keys] = found["indexer"].by_part.values()
            before = [layer.clone() for layer in keys]
            pool.index_key_cache.move(torch.arange(3 * size, 4 * size), torch.arange(size, 2 * size))
            for layer, old in zip(keys, before, strict=True):
                assert torch.equal(layer, old[[0, 1, 2, 1, 4]])
        assert all(tensor.shape[0] == PAGES for tensor in tensors)
