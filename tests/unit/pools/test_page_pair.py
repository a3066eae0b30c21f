"""Moving pages: all layouts, both ways, every way of copying, against naive copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool_formats import FORMATS, filled, rows_of
from waiting import PATIENCE_S

from unified_tree import ConfigurationError, PageError
from unified_tree.controllers.pools import (
    DevicePool,
    HostLayout,
    HostPool,
    PageMover,
    PagePair,
    bus_copy,
    copier,
    core_copy,
    mha_format,
    state_format,
)
from unified_tree.controllers.pools.copier import copy_by_kernels
from unified_tree.controllers.pools.core_copy import CoreCopy, numpy_shares
from unified_tree.controllers.pools.cpu_memory import cpu_memory
from unified_tree.controllers.pools.host_memory import host_memory_available

PAGES = 12
COPIES: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "on a GPU": lambda: None,
    "on a GPU, by torch": lambda: copy_by_kernels,
    "one core": lambda: CoreCopy(1),
    "three cores": lambda: CoreCopy(3),
    "numpy": lambda: CoreCopy(3, numpy_shares),
    "kernels": lambda: copy_by_kernels,
}
IDS = {
    "one": ([4], [7]),
    "none": ([], []),
    "a run": ([2, 3, 4, 5], [6, 7, 8, 9]),
    "scattered": ([11, 0, 5, 6, 2], [3, 9, 10, 11, 0]),
    "all, reversed": (list(range(12)), list(range(12))[::-1]),
    "one source twice": ([3, 3, 4], [1, 5, 2]),
}


def device_of(copy: str) -> str:
    """Where the device pages of a way of copying lie."""
    if "GPU" in copy and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return "cuda" if "GPU" in copy else "cpu"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages are shared between cores and cut often, too."""
    monkeypatch.setattr(core_copy, "SHARE_BYTES", 1)
    monkeypatch.setattr(core_copy, "STAGING_BYTES", 100)
    monkeypatch.setattr(copier, "STAGING_BYTES", 1000)
    monkeypatch.setattr(bus_copy, "MAX_ROWS", 10)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize("name", FORMATS)
def test_there_and_back(name: str, layout: HostLayout, copy: str, ids: str) -> None:
    page_format = FORMATS[name]
    source, target = (np.array(pages, np.int64) for pages in IDS[ids])
    device = device_of(copy)
    first, second = filled(page_format, PAGES, 1, device), filled(page_format, PAGES, 2, device)
    host = HostPool(page_format, PAGES, layout, pin=device != "cpu")
    host.memory.fill_(0xEE)
    given = rows_of(first)
    PagePair(first, host, COPIES[copy]()).backup(source, target)
    wait(device)
    untouched = np.setdiff1d(np.arange(PAGES), target)
    for part in page_format.parts:
        rows = host.words(part.name).contiguous().view(torch.uint8).numpy()
        for index, layer in enumerate(page_format.layer_ids):
            assert (rows[index, target] == given[part.name, layer][source]).all()
            assert (rows[index, untouched] == 0xEE).all()
    expected = rows_of(second)
    back = np.arange(source.size)[::-1].copy()
    pair = PagePair(second, host, COPIES[copy]())
    for layer in page_format.layer_ids:
        pair.load_layers((layer,), target, back)
        for part in page_format.parts:
            expected[part.name, layer][back] = given[part.name, layer][source]
        assert_rows(second, expected)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize("name", FORMATS)
def test_loading_some_layers(name: str, layout: HostLayout, copy: str) -> None:
    page_format = FORMATS[name]
    device = device_of(copy)
    first = filled(page_format, 6, 1, device)
    host = HostPool(page_format, 6, layout, pin=device != "cpu")
    PagePair(first, host).backup(np.arange(6), np.arange(6)[::-1].copy())
    kept = page_format.layer_ids
    for begin in range(len(kept)):
        for end in range(begin + 1, len(kept) + 1):
            second = filled(page_format, 9, 2, device)
            expected = rows_of(second)
            PagePair(second, host, COPIES[copy]()).load_layers(kept[begin:end], np.array([5, 1, 2]), np.array([4, 7, 8]))
            for (part, layer), rows in rows_of(first).items():
                if layer in kept[begin:end]:
                    expected[part, layer][[4, 7, 8]] = rows[[0, 4, 3]]
            assert_rows(second, expected)


