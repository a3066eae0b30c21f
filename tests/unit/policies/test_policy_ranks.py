"""What counts as a number in the rank of a policy of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unified_tree import Component, EvictionPolicy, Path
from unified_tree.controllers.testing import LetterTree, check_policy

FULL = Component(name="full", coverage=Path())


class Newest(EvictionPolicy):
    """The newest first, in ranks of some kind."""

    def __init__(self, rank: Callable[[float], Any]) -> None:
        self._rank = rank

    def touched(self, value: Any) -> None:
        pass

    def rank(self, value: Any) -> Any:
        return self._rank(-value.created)


def victims(rank: Callable[[float], Any]) -> tuple[list[int], int, str | None]:
    letters = LetterTree([FULL], policy=lambda _: Newest(rank))
    for letter in "abc":
        letters.put(2 * letter)
    order = [letters.evict(1)["full"][0] for _ in range(3)]
    pool = letters.tree.pool("full")
    return order, pool.policy_failures, pool.last_policy_failure


@pytest.mark.parametrize("number", [int, float, np.int64, np.int16, np.float32, np.float64], ids=repr)
@pytest.mark.parametrize("pair", [False, True])
def test_a_number_of_numpys_is_a_rank(number: Callable[[float], Any], pair: bool) -> None:
    rank = (lambda created: (number(0), number(created))) if pair else number
    assert victims(rank) == ([102, 101, 100], 0, None)


def test_a_policy_that_ranks_by_numpys_numbers_keeps_the_contract() -> None:
    check_policy(lambda _: Newest(np.int64))


@pytest.mark.parametrize(
    "given", ["1", b"1", None, 1j, (1.0,), (1.0, 2.0, 3.0), (1.0, "2"), np.float32("nan"), [1.0]], ids=repr
)
def test_what_is_no_number_is_said(given: Any) -> None:
    order, failures, why = victims(lambda _: given)
    assert order == [100, 101, 102], "the least recently used first"
    assert failures > 0
    assert why == f"rank {given!r} is no number"
