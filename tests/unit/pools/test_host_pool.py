"""Host and device pools: where each byte lies, trailers, memory without copies, and what is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from pool_formats import FORMATS, filled, page_bytes_of, rows_of

from unified_tree import ConfigurationError, PageError
from unified_tree.controllers.pools import DevicePool, HostLayout, HostPool, PagePair, host_pools, mha_format

CONTIGUOUS = (HostLayout.PAGE_FIRST, HostLayout.PAGE_FIRST_DIRECT)
SMALL = mha_format("full", layer_ids=(0, 1), page_size=2, kv_heads=1, head_dim=4)
EVERY = np.arange(4)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", CONTIGUOUS)
@pytest.mark.parametrize("trailer_bytes", [0, 1, 64])
def test_page_contiguous_layouts_byte_for_byte(name: str, layout: HostLayout, trailer_bytes: int) -> None:
    device = filled(FORMATS[name], 4)
    host = HostPool(FORMATS[name], 4, layout, trailer_bytes=trailer_bytes)
    host.memory.fill_(0xEE)
    PagePair(device, host).backup(EVERY, EVERY[::-1].copy())
    rows, memory = rows_of(device), host.memory.numpy().tobytes()
    for page in range(4):
        start = page * host.page_stride_bytes
        payload = page_bytes_of(rows, FORMATS[name], layout, 3 - page)
        assert len(payload) == FORMATS[name].page_bytes
        assert memory[start : start + len(payload)] == payload
        assert set(memory[start + len(payload) : start + host.page_stride_bytes]) <= {0xEE}
        assert bytes(host.page_memory(page)) == payload + b"\xee" * trailer_bytes


@pytest.mark.parametrize("name", FORMATS)
def test_layer_first_byte_for_byte(name: str) -> None:
    page_format = FORMATS[name]
    device, host = filled(page_format, 4), HostPool(page_format, 4, HostLayout.LAYER_FIRST)
    PagePair(device, host).backup(EVERY, EVERY)
    rows, memory, offset = rows_of(device), host.memory.numpy().tobytes(), 0
    for part in page_format.parts:
        expected = b"".join(rows[part.name, layer].tobytes() for layer in page_format.layer_ids)
        assert memory[offset : offset + len(expected)] == expected
        offset += -(-len(expected) // 64) * 64
    assert host.size_bytes == offset


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", HostLayout)
def test_host_tensors_have_the_order_of_their_layout(name: str, layout: HostLayout) -> None:
    device, host = filled(FORMATS[name], 4), HostPool(FORMATS[name], 4, layout)
    PagePair(device, host).backup(EVERY, EVERY)
    for part in FORMATS[name].parts:
        tensor = host.tensor(part.name)
        assert tensor.dtype == device.tensor(FORMATS[name].layer_ids[0], part.name).dtype
        order = {HostLayout.LAYER_FIRST: "lps", HostLayout.PAGE_FIRST: "psl", HostLayout.PAGE_FIRST_DIRECT: "pls"}[layout]
        expected = torch.stack([device.tensor(layer, part.name) for layer in FORMATS[name].layer_ids])
        expected = expected.permute(*("lps".index(letter) for letter in order), *range(3, expected.dim()))
        assert tensor.shape == expected.shape
        assert torch.equal(tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def test_page_memory_is_the_pools_own() -> None:
    host = HostPool(SMALL, 3, HostLayout.PAGE_FIRST_DIRECT, trailer_bytes=10)
    page = host.page_memory(2)
    assert len(page) == SMALL.page_bytes + 10 and not page.readonly and page.contiguous
    assert ctypes.addressof(ctypes.c_char.from_buffer(page)) == host.memory.data_ptr() + 2 * host.page_stride_bytes
    page[:] = bytes(range(len(page)))
    assert bytes(host.page_memory(2)) == bytes(range(SMALL.page_bytes + 10))
    assert host.tensor("k")[2].contiguous().view(torch.uint8).flatten().tolist() == list(range(SMALL.page_bytes // 2))


@pytest.mark.parametrize("layout", CONTIGUOUS)
def test_pages_start_at_multiples_of_64(layout: HostLayout) -> None:
    for page_format in FORMATS.values():
        host = HostPool(page_format, 3, layout, trailer_bytes=3)
        assert host.page_stride_bytes % 64 == 0
        assert 0 <= host.page_stride_bytes - page_format.page_bytes - 3 < 64


def test_a_layer_first_pool_has_no_contiguous_pages() -> None:
    host = HostPool(SMALL, 3, HostLayout.LAYER_FIRST)
    for ask in (lambda: host.page_memory(0), lambda: host.page_stride_bytes):
        with pytest.raises(ConfigurationError, match="this layout has no contiguous pages"):
            ask()


@pytest.mark.parametrize("page", [-1, 3, 1 << 70])
def test_page_memory_of_no_page(page: int) -> None:
    host = HostPool(SMALL, 3, HostLayout.PAGE_FIRST)
    with pytest.raises(PageError, match="is not one of 0 … 2"):
        host.page_memory(page)


def test_device_tensors_are_views_that_kernels_can_index() -> None:
    device = filled(SMALL, 3)
    for layer in (0, 1):
        tensor, slots = device.tensor(layer, "k"), device.slots(layer, "k")
        assert (tensor.shape, slots.shape) == ((3, 2, 1, 4), (6, 1, 4))
        assert tensor.is_contiguous() and tensor.data_ptr() == slots.data_ptr()
    device.slots(1, "v")[5] = 2.5
    assert device.tensor(1, "v")[2, 1].tolist() == [[2.5] * 4]
    with pytest.raises(ConfigurationError, match="does not keep layer 2"):
        device.tensor(2, "k")


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "4", None])
def test_absurd_page_counts(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="full: page_count must be"):
        DevicePool(SMALL, count)
    with pytest.raises(ConfigurationError, match="full: page_count must be"):
        HostPool(SMALL, count, HostLayout.PAGE_FIRST)


@pytest.mark.parametrize("layout", HostLayout)
def test_too_much_memory_is_refused_before_it_is_taken(layout: HostLayout) -> None:
    with pytest.raises(ConfigurationError, match=r"\d+ bytes of host memory needed .* \d+ are available"):
        HostPool(SMALL, 1 << 50, layout)
    with pytest.raises(ConfigurationError, match="are available"):
        DevicePool(SMALL, 1 << 50)
    with pytest.raises(ConfigurationError, match="are available"):
        HostPool(SMALL, 1, layout, reserve_bytes=1 << 60)


@pytest.mark.parametrize(
    "wrong", [{"trailer_bytes": -1}, {"trailer_bytes": 1.5}, {"reserve_bytes": -1}, {"reserve_bytes": None}]
)
def test_absurd_sizes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HostPool(SMALL, 1, HostLayout.PAGE_FIRST, **wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_pinning_needs_cuda() -> None:
    with pytest.raises(ConfigurationError, match="pinned host memory needs CUDA"):
        HostPool(SMALL, 1, HostLayout.PAGE_FIRST, pin=True)


def test_several_pools_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = {"full": SMALL, "draft": mha_format("draft", layer_ids=(0,), page_size=2, kv_heads=1, head_dim=4)}
    pools = host_pools(formats, {"full": 2, "draft": 3}, layout=HostLayout.PAGE_FIRST)
    assert {name: pool.page_count for name, pool in pools.items()} == {"full": 2, "draft": 3}
    total = sum(pool.size_bytes for pool in pools.values())
    monkeypatch.setattr("unified_tree.controllers.pools.host_memory.host_memory_available", lambda _: total - 1)
    HostPool(SMALL, 2, HostLayout.PAGE_FIRST, reserve_bytes=0)
    with pytest.raises(ConfigurationError, match=f"full, draft: {total} bytes of host memory needed"):
        host_pools(formats, {"full": 2, "draft": 3}, layout=HostLayout.PAGE_FIRST, reserve_bytes=0)
    with pytest.raises(ConfigurationError, match="formats of"):
        host_pools(formats, {"full": 2}, layout=HostLayout.PAGE_FIRST)
