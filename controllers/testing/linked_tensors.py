"""Device pools with real bytes for prefix linkers: the content of a page depends on its prefix, component and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from unified_tree import Component, Path, Point, Trailing
from unified_tree.components import Composition
from unified_tree.controllers.pools import DevicePool, PageFormat, Part
from unified_tree.controllers.prefix_linker import LinkedPool, linked_pools
from unified_tree.declare.page_format import WHOLE

PAGE = 4
COMPONENTS: tuple[Component, ...] = (
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
        shard=WHOLE,
    ),
    "indexer": PageFormat(
        component="indexer", layer_ids=(1,), parts=(Part("key", "uint8", (16,)),), slots_per_page=PAGE, shard=WHOLE
    ),
    "draft": PageFormat(
        component="draft", layer_ids=(2,), parts=(Part("k", "float32", (2,)),), slots_per_page=PAGE, shard=WHOLE
    ),
}


def hybrid(window_tokens: int, sharer_tokens: int) -> tuple[tuple[Component, ...], dict[str, PageFormat]]:
    """Components with windows and states, and what their pages hold: slots of a token, of two, and states of two parts."""
    components = (
        Component(name="full", coverage=Path(), tokens_per_slot=2),
        Component(name="swa", coverage=Trailing(window_tokens)),
        Component(name="overlap", coverage=Trailing(sharer_tokens), shares="swa"),
        Component(name="mamba", coverage=Point()),
    )
    state = (Part("conv", "bfloat16", (3, 8)), Part("ssm", "float32", (40,)))
    key = (Part("k", "bfloat16", (2, 8)),)
    return components, {
        "full": PageFormat(component="full", layer_ids=(0, 3), parts=key, slots_per_page=PAGE // 2, shard=WHOLE),
        "swa": PageFormat(component="swa", layer_ids=(1, 2), parts=key, slots_per_page=PAGE, shard=WHOLE),
        "overlap": PageFormat(
            component="overlap", layer_ids=(1,), parts=(Part("s", "uint8", (16,)),), slots_per_page=PAGE, shard=WHOLE
        ),
        "mamba": PageFormat(component="mamba", layer_ids=(4, 5), parts=state, slots_per_page=1, shard=WHOLE),
    }


class LinkedTensors:
    """The pools, and what should be in them."""

    def __init__(
        self,
        page_count: int,
        *,
        share: bool = False,
        components: Sequence[Component] = COMPONENTS,
        formats: Mapping[str, PageFormat] = FORMATS,
    ) -> None:
        self.page_count = page_count
        self.pools = {name: DevicePool(page_format, page_count) for name, page_format in formats.items()}
        if share:
            from unified_tree.controllers.adapters.lmcache import share_pools

            share_pools(self.pools)
        composition = Composition(name="linked", page_size=PAGE, components=tuple(components)).with_formats(formats)
        self.linked: list[LinkedPool] = linked_pools(composition, self.pools)
        self.spoil(np.arange(page_count))

    def write(self, tokens: NDArray[np.int64], salt: str, ids: NDArray[np.int64], first: int = 0) -> None:
        """Write, as a model would, the pages from `first` on of these tokens into pages `ids`."""
        for index, page in enumerate(ids.tolist(), first):
            for pool in self.linked:
                for number, tensor in enumerate(pool.tensors):
                    tensor[page] = self._content(tokens, salt, index, pool.name, number, tensor)

    def spoil(self, ids: NDArray[np.int64]) -> None:
        """Fill pages with bytes of no prefix."""
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
        """Whether these pages were not written since `spoil`."""
        return all(bool((tensor[torch.from_numpy(ids)] == 0xEE).all()) for pool in self.linked for tensor in pool.tensors)

    def pages(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The same ids for all pools, which share."""
        return {pool.name: ids for pool in self.linked}

    def write_pool(self, pool: LinkedPool, tokens: NDArray[np.int64], salt: str, ids: NDArray[np.int64], first: int) -> None:
        """As `write`, of one pool."""
        for index, page in enumerate(ids.tolist(), first):
            for number, tensor in enumerate(pool.tensors):
                tensor[page] = self._content(tokens, salt, index, pool.name, number, tensor)

    def pool_holds(self, pool: LinkedPool, tokens: NDArray[np.int64], salt: str, ids: NDArray[np.int64], first: int) -> bool:
        """As `holds`, of one pool."""
        return all(
            torch.equal(tensor[page], self._content(tokens, salt, index, pool.name, number, tensor))
            for index, page in enumerate(ids.tolist(), first)
            for number, tensor in enumerate(pool.tensors)
        )

    def _content(
        self, tokens: NDArray[np.int64], salt: str, index: int, pool: str, number: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        prefix = tokens[: (index + 1) * PAGE].tobytes()
        digest = sha256(repr((salt, pool, number)).encode() + prefix).digest()
        size = tensor[0].numel()
        return torch.frombuffer(bytearray((digest * (size // 32 + 1))[:size]), dtype=torch.uint8).view(tensor[0].shape)
