"""Inserts: the tree keeps what it lacked and hands back the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grove import Grove, key, lists
from kinds import DRAFT, FULL, INDEXER, MAMBA, swa

from unified_tree import Boundary, InsertError, InvalidKeyError, Key, NodeId, PageError


def test_an_insert_says_what_became_of_it() -> None:
    grove = Grove([FULL]).having("abcd")
    result = grove.tree.insert(key("abcdefg"), {"full": np.array([7, 8, 9])})
    assert result.matched_length == 4
    assert result.boundary == grove.match("abcdef").device
    assert lists(result.duplicates) == {"full": [7, 8]}
    assert lists(result.canonical) == {"full": [100, 101, 9]}
    assert result.replaced == {}


def test_identical_pages_are_no_duplicates() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    pages = {"full": np.array([0, 1, 2]), "swa": np.array([0, 1])}
    grove.tree.insert(key("abcdef"), pages, {"mamba": {6: 0}})
    before = grove.tree.dump()
    again = grove.tree.insert(key("abcdef"), pages, {"mamba": {6: 0}})
    assert again.duplicates == again.replaced == {}
    assert lists(again.canonical) == {"full": [0, 1, 2], "swa": [0, 1]}
    assert grove.tree.dump() == before


def test_a_window_is_kept_only_as_far_back_as_it_can_be_resumed_from() -> None:
    grove = Grove([FULL, swa(3)])
    result = grove.put("abcdefgh", window=4)
    assert lists(result.duplicates) == {"swa": [200, 201]}
    assert lists(result.canonical)["swa"] == [202, 203]
    assert "swa:2" in grove.tree.dump()


def test_a_window_given_again_extends_a_shorter_one() -> None:
    grove = Grove([FULL, swa(5)])
    grove.put("abcdefgh", window=1)
    assert grove.match("abcdefgh").device.length == 0
    result = grove.put("abcdefgh", window=3)
    assert lists(result.duplicates) == {"swa": [203]}
    assert lists(result.canonical)["swa"] == [201, 202, 200]
    assert grove.match("abcdefgh").device.length == 8
    grove.check()


def test_pages_must_reach_back_to_what_the_tree_has() -> None:
    grove = Grove([FULL]).having("abcd")
    before = grove.tree.dump()
    with pytest.raises(InsertError, match="begin at token 6, but the tree has the path on device up to 4"):
        grove.tree.insert(key("abcdefgh"), {"full": np.array([9])})
    with pytest.raises(InsertError, match="begin at token 8"):
        grove.tree.insert(key("abcdefgh"), {})
    assert grove.tree.dump() == before


def test_pages_that_carry_more_replace_those_that_carry_less() -> None:
    grove = Grove([FULL, DRAFT])
    grove.put("abcd", without=["draft"])
    assert grove.pages("abcd", "draft") == []
    result = grove.put("abcd", since=0)
    assert lists(result.replaced) == {"full": [100, 101]}
    assert lists(result.canonical) == {"full": [102, 103]}
    assert result.duplicates == {}
    assert grove.pages("abcd") == grove.pages("abcd", "draft") == [102, 103]
    grove.check()


def test_pages_that_carry_less_are_duplicates() -> None:
    grove = Grove([FULL, DRAFT]).having("abcd")
    result = grove.put("abcd", since=0, without=["draft"])
    assert lists(result.duplicates) == {"full": [102, 103]}
    assert grove.pages("abcd", "draft") == [100, 101]


def test_the_same_pages_with_more_in_them_become_valid() -> None:
    grove = Grove([FULL, DRAFT])
    pages = {"full": np.array([0, 1])}
    grove.tree.insert(key("abcd"), pages, without=["draft"])
    result = grove.tree.insert(key("abcd"), pages)
    assert result.duplicates == result.replaced == {}
    assert grove.pages("abcd", "draft") == [0, 1]


@pytest.mark.parametrize(
    ("pages", "states", "without", "complaint"),
    [
        ({"full": [0, 1, 2]}, {}, [], "3 pages given for a key of 2 whole pages"),
        ({"full": [[0, 1]]}, {}, [], "one-dimensional"),
        ({"full": [0.0, 1.0]}, {}, [], "integer"),
        ({"full": [True, False]}, {}, [], "integer"),
        ({"full": [0, 1], "nope": [0]}, {}, [], "no component 'nope'"),
        ({"full": [0, 1], "indexer": [0]}, {}, [], "lives in the pages of 'full'"),
        ({"full": [0, 1], "mamba": [0]}, {}, [], "by its length"),
        ({"full": [0, 1]}, {"nope": {4: 0}}, [], "no component 'nope'"),
        ({"full": [0, 1]}, {"full": {4: 0}}, [], "not a component with state pages"),
        ({"full": [0, 1]}, {"mamba": {3: 0}}, [], "a state at 3"),
        ({"full": [0, 1]}, {"mamba": {0: 0}}, [], "a state at 0"),
        ({"full": [0, 1]}, {"mamba": {6: 0}}, [], "a state at 6"),
        ({"full": [0, 1]}, {"mamba": {-2: 0}}, [], "a state at -2"),
        ({"full": [0, 1]}, {}, ["nope"], "no component 'nope'"),
        ({"full": [0, 1]}, {}, ["full"], "required path"),
        ({"full": [0, 1]}, {}, ["indexer"], "required path"),
    ],
)
def test_what_does_not_fit_changes_nothing(pages: Any, states: Any, without: Any, complaint: str) -> None:
    grove = Grove([FULL, INDEXER, MAMBA])
    with pytest.raises((InsertError, PageError), match=complaint):
        grove.tree.insert(key("abcde"), {name: np.array(ids) for name, ids in pages.items()}, states, without=without)
    assert grove.tree.dump() == ""
    grove.check()


def test_a_tail_goes_on_after_a_locked_boundary() -> None:
    groves = [Grove([FULL, swa(3), MAMBA]) for _ in range(2)]
    for grove, is_tail in zip(groves, (False, True), strict=True):
        grove.put("abcdef", [6])
        grove.put("abcdefxy", [8])
        receipt = grove.lock("abcdef")
        whole = key("abcdefghij")
        pages = {"full": np.array([120, 121]), "swa": np.array([130, 131])}
        after = receipt.boundary
        result = grove.tree.insert(whole.tail(after.length) if is_tail else whole, pages, {"mamba": {8: 140}}, after=after)
        assert (result.boundary.length, result.matched_length) == (10, 6)
        receipt.release()
        grove.check()
    assert groves[0].tree.dump(tokens=True) == groves[1].tree.dump(tokens=True)


def test_a_tail_of_what_is_there_matches_on() -> None:
    grove = Grove([FULL]).having("abcdefgh")
    receipt = grove.lock("abcd")
    result = grove.tree.insert(key("abcdefxy").tail(2), {"full": np.array([120, 121, 122])}, after=receipt.boundary)
    receipt.release()
    assert (result.matched_length, lists(result.duplicates)) == (6, {"full": [120, 121]})
    assert grove.match("abcdefxy").device.length == 8
    grove.check()


def test_a_tail_needs_a_boundary_that_is_there() -> None:
    grove = Grove([FULL]).having("abcdefgh")
    grove.put("pqrs", namespace="other")
    tail = key("abcdefghij").tail(4)
    pages = {"full": np.array([120])}
    inside, end = grove.match("abcd", touch=False).device, grove.match("abcdefgh").device
    short, other = grove.match("abcd").device, grove.match("pqrs", "other").device
    gone = Boundary(NodeId(99), 8)
    for after in (inside, short, other, gone):
        with pytest.raises(InsertError, match="goes on after a boundary"):
            grove.tree.insert(tail, pages, after=after)
    for call in (grove.tree.match_prefix, grove.tree.explain, lambda tail: grove.tree.insert(tail, pages)):
        with pytest.raises(InvalidKeyError, match="whole key"):
            call(tail)
    for begin in (-1, 3, 11):
        with pytest.raises(InvalidKeyError, match="was asked of"):
            tail.tail(begin)
    with pytest.raises(InvalidKeyError, match="was asked of"):
        tail.prefix(3)
    assert grove.tree.insert(tail, pages, after=end).boundary.length == 10
    grove.check()


def test_a_negative_id_in_a_tail_is_refused() -> None:
    grove = Grove([FULL]).having("abcd")
    after = grove.match("abcd").device
    for bad in ([1, -1], [-1, 1]):
        with pytest.raises(InvalidKeyError, match="zero or more"):
            grove.tree.insert(Key([*map(ord, "abcd"), *bad]).tail(4), {"full": np.array([9])}, after=after)


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
    grove = Grove([FULL]).having("abcd")
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
