"""Sets of page ids against Python's own sets, over both ways to look up many flags: numpy's, and the C module's where it was
compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unified_tree.native.fallbacks import BEYOND, NO, YES, NumpyFlags
from unified_tree.state.page_set import NATIVE, PageSet
from unified_tree.terms.errors import PageError

WAYS = [NumpyFlags, *([lambda: NATIVE] if NATIVE is not None else [])]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param()


def draws(random: np.random.Generator, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ids of every shape: none, few and many; consecutive, twice, too large, negative, every second of an array."""
    count = int(random.choice([0, 1, 2, 16, 17, 40, 300]))
    kind = random.choice(["run", "distinct", "any", "beyond", "negative"])
    if kind == "run":
        ids = np.arange(count, dtype=np.int64) + int(random.integers(0, size))
    elif kind == "distinct":
        ids = random.permutation(size)[:count].astype(np.int64)
    else:
        ids = random.integers(0, size, count)
        if count and kind != "any":
            ids[random.integers(0, count)] = int(random.integers(size, 2 * size)) if kind == "beyond" else -1
    return np.repeat(ids, 2)[::2] if random.random() < 0.3 else ids


@pytest.mark.parametrize("seed", range(20))
def test_flags_are_those_of_a_set(way: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.choice([8, 100, 1000]))
    flags, members = bytearray(size), set[int]()
    for _ in range(200):
        ids, flag = draws(random, size), bool(random.random() < 0.5)
        given = ids.tobytes() if random.random() < 0.3 else ids
        listed = ids.tolist()
        are_right = all((page in members) == flag for page in listed) and len(set(listed)) == len(listed)
        found = way.are(given, flags, flag)
        if any(page < 0 for page in listed) or any(page >= size for page in listed):
            assert found != YES
            assert way.turn(given, flags, flag) != YES
            if all(page >= 0 for page in listed) and found == NO:
                assert not all((page in members) == flag for page in listed if page < size) or len(set(listed)) < len(listed)
        else:
            assert found == (YES if are_right else NO)
            before = bytes(flags)
            can_turn = all((page in members) != flag for page in listed) and len(set(listed)) == len(listed)
            assert way.turn(given, flags, flag) == (YES if can_turn else NO)
            assert can_turn or flags == before
            way.put(given, flags, flag)
            (members.update if flag else members.difference_update)(listed)
        assert {page for page in range(size) if flags[page]} == members
        assert set(flags) <= {0, 1}


@pytest.mark.parametrize("count", [1, 40])
def test_ids_beyond_the_flags(way: Any, count: int) -> None:
    flags, ids = bytearray(count), np.arange(1, count + 1)
    assert way.are(ids, flags, False) == way.turn(ids, flags, True) == BEYOND and not any(flags)
    with pytest.raises(IndexError):
        way.put(ids, flags, True)
    with pytest.raises(IndexError):
        way.put(ids[::-1].copy(), flags, True)


@pytest.mark.skipif(NATIVE is None, reason="not compiled")
@pytest.mark.parametrize(
    "call",
    [
        lambda: NATIVE.are(np.arange(3), bytearray(3)),
        lambda: NATIVE.are(np.arange(3), b"\0\0\0", False),
        lambda: NATIVE.are(np.arange(3, dtype=np.int32), bytearray(3), False),
        lambda: NATIVE.are(np.zeros((2, 2), np.int64), bytearray(3), False),
        lambda: NATIVE.put([0, 1], bytearray(3), True),
    ],
)
def test_what_the_c_module_refuses(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, BufferError)):
        call()


def test_a_set_grows_to_ids_within_its_capacity() -> None:
    pages = PageSet(5000)
    assert pages.all_are(np.array([4999, 3]), members=False)
    pages.add(np.array([4999, 3]))
    assert pages.all_are(np.array([3, 4999]), members=True) and pages.count() == 2
    assert not pages.add_new(np.array([4, 3])) and not pages.discard_all(np.array([4999, 4])) and pages.count() == 2
    assert pages.discard_all(np.array([4999, 3])) and pages.count() == 0
    assert not pages.all_are(np.array([5000]), members=False)
    pages.grow(5001)
    assert pages.all_are(np.array([5000]), members=False) and not pages.contains(5000)
    assert pages.add_new(np.array([5000])) and pages.contains(5000)


def test_ids_without_end_are_refused() -> None:
    pages = PageSet(1 << 40)
    with pytest.raises(PageError, match="below"):
        pages.all_are(np.array([1 << 33]), members=False)
