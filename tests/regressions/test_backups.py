"""Copies to host: write-back, `flush` and `drain`."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa
from published import publish

from unified_tree import Component, Key
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine


def test_drain_ends_though_copies_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for all transfers began what had failed anew, for ever. Found by the simulation: a write-back cache whose engine
    had died never came back from `drain`.
    """
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, max_backup_share=0.1)
    for text in ("abcd", "efgh", "ijklmn"):
        tiered.serve(text)
    monkeypatch.setattr(tiered.engine, "drain", lambda: [tiered.engine.fail(open_) for open_ in list(tiered.engine.open)])
    tiered.cache.drain()
    assert tiered.engine.open == {}
    assert tiered.on_host() == 0
    monkeypatch.undo()
    tiered.end()


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
@pytest.mark.parametrize("host_windows", [2, 8, 100])
def test_flush_fills_the_host_with_spare_windows(policy: WritePolicy, host_windows: int) -> None:
    """`flush` copied spare windows as if they were kept for a boundary, in place of the window that the prompt's end needs
    where the host has no room for more.
    """
    tiered = Tiered([FULL, swa(3)], host_counts={"swa": host_windows}, write_policy=policy)
    tiered.serve(ascii_lowercase + "!")
    tiered.cache.flush()
    assert (tiered.on_host(), tiered.on_host("swa")) == (13, 2)
    tiered.forget()
    assert tiered.serve(ascii_lowercase + "!?") == 26
    tiered.end()


# `flush` queued all boundaries into a queue that forgets its oldest: of 6,000, 4,096 reached a host with room for all.

PAIRS = [f"{lower}{upper}" for lower in "abcdefghi" for upper in "ABCDEFGHI"]
TEXTS = [2 * pair for pair in PAIRS[:25]]


@pytest.mark.parametrize("queue_limit", [1, 2, 7, 24, 4096])
@pytest.mark.parametrize("max_backup_share", [0.0, 0.25])
def test_every_boundary_is_saved(queue_limit: int, max_backup_share: float) -> None:
    limits: dict[str, Any] = {"low_water": 0.0, "queue_limit": queue_limit, "max_backup_share": max_backup_share}
    tiered = Tiered([FULL, MAMBA], device=100, write_policy=WritePolicy.WRITE_BACK, **limits)
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


def test_write_back_does_not_count_what_a_prefill_strands() -> None:
    """A prefill that had saved no window yet strands its own pages. Write-back took these for pages that can be evicted at
    once. So nothing was copied, and the coldest boundary was evicted without a copy while the host was empty.
    """
    host = HostTier(
        page_counts={"full": 64, "swa": 64}, engine=NullEngine(), write_policy=WritePolicy.WRITE_BACK, max_backup_share=1.0
    )
    cache = PrefixCache([FULL, swa(8)], 4, {"full": 40, "swa": 16}, host=host)
    cold, long = np.arange(41), np.arange(1000, 1145)
    publish(cache, cold)
    with cache.acquire(Key(long)) as lease:
        for end in range(8, long.size, 8):
            cache.poll()
            cache.allocate(lease, end)
            cache.commit(lease, end)
    cache.drain()
    assert cache.tree.match_prefix(Key(cold)).reachable.length == 40
    assert not cache.tree.check()


# Write-back looked at the same 64 coldest values in every poll: once these were copied, locked, or could not be saved,
# nothing more was ever backed up, and 836 of 900 victims were lost.

MANY = [pair + "xy" for pair in PAIRS]


def write_back(*more: Component, host: int = 400, low_water: float = 1.0, **options: Any) -> Tiered:
    policy = WritePolicy.WRITE_BACK
    return Tiered([FULL, *more], host=host, write_policy=policy, low_water=low_water, max_backup_share=1.0, **options)


def test_nothing_is_lost_though_more_is_copied_than_is_on_device() -> None:
    tiered = write_back(device=40, low_water=0.5)
    for text in MANY:
        tiered.serve(text)
        tiered.settle()
    stats = tiered.cache.stats()
    assert stats.evictions > 60
    assert stats.lost == 0
    tiered.end()


def test_what_is_locked_does_not_stand_before_the_rest() -> None:
    tiered = write_back(device=170, low_water=0.9)
    for text in MANY:
        tiered.publish(text)
    held = [tiered.start(text + "?") for text in MANY[:70]]
    for _ in range(12):
        tiered.settle()
    assert tiered.on_host() == 2 * (len(MANY) - len(held))
    tiered.end()


def test_what_the_host_has_no_room_for_does_not_stand_before_the_rest() -> None:
    tiered = write_back(device=60, host=3)
    for text in ("abcdefgh", "ijklmnop", "qrstuvwx", "yz"):
        tiered.publish(text)
    for _ in range(9):
        tiered.settle()
    assert tiered.on_host() == 1, "three prompts of four pages do not fit, one of one page does"
    tiered.end()


def test_states_are_saved_behind_many_that_cannot_be() -> None:
    tiered = write_back(MAMBA, device=60, host=3, queue_limit=1)
    for text in ("abcdefgh", "ijklmnop", "yz"):
        tiered.publish(text)
    for _ in range(9):
        tiered.settle()
    assert (tiered.on_host(), tiered.on_host("mamba")) == (1, 1)
    tiered.end()
