"""Device pools with real bytes for prefix linkers: each page holds what only its prefix, component and layer could."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from unified_tree import Component, Path
from unified_tree.controllers.pools import DevicePool, PageFormat, Part
from unified_tree.controllers.prefix_linker import LinkedPool, linked_pools

PAGE = 4
COMPONENTS = (
    Component(name="full", coverage=Path()),
    Component(name="indexer", coverage=Path(), shares="full"),
    Component(name="draft", coverage=Path(), required=False, shares="full"),
)
FORMATS = {
    "full": PageFormat(
        component="full",
        layer_ids=(0, 1),
        parts=(Part("k", "bfloat16", (2, 8)), Part("v", "bfloat16", (2, 4))),
        slots_per_page=PAGE,
    ),
    "indexer": PageFormat(component="indexer", layer_ids=(1,), parts=(Part("key", "uint8", (16,)),), slots_per_page=PAGE),
    "draft": PageFormat(component="draft", layer_ids=(2,), parts=(Part("k", "float32", (2,)),), slots_per_page=PAGE),
}


class LinkedTensors:
    """The pools, and what should be in them."""

    def __init__(self, page_count: int, *, share: bool = False) -> None:
        self.page_count = page_count
        self.pools = {name: DevicePool(page_format, page_count) for name, page_format in FORMATS.items()}
        if share:
            from unified_tree.controllers.prefix_linker.lmcache import share_pools

            share_pools(self.pools)
        self.linked: list[LinkedPool] = linked_pools(COMPONENTS, self.pools, PAGE)
        self.spoil(np.arange(page_count))

    def write(self, tokens: NDArray[np.int64], salt: str, ids: NDArray[np.int64], first: int = 0) -> None:
        """What a model would: pages `ids` hold the pages from `first` on of these tokens."""
        for index, page in enumerate(ids.tolist(), first):
            for pool in self.linked:
                for number, tensor in enumerate(pool.tensors):
                    tensor[page] = self._content(tokens, salt, index, pool.name, number, tensor)

    def spoil(self, ids: NDArray[np.int64]) -> None:
        for pool in self.linked:
            for tensor in pool.tensors:
                tensor[torch.from_numpy(ids)] = 0xEE

    def holds(self, tokens: NDArray[np.int64], salt: str, ids: NDArray[np.int64], first: int = 0) -> bool:
        """Whether all layers of these pages hold the pages from `first` on of these tokens."""
        return all(
            torch.equal(tensor[page], self._content(tokens, salt, index, pool.name, number, tensor))
            for index, page in enumerate(ids.tolist(), first)
            for pool in self.linked
            for number, tensor in enumerate(pool.tensors)
        )

    def is_spoilt(self, ids: NDArray[np.int64]) -> bool:
        """Whether nobody has written to these pages."""
        return all(bool((tensor[torch.from_numpy(ids)] == 0xEE).all()) for pool in self.linked for tensor in pool.tensors)

    def pages(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The same ids for all pools, which share."""
        return {pool.name: ids for pool in self.linked}

    def _content(
        self, tokens: NDArray[np.int64], salt: str, index: int, pool: str, number: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        prefix = tokens[: (index + 1) * PAGE].tobytes()
        digest = sha256(repr((salt, pool, number)).encode() + prefix).digest()
        size = tensor[0].numel()
        return torch.frombuffer(bytearray((digest * (size // 32 + 1))[:size]), dtype=torch.uint8).view(tensor[0].shape)
