"""`flush` queued all boundaries into a queue that forgets its oldest: of 6,000, 4,096 reached a host with room for all."""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA

from unified_tree.controllers import WritePolicy

TEXTS = [f"{chr(ord('a') + i)}{chr(ord('A') + j)}" * 2 for i in range(5) for j in range(5)]


@pytest.mark.parametrize("queue_limit", [1, 2, 7, 24, 4096])
@pytest.mark.parametrize("max_backup_share", [0.0, 0.25])
def test_every_boundary_is_saved(queue_limit: int, max_backup_share: float) -> None:
    tiered = Tiered(
        [FULL, MAMBA], device=100, write_policy=WritePolicy.WRITE_BACK, low_water=0.0, queue_limit=queue_limit,
        max_backup_share=max_backup_share,
    )  # fmt: skip
    for text in TEXTS:
        tiered.serve(text + "!")
    dropped_before = dict(tiered.cache.stats().drops)
    tiered.cache.flush()
    assert tiered.on_host("mamba") == len(TEXTS)
    assert dict(tiered.cache.stats().drops) == dropped_before
    tiered.forget()
    assert [tiered.serve(text + "?") for text in TEXTS] == [4] * len(TEXTS)
    tiered.end()


def test_what_a_full_queue_forgets_is_counted() -> None:
    tiered = Tiered([FULL], queue_limit=2)
    for text in TEXTS[:5]:
        tiered.publish(text)
    tiered.settle()
    assert tiered.cache.stats().drops["backup queue full"] == 3
    tiered.end()
