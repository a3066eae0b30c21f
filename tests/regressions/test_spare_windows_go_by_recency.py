"""Windows in the middle of prompts went by the number of a queue under `density`: those of short prompts first, though those of
long ones were used earlier.
"""

from __future__ import annotations

from random import Random
from string import ascii_letters

import pytest
from grove import Grove
from kinds import FULL, swa

from unified_tree.nodes.node import Value


def middles(policy: str, seed: int) -> list[dict[str, list[int]]]:
    """The windows in the middle of prompts, in the order in which they are evicted."""
    draw, grove = Random(seed), Grove([FULL, swa(4)], policy=policy)
    for letter in ascii_letters:
        text = 2 * letter + "".join(draw.choice("12") for _ in range(2 * draw.choice([2, 3, 5, 20, 40])))
        grove.put(text, window=len(text) // 2, keep_spare=True)
        if draw.random() < 0.5:
            grove.match(text)
    spare = [value for value in grove.tree.state.device_pools[1].order if isinstance(value, Value) and value.spare]
    assert len(spare) > 30
    return [grove.evict(1, "swa") for _ in spare]


@pytest.mark.parametrize("seed", range(5))
def test_windows_in_the_middle_of_prompts_go_by_recency(seed: int) -> None:
    assert middles("density", seed) == middles("lru", seed)
