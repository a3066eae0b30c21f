"""Requests that go away, and copies that do not come, at every stage of a transfer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA, swa
from memory_model import Request

from unified_tree import LeaseError, TransferError
from unified_tree.controllers.transfer_engines import Completion
from unified_tree.nodes.effect import EffectKind


@pytest.fixture
def tiered() -> Tiered:
    """A cache whose device has forgotten a text that is on host."""
    tiered = Tiered([FULL, swa(3), MAMBA])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    return tiered


def ticket(tiered: Tiered) -> int:
    """The one load that is open."""
    tiered.cache.poll()
    [only] = tiered.engine.tickets(EffectKind.LOAD)
    return int(only)


def not_submitted(_: Tiered) -> None:
    """The load has not been handed over."""


def submitted(tiered: Tiered) -> None:
    ticket(tiered)


def half_there(tiered: Tiered) -> None:
    tiered.engine.land_layer(ticket(tiered), 0)


def landed(tiered: Tiered) -> None:
    ticket(tiered)
    tiered.engine.land()


def applied(tiered: Tiered) -> None:
    landed(tiered)
    tiered.cache.poll()


STAGES = [not_submitted, submitted, half_there, landed, applied]


@pytest.mark.parametrize("stage", STAGES)
def test_release_at_every_stage(tiered: Tiered, stage: Callable[[Tiered], None]) -> None:
    request = tiered.start("abcdefghij")
    stage(tiered)
    tiered.runner.finish(request)
    tiered.check()
    tiered.cache.poll()
    tiered.check()
    assert (len(tiered.engine.cancelled) == 1) is (stage not in {not_submitted, landed, applied})
    assert tiered.engine.open == {}
    with pytest.raises(LeaseError):
        tiered.cache.release(request.lease)
    assert tiered.serve("abcdefghij") == 8, "the host has it still"
    tiered.end()


def test_a_load_that_somebody_else_waits_for_goes_on(tiered: Tiered) -> None:
    first, second = tiered.start("abcdefghij"), tiered.start("abcdefghkl")
    tiered.cache.poll()
    tiered.runner.finish(first)
    assert tiered.engine.cancelled == []
    tiered.run(second)
    tiered.runner.finish(second)
    stats = tiered.cache.stats()
    assert stats.hit_tokens == stats.host_hit_tokens == 16, "the first one was granted them, too"
    tiered.end()


def settle_by_commit(tiered: Tiered, request: Request) -> None:
    tiered.cache.commit(request.lease, 8)


def settle_by_advance(tiered: Tiered, request: Request) -> None:
    tiered.cache.advance(request.lease, 8)


def settle_by_truncate(tiered: Tiered, request: Request) -> None:
    tiered.cache.truncate(request.lease, 8)


def settle_by_gate(tiered: Tiered, request: Request) -> None:
    tiered.cache.wait_layer(request.lease, 0)


@pytest.mark.parametrize("polled", [True, False])
@pytest.mark.parametrize("settle", [settle_by_commit, settle_by_advance, settle_by_truncate, settle_by_gate])
def test_a_load_that_fails_is_told_in_every_call(
    tiered: Tiered, settle: Callable[[Tiered, Request], None], polled: bool
) -> None:
    request = tiered.start("abcdefghij")
    tiered.engine.fail(ticket(tiered))
    if polled:
        tiered.cache.poll()
        assert "a bad cable" in str(request.lease.failure)
    for _ in range(2):
        with pytest.raises(TransferError, match="a bad cable"):
            settle(tiered, request)
    tiered.check()
    tiered.cache.poll()
    tiered.runner.finish(request)
    assert tiered.cache.stats().hit_tokens == 0
    assert tiered.serve("abcdefghij") == 8, "the next one loads again"
    tiered.end()


def test_what_fails_and_what_nobody_knows_is_counted(tiered: Tiered) -> None:
    request = tiered.start("abcdefghij")
    tiered.engine.fail(ticket(tiered))
    tiered.cache.poll()
    tiered.engine.tell(Completion(ticket=1_000_000, error=None))
    tiered.cache.poll()
    drops = tiered.cache.stats().drops
    assert drops["load failed"] == drops["lease lost its load"] == drops["completion not expected"] == 1
    tiered.runner.finish(request)
    tiered.end()


def test_a_state_copy_names_the_page_the_state_lands_in(tiered: Tiered) -> None:
    request = tiered.start("abcdefghij")
    [copy] = request.lease.state_copies
    assert copy.target == request.lease.state_page
    applied(tiered)
    assert request.lease.state_copies == (copy,)
    assert np.array_equal(tiered.cache.tree.pages(request.lease.boundary, "mamba"), [copy.source])
    tiered.end()
