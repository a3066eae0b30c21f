"""Page ids that are out of range, given twice, or someone else's are refused, with nothing changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, swa

from unified_tree import InsertError, PageError

GOOD: dict[str, Any] = {"full": [2, 3], "swa": [2, 3], "mamba": {4: 1}}


@pytest.fixture
def grove() -> Grove:
    grove = Grove([FULL, swa(3), MAMBA], page_counts={"full": 8, "swa": 6, "mamba": 4})
    grove.tree.insert(key("wxyz"), {"full": np.array([0, 1]), "swa": np.array([0, 1])}, {"mamba": {4: 0}})
    return grove


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"full": [2, 8]}, "full: page ids must be .*below 8, got 8"),
        ({"full": [-1, 2]}, "full: page ids must be zero or more.* got -1"),
        ({"full": [2, 2]}, "full: page 2 is given twice"),
        ({"full": [1, 2]}, "full: page 1 is already owned by the tree"),
        ({"swa": [2, 6]}, "swa: page ids .* got 6"),
        ({"swa": [3, 3]}, "swa: page 3 is given twice"),
        ({"swa": [0, 3]}, "swa: page 0 is already owned"),
        ({"mamba": {4: 4}}, "mamba: page ids .* got 4"),
        ({"mamba": {4: -1}}, "mamba: page ids .* got -1"),
        ({"mamba": {4: 0}}, "mamba: page 0 is already owned"),
        ({"mamba": {2: 3, 4: 3}}, "mamba: page 3 is given twice"),
    ],
)
def test_a_bad_page_is_refused(grove: Grove, bad: dict[str, Any], complaint: str) -> None:
    before = grove.tree.dump()
    given = GOOD | bad
    with pytest.raises(PageError, match=complaint):
        grove.tree.insert(key("abcd"), {name: np.array(given[name]) for name in ("full", "swa")}, {"mamba": given["mamba"]})
    assert grove.tree.dump() == before
    assert grove.match("abcd").path_length == 0
    grove.check()


def test_the_trees_page_at_another_place_is_refused() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    for pages in ([101, 100], [100, 102, 101]):
        with pytest.raises(PageError, match="already owned"):
            grove.tree.insert(key("abcdef"[: 2 * len(pages)]), {"full": np.array(pages)})
    grove.check()


@pytest.mark.parametrize("page", [1.5, 1.0, "1", None, True, 1 << 63])
def test_a_state_page_is_an_integer(grove: Grove, page: Any) -> None:
    before = grove.tree.dump()
    with pytest.raises((PageError, InsertError)):
        grove.tree.insert(key("abcd"), {"full": np.array([2, 3])}, {"mamba": {4: page}})
    assert grove.tree.dump() == before
    grove.check()


@pytest.mark.parametrize("length", [4.0, "4", None])
def test_the_length_of_a_state_is_an_integer(grove: Grove, length: Any) -> None:
    before = grove.tree.dump()
    with pytest.raises(InsertError):
        grove.tree.insert(key("abcd"), {"full": np.array([2, 3])}, {"mamba": {length: 1}})
    assert grove.tree.dump() == before


def test_numpy_integers_are_integers(grove: Grove) -> None:
    grove.tree.insert(key("abcd"), {"full": np.array([2, 3]), "swa": np.array([2, 3])}, {"mamba": {np.int64(4): np.int64(1)}})  # type: ignore[dict-item]
    assert grove.pages("abcd", "mamba") == [1]


def test_pages_beyond_63_bits_are_refused() -> None:
    grove = Grove([FULL])
    with pytest.raises(PageError):
        grove.tree.insert(key("ab"), {"full": np.array([(1 << 63) + 1], np.uint64)})


def test_an_unbounded_pool_takes_any_dense_id() -> None:
    grove = Grove([FULL])
    grove.tree.insert(key("ab"), {"full": np.array([1_000_000])})
    assert grove.pages("ab") == [1_000_000]
    with pytest.raises(PageError, match="no dense index"):
        grove.tree.insert(key("cd"), {"full": np.array([1 << 40])})
    grove.check()
