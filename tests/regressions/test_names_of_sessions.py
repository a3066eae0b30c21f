"""A session's name is any hashable object but None, also one whose comparison gives no bool of Python."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree import Component, LeaseError, Path
from unified_tree.controllers import PrefixCache


def test_a_parent_may_be_named_by_an_integer_of_numpy() -> None:
    cache = PrefixCache([Component(name="full", coverage=Path())], 1, {"full": 8})
    for _ in range(2):
        cache.open_session("explorer", parent=np.int64(7))
    cache.open_session("explorer", parent=7)
    assert cache.stats().sessions == 2

    with pytest.raises(LeaseError, match="cannot become part of"):
        cache.open_session("explorer", parent=np.int64(8))
    with pytest.raises(LeaseError, match="part of itself"):
        cache.open_session(np.int64(9), parent=9)
    assert cache.stats().sessions == 2
