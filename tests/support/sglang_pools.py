"""SGLang's KV pools and state pools as plain tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang_allocators import fake_pool


def attention(slots: int, layers: int, **changed: Any) -> Any:
    """An `MHATokenToKVPool` of one head of two values."""
    buffers = [[torch.zeros(slots, 1, 2) for _ in range(layers)] for _ in "kv"]
    fields: dict[str, Any] = {"k_buffer": buffers[0], "v_buffer": buffers[1], "kv_cache_layout": "nhd", "k_scale_buffer": None}
    fields["dtype"] = torch.float32
    return fake_pool("MHATokenToKVPool", **{**fields, "start_layer": 0, "layer_num": layers, **changed})


def latent(slots: int, layers: int, kind: str = "MLATokenToKVPool", **changed: Any) -> Any:
    """An `MLATokenToKVPool`."""
    buffers = [torch.zeros(slots, 1, 3) for _ in range(layers)]
    return fake_pool(kind, kv_buffer=buffers, start_layer=4, layer_num=layers, dtype=torch.float32, **changed)


def sparse(slots: int, page_size: int, ranks: int = 1, **changed: Any) -> Any:
    """A `DSATokenToKVPool` of three layers, of which the second selects as the first does and has no index keys.

    Args:
        ranks: of those that divide the slots, but for the index keys, of which each has all.
    """
    pages = slots // page_size * ranks
    keys = [torch.zeros(pages if layer != 1 else 0, page_size * 5, dtype=torch.uint8) for layer in range(3)]
    return latent(slots, 3, "DSATokenToKVPool", **{"index_kpool": 1, "index_k_with_scale_buffer": keys, **changed})


def quantized(slots: int, page_size: int) -> Any:
    """A pool of FP4 values with scales: the keys' by slots, the values' by pages, and in a dtype that formats do not know."""
    halves = [[torch.zeros(slots, 1, 4, dtype=torch.uint8) for _ in range(2)] for _ in "kv"]
    by_slot = [torch.zeros(slots, 1, dtype=torch.float8_e4m3fn) for _ in range(2)]
    by_page = [torch.zeros(slots // page_size, 1, 2, page_size, dtype=torch.float8_e8m0fnu) for _ in range(2)]
    scales = {"k_scale_buffer": by_slot, "v_scale_buffer": None, "native_v_scale_buffer": by_page}
    return attention(slots, 2, k_buffer=halves[0], v_buffer=halves[1], dtype=torch.float4_e2m1fn_x2, **scales)


def windowed(full_slots: int, window_slots: int) -> Any:
    """An `SWAKVPool`: layers 0 and 2 attend to all, 1 and 3 to a window."""
    mapping = {layer: (layer // 2, layer % 2 == 1) for layer in range(4)}
    return SimpleNamespace(
        layers_mapping=mapping, layer_num=4, full_kv_pool=attention(full_slots, 2), swa_kv_pool=attention(window_slots, 2)
    )


def hybrid(slots: int) -> Any:
    """A `HybridLinearKVPool`: layers 1 and 3 attend."""
    return SimpleNamespace(full_attention_layer_id_mapping={3: 1, 1: 0}, full_kv_pool=attention(slots, 2))


def with_states(count: int, **changed: Any) -> Any:
    """A request pool whose recurrent states are those of layers 0 and 2."""
    cache = SimpleNamespace(conv=[torch.zeros(2, count, 3, 2)], temporal=torch.zeros(2, count, 2, 2, 2))
    return SimpleNamespace(mamba_pool=SimpleNamespace(mamba_cache=cache, mamba_layer_ids=[0, 2], **changed))
