"""The digests of a prefix in one piece, beside a list of them."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from unified_tree.controllers.storage.digests import Digests


@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_they_are_what_a_list_of_them_is(count: int) -> None:
    draw = Random(count)
    listed = [draw.randbytes(32) for _ in range(count)]
    digests = Digests(listed)
    assert len(digests) == count and list(digests) == listed
    assert [digests[at] for at in range(-count, count)] == listed + listed
    for _ in range(200):
        begin, end = (draw.choice([None, draw.randrange(-40, 40)]) for _ in range(2))
        piece = digests[begin:end]
        assert list(piece) == listed[begin:end] and piece == Digests(listed[begin:end])
    others = [draw.randbytes(32) for _ in range(3)]
    assert list(digests.followed_by(others)) == listed + others
    assert digests.followed_by(Digests(others)) == Digests(listed + others)
    assert list(digests) == listed, "these never change"


@pytest.mark.parametrize("index", [-3, 2, 1 << 40])
def test_a_page_that_is_not_there_has_none(index: int) -> None:
    with pytest.raises(IndexError, match="2 digests"):
        Digests([bytes(32)] * 2)[index]


def test_a_piece_has_no_gaps() -> None:
    with pytest.raises(ValueError, match="steps of 2"):
        Digests([bytes(32)] * 2)[::2]


def test_equal_ones_are_equal_and_nothing_else_is() -> None:
    digests = Digests([bytes(32)])
    assert digests == Digests([bytes(32)]) and hash(digests) == hash(Digests([bytes(32)]))
    assert digests != Digests() and digests != [bytes(32)]


def test_they_go_to_other_processes() -> None:
    digests = Digests([bytes([page]) * 32 for page in range(5)])
    assert pickle.loads(pickle.dumps(digests)) == digests