def wait(device: str) -> None:
    """Until copies to host have arrived."""
    if device != "cpu":
        torch.cuda.synchronize()


def test_more_words_on_a_gpu_than_32_bits_count() -> None:
    """Both pools have 20 GiB and few pages, so that offsets exceed 2**31 words and 2**34 bytes."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    page_format = state_format("m", layer_ids=(0, 1), conv_shape=(64, 3), state_shape=(8, 2048, 2048))
    pages = (20 << 30) // page_format.page_bytes
    if torch.cuda.mem_get_info()[0] < 24 << 30 or host_memory_available() < 40 << 30:
        pytest.skip("too little memory")
    for layout in HostLayout:
        device, host = DevicePool(page_format, pages, "cuda"), HostPool(page_format, pages, layout, pin=True)
        ends = np.array([0, 1, pages // 2, pages - 2, pages - 1])
        pair = PagePair(device, host)
        for part in page_format.parts:
            device.words(part.name)[:, ends] = torch.randint(
                1 << 62, (2, ends.size, *device.words(part.name).shape[2:]), device="cuda"
            ).to(device.words(part.name).dtype)
        given = {part.name: device.words(part.name)[:, ends].cpu() for part in page_format.parts}
        pair.backup(ends, ends[::-1].copy())
        for part in page_format.parts:
            device.words(part.name)[:, ends] = 0
        pair.load_layers((0, 1), ends[::-1].copy(), ends)
        torch.cuda.synchronize()
        for part in page_format.parts:
            assert torch.equal(host.words(part.name)[:, ends[::-1].copy()], given[part.name])
            assert torch.equal(device.words(part.name)[:, ends].cpu(), given[part.name])


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("layout", HostLayout)
def test_real_sizes_without_shrunken_limits(layout: HostLayout, cores: int) -> None:
    large = state_format("m", layer_ids=(0, 1), conv_shape=(64, 3), state_shape=(8, 128, 128))
    small = mha_format("f", layer_ids=tuple(range(4)), page_size=64, kv_heads=2, head_dim=128)
    for page_format in (large, small):
        device, again = filled(page_format, 12), filled(page_format, 12, seed=9)
        host = HostPool(page_format, 12, layout)
        source, target = np.random.default_rng(0).permutation(12), np.random.default_rng(1).permutation(12)
        PagePair(device, host, CoreCopy(cores)).backup(source, target)
        PagePair(again, host, CoreCopy(cores)).load_layers(page_format.layer_ids, target, source)
        assert_rows(again, rows_of(device))


def assert_rows(pool: DevicePool, expected: dict[tuple[str, int], np.ndarray]) -> None:
    """The pool holds exactly these bytes."""
    assert all((rows == expected[key]).all() for key, rows in rows_of(pool).items())


def test_pools_ask_for_huge_pages() -> None:
    """Copies of scattered pages run at half the speed without; smaps says `hg` of memory that was asked for so."""
    memory = cpu_memory(16 << 20)
    assert memory.data_ptr() % (2 << 20) == 0
    assert cpu_memory(1000).data_ptr() % 64 == 0
    areas = Path("/proc/self/smaps")
    if not areas.exists() or not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("no huge pages here")
    inside, flags = False, list[str]()
    for line in areas.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            begin, end = (int(address, 16) for address in first.split("-"))
            inside = begin <= memory.data_ptr() + (8 << 20) < end
        elif inside and first == "VmFlags:":
            flags += rest.split()
    assert "hg" in flags


@pytest.mark.parametrize("bad", [([0, 1], [2, 2]), ([0, 99], [1, 2]), ([0], [-1]), ([0, 1], [0])])
def test_ids_that_are_wrong_write_nothing(bad: tuple[list[int], list[int]]) -> None:
    page_format = FORMATS["mha"]
    device, host = filled(page_format, 5), HostPool(page_format, 5, HostLayout.PAGE_FIRST)
    host.memory.fill_(0xEE)
    pair, before = PagePair(device, host), rows_of(device)
    source, target = (np.array(ids) for ids in bad)
    for call in (pair.backup, lambda s, t: pair.load_layers((3,), s, t)):
        with pytest.raises(PageError):
            call(source, target)
    assert (host.memory == 0xEE).all()
    assert_rows(device, before)


def test_pools_of_one_format_only() -> None:
    host = HostPool(FORMATS["indexer"], 2, HostLayout.PAGE_FIRST)
    with pytest.raises(ConfigurationError, match=r"pools of different formats.*component='full'.*component='indexer'"):
        PagePair(DevicePool(FORMATS["mha"], 2), host)


def test_a_pair_is_a_page_mover() -> None:
    pair = PagePair(DevicePool(FORMATS["mha"], 2), HostPool(FORMATS["mha"], 2, HostLayout.LAYER_FIRST))
    mover: PageMover = pair
    assert mover.layer_ids == (3, 7, 11)
    with pytest.raises(ConfigurationError, match="does not keep layer 0"):
        mover.load_layers((0,), np.array([0]), np.array([0]))
    for layer_ids in ((), (3, 11), (7, 3), (3, 7, 11, 15)):
        with pytest.raises(ConfigurationError, match="no neighbours among the layers it keeps"):
            mover.load_layers(layer_ids, np.array([0]), np.array([0]))


@pytest.mark.parametrize("cores", [0, -1, True, 1.5])
def test_absurd_cores(cores: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"cores must be (an integer|1 or more)"):
        CoreCopy(cores)


def test_a_core_that_fails_is_heard_after_all_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_copy, "SHARE_BYTES", 1)
    calls = []

    def share_out(*_: Any) -> Callable[[int], None]:
        def copy(share: int) -> None:
            calls.append(share)
            if share:
                raise RuntimeError("no")

        return copy

    host = HostPool(FORMATS["mha"], 5, HostLayout.PAGE_FIRST)
    with pytest.raises(RuntimeError, match="no"):
        PagePair(filled(FORMATS["mha"], 5), host, CoreCopy(3, share_out)).backup(np.array([0, 2, 4]), np.array([4, 2, 0]))
    assert sorted(calls) == [0, 1, 2]


def test_nothing_is_written_after_a_failed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_copy, "SHARE_BYTES", 1)
    ended = threading.Event()

    def share_out(*_: Any) -> Callable[[int], None]:
        def slow_elsewhere(share: int) -> None:
            if not share:
                raise RuntimeError("no")
            ended.wait(0.2)
            ended.set()

        return slow_elsewhere

    host = HostPool(FORMATS["mha"], 5, HostLayout.PAGE_FIRST)
    with pytest.raises(RuntimeError, match="no"):
        PagePair(filled(FORMATS["mha"], 5), host, CoreCopy(2, share_out)).backup(np.array([0, 2, 4]), np.array([4, 2, 0]))
    assert ended.is_set()


def test_threads_end_with_their_pair() -> None:
    page_format = mha_format("f", layer_ids=tuple(range(4)), page_size=64, kv_heads=8, head_dim=128)
    pair = PagePair(filled(page_format, 12), HostPool(page_format, 12, HostLayout.PAGE_FIRST), CoreCopy(2))
    before = set(threading.enumerate())
    pair.backup(np.arange(12), np.arange(12))
    started = set(threading.enumerate()) - before
    assert started
    del pair
    for thread in started:
        thread.join(timeout=PATIENCE_S)
    assert not any(thread.is_alive() for thread in started)
