"""Comparing keys and edges against a loop over pages, over both ways: by slices, and the C module where it was compiled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import unified_tree
from unified_tree.native import fallbacks

try:
    import unified_tree.native.key_bytes
except ImportError:
    NATIVE: Any = None
else:
    NATIVE = unified_tree.native.key_bytes
WAYS: list[Any] = [fallbacks, *([NATIVE] if NATIVE is not None else [])]


@pytest.fixture(params=WAYS, ids=lambda way: str(way.__name__).rpartition(".")[2])
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


def agreed_pages(data: bytes, edge: bytes, position: int, stop: int, page: int) -> int:
    """Page by page."""
    common = 0
    while common + page <= len(edge) and position + common + page <= min(stop, len(data)):
        if data[position + common : position + common + page] != edge[common : common + page]:
            break
        common += page
    return common


@pytest.mark.parametrize("seed", range(40))
def test_what_agrees_is_what_a_loop_finds(way: Any, seed: int) -> None:
    draw = Random(seed)
    page = draw.choice([8, 16, 128, 512, 24])
    longest = draw.choice([3, 40, 3_000])
    for _ in range(60):
        edge = draw.randbytes(page * draw.randint(1, longest))
        before = draw.randbytes(8 * draw.randint(0, 20))
        same = draw.choice([len(edge), draw.randint(0, len(edge))])
        data = before + edge[:same] + draw.randbytes(8 * draw.randint(0, 30))
        data = data[: len(data) // 8 * 8]
        position = draw.choice([len(before), len(before), 8 * draw.randint(0, len(data) // 8 + 2)])
        stop = draw.choice([len(data), len(data) + 800, 8 * draw.randint(0, len(data) // 8)])
        expected = agreed_pages(data, edge, position, stop, page)
        for given in (data, memoryview(data), memoryview(bytearray(data))):
            assert way.agreement(given, edge, position, stop, page) == expected
        assert way.agreement(data, memoryview(edge), position, stop, page) == expected


def test_long_edges_that_differ_late(way: Any) -> None:
    edge = bytes(range(256)) * 8_192  # 2 MiB
    for differs in (0, 7, 8, 4_095, 4_096, 300_000, len(edge) - 1):
        data = bytearray(edge)
        data[differs] ^= 1
        assert way.agreement(bytes(data), edge, 0, len(data), 512) == differs // 512 * 512
    assert way.agreement(edge, edge, 0, len(edge), 512) == len(edge)


def test_a_code_depends_on_the_length_and_on_each_token(way: Any) -> None:
    page = b"".join(token.to_bytes(8, "little") for token in range(1_000, 1_064))
    codes = {way.page_code(64, page, 0, len(page)), way.page_code(128, page, 0, len(page))}
    for at in range(64):
        changed = bytearray(page)
        changed[8 * at] ^= 1
        codes.add(way.page_code(64, bytes(changed), 0, len(page)))
    assert len(codes) == 66
    before = b"12345678" + page
    assert way.page_code(64, before, 8, len(page)) == way.page_code(64, page, 0, len(page))
    assert way.page_code(64, memoryview(before), 8, len(page)) == way.page_code(64, page, 0, len(page))
    assert isinstance(way.page_code(64, page, 600, len(page)), int), "a page that ends behind the data"


@pytest.mark.skipif(NATIVE is None, reason="not compiled")
@pytest.mark.parametrize(
    "call",
    [
        lambda: NATIVE.agreement(b"", b"", 0, 0),
        lambda: NATIVE.agreement(b"", "", 0, 0, 8),
        lambda: NATIVE.agreement(1, b"", 0, 0, 8),
        lambda: NATIVE.agreement(b"", b"", 0.5, 0, 8),
        lambda: NATIVE.agreement(b"", b"", -1, 0, 8),
        lambda: NATIVE.agreement(b"", b"", 0, 0, 0),
        lambda: NATIVE.agreement(memoryview(b"12345678")[::2], b"", 0, 8, 8),
        lambda: NATIVE.page_code(0, b"", 0),
        lambda: NATIVE.page_code(0, None, 0, 8),
        lambda: NATIVE.page_code(0, b"", -8, 8),
        lambda: NATIVE.page_code(1 << 80, b"", 0, 8),
    ],
)
def test_what_the_c_module_refuses(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        call()
