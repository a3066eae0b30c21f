"""Write-back looked at the same 64 coldest values in every poll: once these were copied, locked, or could not be saved, nothing
more was ever backed up, and 836 of 900 victims were lost.
"""

from __future__ import annotations

from typing import Any

from held_engine import Tiered
from kinds import FULL, MAMBA

from unified_tree.controllers import WritePolicy

TEXTS = [f"{chr(ord('a') + i)}{chr(ord('A') + j)}xy" for i in range(9) for j in range(9)]


def write_back(**options: Any) -> Tiered:
    return Tiered([FULL], write_policy=WritePolicy.WRITE_BACK, max_backup_share=1.0, host=400, **options)


def test_nothing_is_lost_though_more_is_copied_than_is_on_device() -> None:
    tiered = write_back(device=40, low_water=0.5)
    for text in TEXTS:
        tiered.serve(text)
        tiered.settle()
    stats = tiered.cache.stats()
    assert stats.evictions > 60
    assert stats.lost == 0
    tiered.end()


def test_what_is_locked_does_not_stand_before_the_rest() -> None:
    tiered = write_back(device=170, low_water=0.9)
    for text in TEXTS:
        tiered.publish(text)
    held = [tiered.start(text + "?") for text in TEXTS[:70]]
    for _ in range(12):
        tiered.settle()
    assert tiered.on_host() == 2 * (len(TEXTS) - len(held))
    tiered.end()


def test_what_the_host_has_no_room_for_does_not_stand_before_the_rest() -> None:
    tiered = Tiered([FULL], device=60, host=3, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, max_backup_share=1.0)
    for text in ("abcdefgh", "ijklmnop", "qrstuvwx", "yz"):
        tiered.publish(text)
    for _ in range(9):
        tiered.settle()
    assert tiered.on_host() == 1, "three prompts of four pages do not fit, one of one page does"
    tiered.end()


def test_states_are_saved_behind_many_that_cannot_be() -> None:
    tiered = Tiered(
        [FULL, MAMBA], device=60, host=3, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, max_backup_share=1.0,
        queue_limit=1,
    )  # fmt: skip
    for text in ("abcdefgh", "ijklmnop", "yz"):
        tiered.publish(text)
    for _ in range(9):
        tiered.settle()
    assert (tiered.on_host(), tiered.on_host("mamba")) == (1, 1)
    tiered.end()
