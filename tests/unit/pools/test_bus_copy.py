"""What the kernel over the bus is launched with, by a kernel of numpy's that takes the same arguments. The GPU's own runs in
`test_page_pair.py`, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pool_formats import FORMATS, filled

from unified_tree.controllers.pools import HostLayout, HostPool, bus_copy
from unified_tree.controllers.pools.bus_copy import BusCopy, in_order, tile_columns

PAGES = 7


class Kernel:
    """`bus_kernel.copy_rows`, a word at a time."""

    def __init__(self) -> None:
        self.launches = 0

    def __getitem__(self, _: tuple[int]) -> Callable[..., None]:
        return self.copy

    def copy(
        self, into: Any, out_of: Any, target: Any, source: Any, rows: int, layers: int, slots: int, *rest: int, **tile: int
    ) -> None:
        self.launches += 1
        words, into_layer, into_page, into_slot, out_of_layer, out_of_page, out_of_slot = rest
        assert tile["ROWS"] * tile["COLUMNS"] * into.element_size() <= 1 << 10, "a tile is no larger than it may be"
        written, read = (flat(side) for side in (into, out_of))
        for row in range(rows):
            slot, layer, page = row % slots, row // slots % layers, row // slots // layers
            to = int(target[page]) * into_page + layer * into_layer + slot * into_slot
            at = int(source[page]) * out_of_page + layer * out_of_layer + slot * out_of_slot
            written[to : to + words] = read[at : at + words]


def flat(words: torch.Tensor) -> torch.Tensor:
    """All that comes behind the first word of a view."""
    behind = words.untyped_storage().nbytes() // words.element_size() - words.storage_offset()
    return words.as_strided((behind,), (1,))


@pytest.mark.parametrize("host_pages", [6, PAGES, 20])
@pytest.mark.parametrize("most_rows", [1 << 30, 5])
@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize("name", FORMATS)
def test_every_row_goes_where_it_belongs(
    name: str, layout: HostLayout, most_rows: int, host_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, page_format = Kernel(), FORMATS[name]
    monkeypatch.setattr(bus_copy, "copy_rows", kernel)
    monkeypatch.setattr(bus_copy, "MAX_ROWS", most_rows)
    device, host = filled(page_format, PAGES), HostPool(page_format, host_pages, layout)
    host.memory.fill_(0xEE)
    source, target = torch.tensor([6, 0, 3]), torch.tensor([1, 2, 5])
    for some in (slice(None), slice(0, 1)):
        for part in page_format.parts:
            rows, there = device.words(part.name)[some], host.words(part.name)[some]
            before = there.clone()
            BusCopy(1 << 10)._launch(there, rows, target, source)
            assert torch.equal(there[:, target], rows[:, source])
            others = np.setdiff1d(np.arange(host_pages), target)
            assert torch.equal(there[:, others], before[:, others])
            again = torch.zeros_like(rows)
            BusCopy(1 << 10)._launch(again, there, source, target)
            assert torch.equal(again[:, source], rows[:, source]) and not again[:, [1, 2, 4, 5]].any()
    assert kernel.launches >= 4 * len(page_format.parts)


@pytest.mark.parametrize("layout", HostLayout)
def test_rows_are_taken_in_the_order_of_host_memory(layout: HostLayout) -> None:
    page_format = FORMATS["mha"]
    device, host = filled(page_format, PAGES), HostPool(page_format, PAGES, layout)
    for pair in ((device, host), (host, device)):
        written, read = in_order(*(pool.words("k") for pool in pair))
        there = read if pair[1] is host else written
        assert there.stride(0) >= there.stride(2)
        assert there.shape[2] == (3 if layout is HostLayout.PAGE_FIRST else 1), "layers, or the slots of a layer as one row"


@pytest.mark.parametrize("words", [*range(1, 300), 4096, 4097, 9216, 16384, 1 << 20])
def test_tiles_waste_little(words: int) -> None:
    columns = tile_columns(words, 8192)
    assert columns.bit_count() == 1 and columns <= 8192
    wasted = 1 - words / (-(-words // columns) * columns)
    assert wasted <= 1 / 8 or all(
        wasted <= 1 - words / (-(-words // narrower) * narrower) for narrower in (16, 32, 64, 128) if narrower < columns
    )


def test_where_triton_cannot_build_torch_copies(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(bus_copy, "copy_rows", Kernel())
    directions = [BusCopy(1 << 10), BusCopy(1 << 10)]
    assert all(direction._kernel is not None for direction in directions)
    monkeypatch.setattr(bus_copy, "back_up", directions[0])
    monkeypatch.setattr(bus_copy, "load", directions[1])

    def copy(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(directions[1], "copy", copy)
    device, host = filled(FORMATS["mha"], PAGES), HostPool(FORMATS["mha"], PAGES, HostLayout.PAGE_FIRST)
    bus_copy.warm_up([device.words("k")], [host.words("k")])
    assert "Triton cannot build here" in caplog.text and "C compiler" in caplog.text
    assert all(direction._kernel is None for direction in directions)
