"""Two requests computed one prompt, the first without a draft. The other's commit swapped its pages for the first one's, and
its lease went on to tell that they hold the draft's state.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import DRAFT, FULL, swa

from unified_tree import Component, Key, Trailing
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.lease import Lease

CARRY = Component(name="carry", coverage=Trailing(2), required=False, shares="swa")
PROMPT = Key(np.arange(21))


def two_leases(cache: PrefixCache) -> tuple[Lease, Lease]:
    """On the same prompt, with pages for all of it."""
    first, second = (cache.acquire(PROMPT, reserve_tokens=21) for _ in range(2))
    return first, second


@pytest.mark.parametrize("chunk", [2, 8, 20])
def test_a_draft_in_shared_pages(chunk: int) -> None:
    cache = PrefixCache([FULL, DRAFT], 2)
    first, second = two_leases(cache)
    cache.commit(first, 8, without=["draft"])
    own = second.pages("draft").tolist()
    for end in range(chunk, 21, chunk):
        cache.commit(second, end)
    assert second.missing == {"draft": (0, 4)}
    assert second.pages("full").tolist() == [*first.pages("full").tolist()[:4], *own[4:]]
    assert second.pages("draft").tolist() == [-1] * 4 + own[4:]
    assert [second.page("draft", index) for index in range(5)] == [-1] * 4 + own[4:5]
    assert first.missing == {}, "it knows what it left out"


def test_a_hole_behind_pages_that_have_it() -> None:
    cache = PrefixCache([FULL, DRAFT], 2)
    first, second = two_leases(cache)
    cache.commit(first, 8)
    cache.commit(second, 8)
    assert second.missing == {}, "the tree's pages hold as much"
    cache.commit(first, 12, without=["draft"])
    cache.commit(second, 14)
    assert second.missing == {"draft": (4, 6)}
    assert (second.pages("draft")[:4] >= 0).all()


def test_a_hole_behind_the_one_of_the_prefix() -> None:
    cache = PrefixCache([FULL, DRAFT], 2)
    with cache.acquire(Key(np.arange(5)), reserve_tokens=5) as lease:
        cache.commit(lease, 4, without=["draft"])
    first, second = two_leases(cache)
    assert second.missing == {"draft": (0, 2)}
    cache.commit(first, 12)
    cache.commit(second, 12)
    assert second.missing == {"draft": (0, 6)}, "a path ends at its first hole"


def test_a_window() -> None:
    cache = PrefixCache([FULL, swa(6), CARRY], 2)
    first, second = two_leases(cache)
    cache.commit(first, 8, without=["carry"], resumable=True)
    cache.commit(second, 8, resumable=True)
    assert second.missing == {"carry": (0, 4)}
    assert (second.pages("swa")[1:4] >= 0).all()
    assert (second.pages("carry")[:4] < 0).all()
    cache.commit(second, 14, resumable=True)
    assert (second.pages("carry")[4:7] >= 0).all(), "what it has computed since"


def test_pages_without_a_lease_are_given_up_for_those_with_a_draft() -> None:
    cache = PrefixCache([FULL, DRAFT], 2)
    first, second = two_leases(cache)
    cache.commit(first, 8, without=["draft"])
    cache.release(first)
    cache.commit(second, 8)
    assert second.missing == {}
    assert cache.tree.pages(second.boundary, "draft").tolist() == second.pages("full").tolist()[:4]
