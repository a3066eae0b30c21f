"""A node was cut while the windows above it had changed, and its own runs had not been looked at yet. What waited found the
upper part as it should be, and went no further: the lower part was no boundary any more, and its values went first.
"""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree import Component, Key, Path, Trailing, TreeSettings, UnifiedTree

CHILDREN = 5


@pytest.mark.parametrize("cuts", [(6,), (5, 7)], ids=["two parts", "three"])
def test_both_parts_know_what_they_stand_on(cuts: tuple[int, ...]) -> None:
    window = Component(name="window", coverage=Trailing(8))
    tree = UnifiedTree([Component(name="full", coverage=Path()), window], 1, settings=TreeSettings(settle_limit=1))
    base = list(range(4))
    texts = [[*base, *range(100 * i, 100 * i + 4)] for i in range(1, CHILDREN + 1)]
    tree.insert(Key(base), {"full": np.arange(4)})
    for i, text in enumerate(texts, 1):
        tree.insert(Key(text), {"full": np.arange(4 * i, 4 * i + 4), "window": np.arange(4 * i, 4 * i + 4)})
    tree.settle()
    tree.insert(Key(base), {"full": np.arange(4), "window": np.arange(4)})
    for text in texts:
        for length in cuts:
            tree.lock(tree.match_prefix(Key(text[:length]), touch=False).known, components=["full"]).release()
    tree.settle()
    assert tree.check() == []
    assert all(tree.match_prefix(Key(text), touch=False).device.length == 8 for text in texts)
