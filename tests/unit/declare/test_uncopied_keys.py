"""Keys over the caller's own array: what is not copied, and that the tree keeps nothing of it."""

from __future__ import annotations

import tracemalloc
from array import array
from typing import Any

import numpy as np
import pytest
from kinds import FULL
from numpy.typing import NDArray

from unified_tree import InvalidKeyError, Key, UnifiedTree

LONG = 100_000


def ids(key: Key) -> NDArray[np.int64]:
    """The elements of a key as an array: a view."""
    return np.frombuffer(key.data, np.int64)


def frozen(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    tokens.flags.writeable = False
    return tokens


def tree_of(tokens: NDArray[np.int64], page_size: int = 1) -> UnifiedTree:
    """A tree of one node."""
    tree = UnifiedTree([FULL], page_size=page_size)
    tree.insert(Key(tokens), {"full": np.arange(tokens.size // page_size)})
    return tree


@pytest.mark.parametrize(
    "tokens",
    [
        np.arange(9),
        np.arange(20)[3:12],
        frozen(np.arange(9)),
        array("q", range(9)),
        memoryview(array("q", range(9))),
        np.arange(9, dtype=np.longlong),
    ],
)
def test_contiguous_int64_stays_where_it_is(tokens: Any) -> None:
    key = Key(tokens, copy=False)
    assert np.shares_memory(ids(key), np.asarray(tokens))
    assert ids(key).tolist() == list(tokens)
    assert len(key) == 9
    assert not np.shares_memory(ids(Key(tokens)), np.asarray(tokens))


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        np.array([1, 2, 3], np.int32),
        np.array([1, 2, 3], np.uint64),
        np.array([1, 2, 3], ">i8"),
        np.array([1, 9, 2, 9, 3])[::2],
        array("i", [1, 2, 3]),
        memoryview(array("q", [1, 9, 2, 9, 3]))[::2],
    ],
)
def test_other_tokens_are_copied_all_the_same(tokens: Any) -> None:
    assert Key(tokens, copy=False).data == Key([1, 2, 3]).data


@pytest.mark.parametrize("tokens", [np.arange(3.0), np.array([[1, 2], [3, 4]]), np.array([True]), b"tokens", "tokens", 7])
def test_what_is_no_key_is_none_uncopied(tokens: Any) -> None:
    with pytest.raises(InvalidKeyError):
        Key(tokens, copy=False)


def test_an_empty_array_is_a_key() -> None:
    assert len(Key(np.empty(0, np.int64), copy=False)) == 0


def test_bigrams_are_copied() -> None:
    tokens = np.array([1, 2, 3])
    key = Key(tokens, bigram=True, copy=False)
    tokens[:] = 9
    assert key.data == Key([1, 2, 3], bigram=True).data


def test_an_array_under_a_key_cannot_grow() -> None:
    tokens = array("q", [1, 2, 3])
    key = Key(tokens, copy=False)
    with pytest.raises(BufferError):
        tokens.append(4)
    del key
    tokens.append(4)


def test_an_owned_key_does_not_follow_its_array() -> None:
    tokens = np.array([1, 2, 3])
    lent = Key(tokens, "tenant", copy=False)
    owned, prefix = lent.owned(), lent.prefix(2).owned()
    tokens[:] = 9
    assert owned.data == Key([1, 2, 3]).data
    assert (owned.namespace, len(owned), len(prefix)) == ("tenant", 3, 2)
    assert owned.owned() is owned


def test_the_tree_keeps_its_own_tokens() -> None:
    tokens = np.arange(8)
    tree = UnifiedTree([FULL], page_size=2)
    tree.insert(Key(tokens, copy=False), {"full": np.arange(4)})
    tokens[4:] = 70
    tree.insert(Key(tokens, copy=False), {"full": np.array([0, 1, 4, 5])})
    tokens[:] = -1
    assert tree.match_prefix(Key(range(8))).device.length == 8
    assert tree.match_prefix(Key([0, 1, 2, 3, 70, 70, 70, 70])).device.length == 8
    assert tree.check() == []


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_match_ends_where_a_long_edge_differs(page_size: int, copy: bool) -> None:
    tokens = np.random.RandomState(0).randint(0, 1000, LONG)
    tree = tree_of(tokens, page_size)
    lengths = [0, 1, 15, 16, 17, 5000, LONG - 17, LONG - 16, LONG - 1, LONG]
    lengths += [at + off for at in range(1 << 15, LONG, 1 << 15) for off in (-17, -1, 0, 1, 16)]
    for at in lengths:
        asked = np.concatenate((tokens[:at], tokens[at:] + 1000, tokens[:3]))
        assert tree.match_prefix(Key(asked, copy=copy)).device.length == at // page_size * page_size


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("end", [LONG, LONG - 1, LONG // 2])
def test_a_match_copies_no_tokens(end: int, copy: bool) -> None:
    tokens = np.arange(LONG)
    tree = tree_of(tokens)
    asked = tokens.copy()
    asked[end:] = 7
    key = Key(asked) if copy else None
    tracemalloc.start()
    try:
        match = tree.match_prefix(key or Key(asked, copy=False))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert match.device.length == end
    assert peak < 50_000
