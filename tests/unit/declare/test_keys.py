"""Keys: token sequences in a namespace."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL

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
    grove = Grove([FULL])
    grove.put("abcd")
    grove.put("abcd", namespace="tenant")
    assert grove.match("abcd").device.length == 4
    assert grove.match("abcd", "tenant").device.length == 4
    assert grove.match("abcd", "other").device.length == 0
    assert grove.tree.pages(grove.match("abcd", "tenant").device, "full").tolist() == [102, 103]


def test_bigrams_and_tokens_never_meet() -> None:
    grove = Grove([FULL])
    grove.put("abcde")
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
    with pytest.raises(InvalidKeyError, match="wrap the tokens"):
        getattr(tree, call)([1, 2])
    with pytest.raises(InvalidKeyError, match="wrap the tokens"):
        tree.insert([1, 2], {"full": np.array([0])})  # type: ignore[arg-type]
