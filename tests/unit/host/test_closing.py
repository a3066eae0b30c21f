"""Finishing what was begun, saving everything, and stopping, with whatever is open."""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa

from unified_tree import LeaseError, TransferError
from unified_tree.controllers import PrefixCache, WritePolicy
from unified_tree.nodes.effect import EffectKind


def test_drain_finishes_what_was_started_and_what_is_due() -> None:
    tiered = Tiered([FULL], max_backup_share=0.0)
    for text in ("abcd", "efgh", "ijkl"):
        tiered.serve(text)
    tiered.cache.poll()
    assert len(tiered.engine.open) == 1, "one at a time"
    tiered.cache.drain()
    assert tiered.engine.open == {}
    assert tiered.on_host() == 6
    tiered.end()


@pytest.mark.parametrize("policy", WritePolicy)
def test_flush_saves_every_boundary(policy: WritePolicy) -> None:
    tiered = Tiered([FULL, swa(3), MAMBA], write_policy=policy, low_water=0.0)
    for text in ("abcd", "abcdefgh", "xyzw"):
        tiered.serve(text)
    tiered.cache.flush()
    tiered.check()
    tiered.forget()
    assert [tiered.serve(text + "?") for text in ("abcd", "abcdefgh", "xyzw")] == [4, 8, 4]
    tiered.end()


def test_close_fails_the_loads_and_gives_back_every_page() -> None:
    tiered = Tiered([FULL, MAMBA])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    tiered.serve("uvwxyz")
    handed_over = tiered.start("abcdefghi")
    tiered.cache.poll()
    waiting = tiered.start("abcdefghj")
    assert {t.kind for t in tiered.engine.open.values()} == set(EffectKind)
    for _ in range(2):
        tiered.cache.close()
        tiered.check()
    for request in (handed_over, waiting):
        with pytest.raises(TransferError, match="closed"):
            tiered.cache.wait_layer(request.lease, 0)
        tiered.runner.finish(request)
    tiered.end()


def test_a_closed_cache_takes_no_more_requests() -> None:
    tiered = Tiered([FULL])
    tiered.cache.close()
    with pytest.raises(LeaseError, match="closed"):
        tiered.start("abcd")
    assert tiered.cache.stats().requests == 0
    tiered.end()


def test_without_a_host_tier_there_is_nothing_to_do() -> None:
    cache = PrefixCache([FULL], 2, {"full": 4})
    for call in (cache.poll, cache.drain, cache.flush, cache.close, cache.close):
        call()
    assert cache.stats().host_pools == {}
