"""A simulator of somebody else's hits what the replay hits, where the rules are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benches.simulator_peer import hits_of_the_second_half, our_row, prepared, their_hits

if TYPE_CHECKING:
    from pathlib import Path


def records(seed: int) -> list[dict[str, object]]:
    """Prompts of a tree: each goes on from a beginning of some earlier one."""
    random = np.random.default_rng(seed)
    prompts: list[list[int]] = [[0, 1, 2]]
    for number in range(400):
        earlier = prompts[int(random.integers(max(0, len(prompts) - 60), len(prompts)))]
        kept = earlier[: int(random.integers(1, len(earlier) + 1))]
        fresh = [1000 * (number + 1) + i for i in range(int(random.integers(0, 12)))]
        prompts.append([*kept, *fresh][:40])
    return [
        {"timestamp": 10 * i, "input_length": 512 * len(ids) + int(random.integers(0, 512)), "hash_ids": ids}
        for i, ids in enumerate(prompts)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [60, 200])
def test_hits_are_equal_to_the_last_token(seed: int, blocks: int, tmp_path: Path) -> None:
    pytest.importorskip("kvcache_sim")
    theirs, ours = prepared(iter(records(seed)), tmp_path)
    row = our_row(ours, blocks)
    hits = their_hits(theirs, blocks)
    assert hits_of_the_second_half(row) == hits["lru"] > 0
    assert row.optimum_high_tokens is not None
    assert row.hit_tokens <= row.optimum_high_tokens
