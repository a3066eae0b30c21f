"""What the kernel over the bus is launched with, by a kernel of numpy's that takes the same arguments. The GPU's own runs in
`test_page_pair.py`, where there is one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pool_formats import FORMATS, filled

from unified_tree.controllers.pools import DevicePool, HostLayout, HostPool, PagePair, bus_copy
from unified_tree.controllers.pools.bus_copy import MAX_ROWS, BusCopy, Piece, inverse_of, kinds_of, tile_columns

PAGES = 7


class Kernel:
    """`bus_kernel.copy_rows`, a word at a time."""

    def __init__(self) -> None:
        self.launches = 0
        self.by_slot = set[bool]()

    def __getitem__(self, _: tuple[int]) -> Callable[..., None]:
        return self.copy

    def copy(self, into: Any, out_of: Any, target: Any, source: Any, *rest: Any, **options: Any) -> None:
        self.launches += 1
        into_pieces, out_of_pieces, rows, pieces, inverse, shift, words, into_page, into_slot, out_of_page, out_of_slot = rest
        size, unit, slots = into.element_size(), options["UNIT"], options["SLOTS"]
        assert options["ROWS"] * options["COLUMNS"] * size <= 1 << 10, "a tile is no larger than it may be"
        self.by_slot.add(options["BY_SLOT"])
        for row in range(rows):
            counted = row if options["BY_SLOT"] else row // slots
            whole = counted * inverse >> shift
            piece = counted - whole * pieces
            page, slot = divmod(whole, slots) if options["BY_SLOT"] else (whole, row % slots)
            to = int(target[page]) * into_page + slot * into_slot + int(into_pieces[piece]) * unit
            at = int(source[page]) * out_of_page + slot * out_of_slot + int(out_of_pieces[piece]) * unit
            ctypes.memmove(into.data_ptr() + to * size, out_of.data_ptr() + at * size, words * size)


@pytest.mark.parametrize("host_pages", [6, PAGES, 20])
@pytest.mark.parametrize("most_rows", [1 << 30, 5])
@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("stacked", [True, False])
def test_every_row_goes_where_it_belongs(
    name: str, layout: HostLayout, most_rows: int, host_pages: int, stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, page_format = Kernel(), FORMATS[name]
    for direction in ("BACKUP", "LOAD"):
        monkeypatch.setattr(bus_copy, f"{direction}_TILE_BYTES", 1 << 10)
    monkeypatch.setattr(bus_copy, "copy_rows", kernel)
    monkeypatch.setattr(bus_copy, "MAX_ROWS", most_rows)
    device, host = filled(page_format, PAGES), HostPool(page_format, host_pages, layout)
    host.memory.fill_(0xEE)
    source, target = torch.tensor([6, 0, 3]), torch.tensor([1, 2, 5])
    parts, layers = [part.name for part in page_format.parts], len(page_format.layer_ids)
    there = [host.words(part) for part in parts]
    before = [words.clone() for words in there]
    copier = copier_of(device, host, stacked)
    copier.launch_backup(source, target)
    others = np.setdiff1d(np.arange(host_pages), target)
    for part, words, earlier in zip(parts, there, before, strict=True):
        assert torch.equal(words[:, target], device.words(part)[:, source])
        assert torch.equal(words[:, others], earlier[:, others])
    for begin in range(layers):
        for end in range(begin + 1, layers + 1):
            again = DevicePool(page_format, PAGES)
            for part in parts:
                again.words(part).zero_()
            loader, some = copier_of(again, host, stacked), slice(begin, end)
            loader.launch_load(target, source, some)
            for part in parts:
                words, expected = again.words(part), torch.zeros_like(device.words(part))
                expected[some, source] = device.words(part)[some, source]
                assert torch.equal(words, expected)
    assert kernel.launches and (True in kernel.by_slot) <= (layout is HostLayout.PAGE_FIRST)


def copier_of(device: DevicePool, host: HostPool, stacked: bool) -> BusCopy:
    """Of pools as they are, or of a tensor a layer that other memory lies between."""
    parts = [part.name for part in device.format.parts]
    if stacked:
        return BusCopy([device.words(part) for part in parts], [host.words(part) for part in parts])
    return BusCopy([[words[None] for words in device.words(part)] for part in parts], [host.words(part) for part in parts])


@pytest.mark.parametrize("layout", HostLayout)
def test_rows_of_one_kind_are_copied_together_in_the_order_of_host_memory(layout: HostLayout) -> None:
    page_format = FORMATS["mha"]
    device, host = filled(page_format, PAGES), HostPool(page_format, PAGES, layout)
    pieces = [
        Piece(layer, one, other)
        for part in page_format.parts
        for layer, (one, other) in enumerate(zip(device.words(part.name), host.words(part.name), strict=True))
    ]
    kinds = kinds_of(pieces)
    assert len(kinds) == len({piece.shape for piece in pieces})
    every = [kind.places(range(len(page_format.layer_ids))) for kind in kinds]
    assert sum(places.piece_count for places in every) == len(pieces)
    for kind, places in zip(kinds, every, strict=True):
        assert (places.host.diff() > 0).all() and places.host[0] == 0
        assert kind.by_slot is (layout is HostLayout.PAGE_FIRST)
        one = kind.places(range(1, 2))
        assert 0 < one.piece_count < places.piece_count and set(one.host.tolist()) < set(places.host.tolist())


@pytest.mark.parametrize("words", [*range(1, 300), 4096, 4097, 9216, 16384, 1 << 20])
def test_tiles_waste_little(words: int) -> None:
    columns = tile_columns(words, 8192)
    assert columns.bit_count() == 1 and columns <= 8192
    wasted = 1 - words / (-(-words // columns) * columns)
    assert wasted <= 1 / 8 or all(
        wasted <= 1 - words / (-(-words // narrower) * narrower) for narrower in (16, 32, 64, 128) if narrower < columns
    )


def test_where_triton_cannot_build_torch_copies(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def copy(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    device, host = filled(FORMATS["mha"], PAGES), HostPool(FORMATS["mha"], PAGES, HostLayout.PAGE_FIRST)
    words = [device.words("k")], [host.words("k")]
    monkeypatch.setattr(bus_copy, "copy_rows", None)
    assert bus_copy.bus_copy(*words, crosses_bus=True) is None and not caplog.text
    monkeypatch.setattr(bus_copy, "copy_rows", Kernel())
    monkeypatch.setattr(BusCopy, "back_up", lambda *_: None)
    monkeypatch.setattr(BusCopy, "load", lambda *_: None)
    assert isinstance(bus_copy.bus_copy(*words, crosses_bus=True), BusCopy)
    monkeypatch.setattr(BusCopy, "load", copy)
    assert bus_copy.bus_copy(*words, crosses_bus=True) is None
    assert "Triton cannot build here" in caplog.text and "C compiler" in caplog.text


@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize("name", FORMATS)
def test_on_a_gpu_no_request_waits_for_a_kernel_to_be_built(
    name: str, layout: HostLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of pages, and however many layers are loaded together."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    page_format = FORMATS[name]
    pair = PagePair(filled(page_format, PAGES, device="cuda"), HostPool(page_format, PAGES, layout, pin=True))
    if bus_copy.copy_rows is None:
        pytest.skip("no Triton")

    def build(*_: Any, **__: Any) -> None:
        raise AssertionError("built under a request")

    monkeypatch.setattr(type(bus_copy.copy_rows), "_do_compile", build)
    layer_ids = page_format.layer_ids
    for count in range(PAGES):
        pages = np.arange(count)
        pair.backup(pages, pages)
        for begin in range(len(layer_ids)):
            for end in range(begin + 1, len(layer_ids) + 1):
                pair.load_layers(layer_ids[begin:end], pages, pages)
    torch.cuda.synchronize()


@pytest.mark.parametrize("divisor", [*range(1, 200), 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 29) + 1])
def test_dividing_by_multiplying_is_exact(divisor: int) -> None:
    inverse, shift = inverse_of(divisor)
    below = np.arange(1, 1 + min(4096, MAX_ROWS // divisor)) * divisor
    far = MAX_ROWS - 1 - np.arange(4096)
    numbers = np.concatenate((below - 1, below, far)).astype(np.int64)
    numbers = numbers[numbers < MAX_ROWS]
    assert inverse < 1 << 31, "an argument of 32 bits"
    assert (numbers * inverse >> shift == numbers // divisor).all()
