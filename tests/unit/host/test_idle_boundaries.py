"""Which of the boundaries that no request uses any more write-back copies, and when."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa

from unified_tree import Tier
from unified_tree.controllers import WritePolicy


def write_back(kinds: list[Any], **options: Any) -> Tiered:
    return Tiered(kinds, write_policy=WritePolicy.WRITE_BACK, max_backup_share=1.0, **options)


def test_nothing_is_copied_while_there_is_room() -> None:
    tiered = write_back([FULL, swa(3)], device=100)
    for text in ("abcdefgh", "ijklmnop"):
        tiered.serve(text)
    tiered.settle()
    assert tiered.on_host() == 0
    tiered.end()


def test_what_a_running_request_holds_is_copied_when_it_ends() -> None:
    tiered = write_back([FULL], device=10, low_water=0.9)
    request = tiered.start("abcdefgh")
    tiered.run(request)
    tiered.settle()
    assert tiered.on_host() == 0
    tiered.runner.finish(request)
    tiered.settle()
    assert tiered.on_host() == 4
    tiered.end()


@pytest.mark.parametrize("turns", [0, 30])
def test_the_output_of_a_turn_supersedes_its_prompt_once_turns_go_on_from_outputs(turns: int) -> None:
    tiered = write_back([FULL, MAMBA], device=500, host=500, low_water=0.4)
    for i in range(turns):
        text = chr(0x100 + i) * 4
        tiered.serve(text, text)
        assert tiered.serve(text + text + "zz") == 8, "it resumes behind the output"
    tiered.serve("abcd", "efgh")
    assert tiered.on_host("mamba") == 0
    pages = tiered.cache.device.allocate("mamba", tiered.cache.device.allocators["mamba"].free_pages)
    tiered.cache.drain()
    tiered.cache.device.free("mamba", pages)
    assert tiered.on_host("mamba") == (turns + 1 if turns else 2), "the last of each session"
    tiered.end()


def test_too_many_idle_ones_are_copied() -> None:
    tiered = write_back([FULL], device=100, low_water=0.0, queue_limit=2)
    for text in ("abcd", "efgh", "ijkl"):
        tiered.publish(text)
    tiered.settle()
    assert tiered.on_host() == 2, "the oldest of three"
    tiered.end()


def lost_share_of(tiered: Tiered, prompts: int) -> float:
    """Prompts of their own that the device has no room for, without a poll between two: the share that is lost."""
    rng = Random(1)
    for _ in range(prompts):
        tiered.serve("".join(chr(rng.randrange(97, 100_000)) for _ in range(8)))
        tiered.settle()
    stats = tiered.cache.stats()
    return stats.lost / max(1, stats.evictions)


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_where_many_are_lost_copies_begin_sooner(policy: str) -> None:
    """`lru` evicts the oldest, which are copied first, too; `density` the newest while nobody has come back."""
    lost = {}
    for share in (1.0, 0.01):
        tiered = write_back([FULL], device=12, host=2000, low_water=0.0, lost_share=share, policy=policy)
        lost[share] = lost_share_of(tiered, 300)
        tiered.end()
    assert lost[1.0] > 0.9, "the mark never rises"
    assert lost[0.01] < 0.1


def test_where_room_is_too_short_copies_begin_while_requests_run() -> None:
    tiered = write_back([FULL], device=10, low_water=1.0)
    request = tiered.start("abcdefgh")
    tiered.run(request)
    tiered.settle()
    assert tiered.on_host() == 4
    tiered.runner.finish(request)
    tiered.end()


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_BACK, WritePolicy.WRITE_BACK_SELECTIVE])
def test_prompts_that_are_never_read_are_left_out_in_turn(policy: WritePolicy) -> None:
    tiered = Tiered([FULL], device=12, host=40, low_water=0.9, write_policy=policy, max_backup_share=1.0)
    lost_share_of(tiered, 200)
    copied = tiered.cache.stats().backed_up.component_pages["full"]
    assert copied == 800 if policy is WritePolicy.WRITE_BACK else 250 < copied < 450, copied
    tiered.end()


def test_what_left_host_memory_unread_is_counted() -> None:
    tiered = Tiered([FULL, swa(3)], device=10, host=8)
    tiered.serve("abcdefgh!")
    tiered.settle()
    tiered.forget()
    assert tiered.serve("abcdefgh?") == 8, "read"
    for text in ("ijklmnop!", "qrstuvwx!", "yzABCDEF!"):
        tiered.serve(text)
        tiered.settle()
    tiered.cache.evict({"full": 8, "swa": 8}, Tier.HOST)
    pools = tiered.cache.stats().host_pools
    assert {name: pool.unread_pages for name, pool in pools.items()} == {"full": 12, "swa": 6}
    tiered.end()
