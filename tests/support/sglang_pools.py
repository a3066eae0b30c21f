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


def latent(slots: int, layers: int) -> Any:
    """An `MLATokenToKVPool`."""
    buffers = [torch.zeros(slots, 1, 3) for _ in range(layers)]
    return fake_pool("MLATokenToKVPool", kv_buffer=buffers, start_layer=4, layer_num=layers, dtype=torch.float32)


def windowed(full_slots: int, window_slots: int) -> Any:
    """An `SWAKVPool`: layers 0 and 2 attend to all, 1 and 3 to a window."""
    mapping = {layer: (layer // 2, layer % 2 == 1) for layer in range(4)}
    return SimpleNamespace(
        layers_mapping=mapping, full_kv_pool=attention(full_slots, 2), swa_kv_pool=attention(window_slots, 2)
    )


def hybrid(slots: int) -> Any:
    """A `HybridLinearKVPool`: layers 1 and 3 attend."""
    return SimpleNamespace(full_attention_layer_id_mapping={3: 1, 1: 0}, full_kv_pool=attention(slots, 2))


def with_states(count: int, **changed: Any) -> Any:
    """A request pool whose recurrent states are those of layers 0 and 2."""
    cache = SimpleNamespace(conv=[torch.zeros(2, count, 3, 2)], temporal=torch.zeros(2, count, 2, 2, 2))
    return SimpleNamespace(mamba_pool=SimpleNamespace(mamba_cache=cache, mamba_layer_ids=[0, 2], **changed))
