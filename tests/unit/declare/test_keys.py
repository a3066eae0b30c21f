"""Keys: token sequences in a namespace."""

from __future__ import annotations

import pickle
import tracemalloc
from array import array
from typing import Any

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL
from numpy.typing import NDArray

from unified_tree import InvalidKeyError, Key, UnifiedTree


def test_a_key_takes_any_integers() -> None:
    expected = Key(np.array([1, 2, 3]))
    for tokens in ([1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3], np.uint8), np.array([1, 9, 2, 9, 3])[::2]):
        assert len(Key(tokens)) == 3
        assert Key(tokens).data == expected.data
    assert Key(np.array([1, 2, 3], ">i8")).data == expected.data


@pytest.mark.parametrize("empty", [[], (), np.empty(0, np.int64)])
def test_an_empty_key_is_a_key(empty: Any) -> None:
    assert len(Key(empty)) == 0
    assert len(Key(empty, bigram=True)) == 0


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ([1.0, 2.0], "must be integers"),
        ([True, False], "must be integers"),
        (["a"], "must be integers"),
        ([None], "must be integers"),
        ([[1, 2], [3, 4]], "one-dimensional"),
        (np.empty((0, 2), np.int64), "one-dimensional"),
        (7, "one-dimensional"),
        ("abc", "one-dimensional"),
        (None, "one-dimensional"),
        ([[1], [2, 3]], "one-dimensional"),
        (np.array([1 << 63], np.uint64), "63 bits"),
        ([1 << 64], "must be integers"),
    ],
)
def test_what_is_no_key(tokens: Any, complaint: str) -> None:
    with pytest.raises(InvalidKeyError, match=complaint):
        Key(tokens)


@pytest.mark.parametrize("size", [2, 5000])
@pytest.mark.parametrize("bigram", [False, True])
def test_a_negative_id_never_gets_into_the_tree(size: int, bigram: bool) -> None:
    tokens = np.arange(size)
    tokens[size - 2] = -7
    negative = Key(tokens, bigram=bigram)
    grove = Grove([FULL], page_size=1)
    with pytest.raises(InvalidKeyError, match="zero or more, got -7"):
        grove.tree.insert(negative, {"full": np.arange(len(negative))})
    assert grove.tree.node_count == 0
    assert grove.tree.match_prefix(negative).device.length == 0
    with pytest.raises(InvalidKeyError, match="got -7"):
        negative.require_tokens()


@pytest.mark.parametrize("namespace", [None, 3, b"a"])
def test_a_namespace_is_a_string(namespace: Any) -> None:
    with pytest.raises(InvalidKeyError, match="namespace"):
        Key([1], namespace)


def test_a_key_does_not_follow_its_array() -> None:
    tokens = np.array([1, 2, 3])
    taken = Key(tokens)
    tokens[:] = 9
    assert taken.data == Key([1, 2, 3]).data


def test_bigrams_pair_each_token_with_the_next() -> None:
    pairs = Key([1, 2, 3], bigram=True)
    assert len(pairs) == 2
    assert np.frombuffer(pairs.data, np.int64).tolist() == [1, 2, 2, 3]
    assert len(Key([1], bigram=True)) == 0


def test_a_prefix_of_a_key() -> None:
    whole = key("abcd", "tenant")
    assert len(whole.prefix(2)) == 2
    assert whole.prefix(2).data is whole.data
    for length in (-1, 5):
        with pytest.raises(InvalidKeyError, match="prefix"):
            whole.prefix(length)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("bigram", [False, True])
def test_a_key_can_be_sent_to_another_process(copied: bool, bigram: bool) -> None:
    whole = Key(np.arange(100, 106), "tenant", bigram=bigram, copy=copied)
    UnifiedTree([FULL], 2).match_prefix(whole)
    for sent in (whole, whole.prefix(4), whole.tail(2)):
        got = pickle.loads(pickle.dumps(sent))
        assert (len(got), got.begin, got.namespace, got.bigram) == (len(sent), sent.begin, "tenant", bigram)
        assert got.data == bytes(sent.data)[: len(got.data)]
        assert len(got.data) == (len(sent) - sent.begin) * (16 if bigram else 8)


def test_equal_tokens_in_different_namespaces_never_meet() -> None:
    grove = Grove([FULL]).having("abcd")
    grove.put("abcd", namespace="tenant")
    assert grove.match("abcd").device.length == 4
    assert grove.match("abcd", "tenant").device.length == 4
    assert grove.match("abcd", "other").device.length == 0
    assert grove.tree.pages(grove.match("abcd", "tenant").device, "full").tolist() == [102, 103]


def test_bigrams_and_tokens_never_meet() -> None:
    grove = Grove([FULL]).having("abcde")
    pairs = key("abcde", bigram=True)
    assert grove.tree.match_prefix(pairs).device.length == 0
    grove.tree.insert(pairs, {"full": grove.fresh("full", 2)})
    assert grove.tree.match_prefix(pairs).device.length == 4
    # the last pair of a page sees one token further than the page
    assert grove.tree.match_prefix(key("abcdx", bigram=True)).device.length == 2
    assert grove.match("abcdx").device.length == 4
    grove.check()


@pytest.mark.parametrize("call", ["match_prefix", "explain"])
def test_tokens_that_were_not_wrapped_are_refused(call: str) -> None:
    tree = UnifiedTree([FULL], page_size=2)
    with pytest.raises(InvalidKeyError, match="wrap the token ids"):
        getattr(tree, call)([1, 2])
    with pytest.raises(InvalidKeyError, match="wrap the token ids"):
        tree.insert([1, 2], {"full": np.array([0])})  # type: ignore[arg-type]


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
