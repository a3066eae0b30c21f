"""Which of boundaries and paths is the scarcer is found by what of either goes."""

from __future__ import annotations

import pytest

from unified_tree.scarcity import LEAST, MOST, VICTIMS_A_STEP, Scarcity


def after(steps: int, path: float, boundary: float) -> float:
    """As how many tokens a boundary counts, after victims that were worth so much."""
    scarcity = Scarcity()
    for _ in range(steps * VICTIMS_A_STEP // 2):
        scarcity.went(path, is_path=True)
        scarcity.went(boundary, is_path=False)
    return scarcity.tokens


def test_as_long_as_boundaries_that_go_are_worth_more_it_rises() -> None:
    assert after(1, 1.0, 2.0) > LEAST
    assert after(8, 1.0, 2.0) > after(4, 1.0, 2.0) > after(1, 1.0, 2.0)
    assert after(100, 1.0, 2.0) == MOST
    assert after(100, 2.0, 1.0) == LEAST
    assert after(9, 1.0, 1.0) == LEAST


def test_what_is_stranded_was_worth_nothing() -> None:
    assert after(2, 0.0, 1.0) > LEAST
    assert after(2, 0.0, 0.0) == LEAST
    assert after(2, 1.0, 0.0) == LEAST


def test_few_that_were_worth_something_among_many_that_were_not_count_as_what_they_were() -> None:
    """What nobody needs any more goes first, and says nothing of what room is worth."""
    scarcity = Scarcity()
    for each in range(VICTIMS_A_STEP):
        scarcity.went(1.0 if each % 8 else 0.9, is_path=True)
        scarcity.went(0.0 if each % 8 else 2.0, is_path=False)
    assert scarcity.tokens > LEAST


@pytest.mark.parametrize("worth", [1e-300, 1e300])
def test_no_worth_is_too_small_or_too_large(worth: float) -> None:
    assert LEAST <= after(3, worth, 1.0) <= MOST
    assert LEAST <= after(3, 1.0, worth) <= MOST
