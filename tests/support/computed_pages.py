"""What a model computes into the device pages of real tensors: bytes that follow from everything before a page's end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from numpy import int64
from numpy.typing import NDArray

from unified_tree.components import Composition
from unified_tree.controllers.pools import PageFormat, indexer_format, mha_format, state_format
from unified_tree.controllers.tiers.tensor_memory import TensorTiers
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Point
from unified_tree.declare.page_format import WHOLE

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


def blocks(
    tiers: TensorTiers, page_format: PageFormat, page: int, prefix: NDArray[int64]
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The layers and parts of a device page, and what a model computes into them."""
    for layer in page_format.layer_ids:
        for part in page_format.parts:
            block = _piece(tiers, page_format.component, layer, part.name, page).reshape(-1).view(torch.uint8)
            seed = f"{page_format.component} {layer} {part.name}".encode() + prefix.tobytes()
            yield layer, block, torch.frombuffer(bytearray(hashlib.shake_128(seed).digest(block.numel())), dtype=torch.uint8)


def _piece(tiers: TensorTiers, component: str, layer: int, part: str, page: int) -> torch.Tensor:
    """A layer and part of a device page, [slot, *shape]: a view."""
    arena = tiers.device_arena
    if arena is None:
        return tiers.device[component].tensor(layer, part)[page]
    return arena.view(component, layer, part)[int(arena.table(component)[page, arena.part_group(component, layer, part)])]
