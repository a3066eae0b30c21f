"""The fake memory over real tensors: what a page holds is bytes in a device pool or an arena, and in a host arena.

A layer of a page is the digest of its content, and bytes that follow from it up to the end; anything else is garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from page_memory import Content, PageMemory

from unified_tree import Component, PageFormat, Part, Point, Tier
from unified_tree.components import Composition
from unified_tree.controllers.pools import BlockArena, DevicePool, HostArena, HostLayout, StagedPair
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES, place

DIGEST_BYTES = 32
DIRT = 0xA5


def tensor_composition(components: Sequence[Component], page_size: int) -> Composition:
    """Formats of small pages, of sizes that do not divide each other, in the layers that the fake memory gives each kind."""
    layers_of = PageMemory(components).layers_of
    formats = {
        c.name: PageFormat(
            component=c.name,
            layer_ids=layers_of[c.name],
            parts=(Part("k", "uint8", (DIGEST_BYTES + 5 * i,)), Part("v", "int16", (3 + i,))),
            slots_per_page=1 if isinstance(c.coverage, Point) else page_size,
        )
        for i, c in enumerate(components)
    }
    return Composition(name="tensors", page_size=page_size, components=tuple(components)).with_formats(formats)


class TensorMemory(PageMemory):
    """A PageMemory of tensors.

    Args:
        device: pools by component, or an arena.
        host: of the same composition.
    """

    def __init__(self, components: Sequence[Component], device: dict[str, DevicePool] | BlockArena, host: HostArena) -> None:
        super().__init__(components)
        self.device, self.host = device, host
        for name, page_format in host.formats.items():
            for layer in page_format.layer_ids:
                on_device, on_host = DeviceBytes(device, page_format, layer), HostBytes(host, page_format, layer)
                self._cells[name, Tier.DEVICE, layer] = TensorCells(on_device.get, on_device.put, self.known)
                self._cells[name, Tier.HOST, layer] = TensorCells(on_host.get, on_host.put, self.known)

    def keep_only(self, component: str, tier: Tier, pages: Collection[int]) -> None:
        """Pages, and blocks, that are nobody's hold dirt."""
        if tier is Tier.HOST or isinstance(self.device, BlockArena):
            arena = self.device if isinstance(self.device, BlockArena) and tier is Tier.DEVICE else self.host
            tables = arena.tables
            arena.memory[torch.from_numpy(tables._free[: tables.free_count].astype(np.int64))] = DIRT
            return
        pool = self.device[component]
        free = torch.from_numpy(np.setdiff1d(np.arange(pool.page_count), np.array(sorted(pages), np.int64)))
        for part in pool.format.parts:
            pool.words(part.name)[:, free] = 0

    def movers(self) -> dict[str, Any]:
        """Those that a cache over such memory has."""
        device = self.device
        return {
            name: StagedPair(device if isinstance(device, BlockArena) else device[name], name, self.host)
            for name in self.layers_of
        }


class DeviceBytes:
    """One layer of the device pages of one component."""

    def __init__(self, device: dict[str, DevicePool] | BlockArena, page_format: PageFormat, layer: int) -> None:
        self._device, self._format, self._layer = device, page_format, layer

    def _pieces(self, page: int) -> list[torch.Tensor]:
        name, layer, device = self._format.component, self._layer, self._device
        parts = [part.name for part in self._format.parts]
        if isinstance(device, BlockArena):
            groups = [device.part_group(name, layer, part) for part in parts]
            row = device.table(name)[page, groups].tolist()
            views = [device.view(name, layer, part)[block] for part, block in zip(parts, row, strict=True)]
        else:
            views = [device[name].tensor(layer, part)[page] for part in parts]
        return [view.reshape(-1).view(torch.uint8) for view in views]

    def get(self, page: int) -> bytes:
        return b"".join(piece.numpy().tobytes() for piece in self._pieces(page))

    def put(self, page: int, data: bytes) -> None:
        for piece in self._pieces(page):
            piece.copy_(torch.frombuffer(bytearray(data[: piece.numel()]), dtype=torch.uint8))
            data = data[piece.numel() :]


class HostBytes:
    """One layer of the host pages of one component."""

    def __init__(self, host: HostArena, page_format: PageFormat, layer: int) -> None:
        self._pages = host.pages()[page_format.component]
        index = page_format.layer_index(layer)
        parts = place(page_format, 1, HostLayout.PAGE_FIRST_DIRECT, TRAILER_BYTES).parts
        begins = {name: where.offset_bytes + index * where.layer_stride_bytes for name, where in parts.items()}
        kept = page_format.parts
        self._spans = [slice(begins[part.name], begins[part.name] + page_format.block_bytes(part)) for part in kept]

    def get(self, page: int) -> bytes:
        memory = self._pages.page_memory(page)
        return b"".join(memory[span] for span in self._spans)

    def put(self, page: int, data: bytes) -> None:
        memory = self._pages.page_memory(page)
        for span in self._spans:
            memory[span] = data[: span.stop - span.start]
            data = data[span.stop - span.start :]
        self._pages.write_page(page, memory)


class TensorCells(MutableMapping[int, Content]):
    """What bytes of pages stand for.

    Args:
        get, put: the bytes of a page.
        known: content by digest.
    """

    def __init__(self, get: Callable[[int], bytes], put: Callable[[int, bytes], None], known: dict[bytes, Content]) -> None:
        self._get, self._put, self._known = get, put, known

    def __getitem__(self, page: int) -> Content:
        data = self._get(page)
        digest = data[:DIGEST_BYTES]
        if digest not in self._known or data != expanded(digest, len(data)):
            raise KeyError(page)
        return self._known[digest]

    def __setitem__(self, page: int, content: Content) -> None:
        digest = hashlib.sha256(repr(content).encode()).digest()
        self._known[digest] = content
        self._put(page, expanded(digest, len(self._get(page))))

    def __delitem__(self, page: int) -> None:
        self._put(page, bytes(len(self._get(page))))

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError("pages that are free have no bytes of their own")

    def __len__(self) -> int:
        raise NotImplementedError


def expanded(digest: bytes, size_bytes: int) -> bytes:
    """A digest and what follows from it."""
    return digest + hashlib.shake_128(digest).digest(size_bytes - len(digest))
