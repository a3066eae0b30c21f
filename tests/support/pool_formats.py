"""Small formats that are awkward in some way, and naive copies of what pools hold."""

from __future__ import annotations

import numpy as np
import torch

from unified_tree.controllers.pools import (
    DevicePool,
    HostLayout,
    PageFormat,
    Part,
    indexer_format,
    mha_format,
    mla_format,
    state_format,
)

FORMATS = {
    "mha": mha_format("full", layer_ids=(3, 7, 11), page_size=4, kv_heads=2, head_dim=6, value_dim=5),
    "mha-page-1": mha_format("full", layer_ids=(0, 1), page_size=1, kv_heads=1, head_dim=8),
    "mla-one-layer": mla_format("full", layer_ids=(60,), page_size=8, latent_dim=9, tokens_per_slot=2),
    "scale-before-key": PageFormat(
        component="indexer",
        layer_ids=(0, 2),
        parts=(Part("scale", "float32", (1,)), Part("key", "float8_e4m3fn", (8,))),
        slots_per_page=1,
    ),
    "indexer": indexer_format("indexer", layer_ids=(0, 2, 5), page_size=3, key_dim=6),
    "state": state_format("mamba", layer_ids=(1, 2), conv_shape=(5, 3), state_shape=(2, 3, 1)),
}


def filled(page_format: PageFormat, page_count: int, seed: int = 0, device: str = "cpu") -> DevicePool:
    """A device pool of random bytes, NaN patterns included."""
    pool = DevicePool(page_format, page_count, device)
    random = np.random.default_rng(seed)
    for part in page_format.parts:
        words = pool.words(part.name)
        words.copy_(torch.from_numpy(random.integers(0, 256, words.nbytes, np.uint8)).view(words.dtype).view_as(words))
    return pool


def rows_of(pool: DevicePool) -> dict[tuple[str, int], np.ndarray]:
    """Bytes [page, slot, row] by part and model layer, copied out through the public tensors."""
    shape = (pool.page_count, pool.format.slots_per_page, -1)
    return {
        (part.name, layer): pool.tensor(layer, part.name).cpu().clone().flatten(2).view(torch.uint8).numpy().reshape(shape)
        for part in pool.format.parts
        for layer in pool.format.layer_ids
    }


def page_bytes_of(rows: dict[tuple[str, int], np.ndarray], page_format: PageFormat, layout: HostLayout, page: int) -> bytes:
    """One page as a page-contiguous layout must hold it, a row at a time."""
    found = b""
    for part in sorted(page_format.parts, key=lambda part: -part.word_bytes):
        slots = range(page_format.slots_per_page)
        if layout is HostLayout.PAGE_FIRST:
            order = [(layer, slot) for slot in slots for layer in page_format.layer_ids]
        else:
            order = [(layer, slot) for layer in page_format.layer_ids for slot in slots]
        found += b"".join(rows[part.name, layer][page, slot].tobytes() for layer, slot in order)
    return found
