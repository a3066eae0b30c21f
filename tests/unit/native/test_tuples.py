"""Tuples that are kept, over both ways: by Python, and the C module where it was compiled."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from unified_tree.native import fallbacks

try:
    import unified_tree.native.untracked_tuples
except ImportError:
    NATIVE: Any = None
else:
    NATIVE = unified_tree.native.untracked_tuples


@pytest.fixture(params=["python", *(["native"] if NATIVE is not None else [])])
def way(request: pytest.FixtureRequest) -> Any:
    return fallbacks if request.param == "python" else NATIVE


@pytest.mark.parametrize("size", [1, 2, 7])
def test_one_item_is_another(way: Any, size: int) -> None:
    before = tuple(f"item {i}" for i in range(size))
    for index in range(size):
        after = way.with_item(before, index, "new")
        assert after == (*before[:index], "new", *before[index + 1 :])
        assert before == tuple(f"item {i}" for i in range(size))


@pytest.mark.parametrize("index", [-1, 2, 1 << 70])
def test_there_is_no_such_item(way: Any, index: int) -> None:
    with pytest.raises((IndexError, OverflowError)):
        way.with_item(("a", "b"), index, "new")


def test_a_tuple_is_returned_as_it_is(way: Any) -> None:
    some: list[tuple[Any, ...]] = [(), (1, 2), ([],), ("a", (1, []))]
    for items in some:
        assert way.untracked(items) is items


@pytest.mark.skipif(NATIVE is None, reason="not compiled")
def test_only_what_no_cycle_goes_through_is_off_the_list_of_the_collector() -> None:
    a_list: list[Any] = []
    for items, is_tracked in (
        ((1, "a", None), False),
        ((1, a_list), True),
        ((1, (2, a_list)), True),
        ((1, NATIVE.untracked((2, len(a_list)))), False),
        ((1, object()), False),
    ):
        assert gc.is_tracked(NATIVE.untracked(items)) is is_tracked
        assert gc.is_tracked(NATIVE.with_item((0, *items[1:]), 0, 1)) is is_tracked
    a_list.append(NATIVE.with_item((None,), 0, a_list))
    held = gc.get_referrers(a_list)
    del a_list, held
    assert gc.collect() > 0, "a cycle through a tuple is still found"


@pytest.mark.skipif(NATIVE is None, reason="not compiled")
@pytest.mark.parametrize("given", [([1], 0, 1), ((1,), 0), ((1,), "0", 1), ()])
def test_what_is_no_tuple_or_index_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        NATIVE.with_item(*given)
    with pytest.raises(TypeError):
        NATIVE.untracked([1])
