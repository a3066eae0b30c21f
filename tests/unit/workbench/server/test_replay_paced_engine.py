"""The simulated bus: how long transfers take, in which order they end, and what a cancelled one costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.transfer_engines import NullEngine, Transfer, VirtualClock
from unified_tree.controllers.workbench.server.paced_transfers import PacedEngine
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import TransferError

LOAD, BACKUP = EffectKind.LOAD, EffectKind.BACKUP
COST = LoadCost(bytes_per_s=1e9, latency_s=1e-6)
"""A byte a nanosecond, and a microsecond a transfer."""


def transfer(ticket: int, direction: EffectKind = LOAD, pages: int = 1) -> Transfer:
    ids = np.arange(pages, dtype=np.int64)
    return Transfer(ticket=ticket, kind=direction, copies=(Copy(component="full", source=ids, target=ids),))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def engine(clock: VirtualClock) -> PacedEngine:
    return PacedEngine(NullEngine(), clock, COST, {"full": 1000})


def next_event(engine: PacedEngine) -> int | None:
    return engine.next_event_ns


def ended(engine: PacedEngine) -> dict[int, str | None]:
    return {completion.ticket: completion.error for completion in engine.poll()}


def test_a_transfer_takes_its_bytes_over_the_rate_and_the_set_up(engine: PacedEngine, clock: VirtualClock) -> None:
    engine.submit([transfer(1, pages=3)])
    assert engine.next_event_ns == 1000 + 3 * 1000
    clock.advance(3999)
    assert ended(engine) == {}
    clock.advance(1)
    assert ended(engine) == {1: None}
    assert (next_event(engine), engine.ended_count) == (None, 1)


def test_one_direction_is_a_queue_and_the_other_does_not_wait_for_it(engine: PacedEngine, clock: VirtualClock) -> None:
    engine.submit([transfer(1), transfer(2, pages=2), transfer(3, BACKUP)])
    clock.advance(2000)
    assert ended(engine) == {1: None, 3: None}
    assert engine.next_event_ns == 2000 + 3000
    clock.advance(500)
    engine.submit([transfer(4)])
    clock.advance(2500)
    assert ended(engine) == {2: None}
    assert engine.next_event_ns == 5000 + 2000


def test_what_is_cancelled_leaves_the_bus(engine: PacedEngine, clock: VirtualClock) -> None:
    engine.submit([transfer(1, pages=9), transfer(2, pages=9), transfer(3)])
    clock.advance(4000)
    engine.cancel(2)
    engine.cancel(1)
    engine.cancel(99)
    completions = ended(engine)
    assert completions.keys() == {1, 2}
    assert all("cancel" in str(error) for error in completions.values())
    assert engine.next_event_ns == 4000 + 2000
    with pytest.raises(TransferError, match="cancelled"):
        engine.wait_layer(1, 0)


def test_waiting_takes_virtual_time(engine: PacedEngine, clock: VirtualClock) -> None:
    engine.submit([transfer(1), transfer(2), transfer(3, BACKUP, pages=50)])
    engine.wait(2)
    assert clock.now == 4000
    engine.wait_layer(1, 5)
    assert clock.now == 4000, "it has landed"
    engine.drain()
    assert clock.now == 51_000
    assert ended(engine).keys() == {1, 2, 3}
    with pytest.raises(TransferError, match="not known"):
        engine.wait(77)


def test_whoever_wants_to_know_is_told_before_a_transfer_begins(clock: VirtualClock) -> None:
    begun: list[int] = []

    class Inner(NullEngine):
        def submit(self, transfers: Sequence[Transfer]) -> None:
            assert begun == [t.ticket for t in transfers]

    PacedEngine(Inner(), clock, COST, {"full": 1}, lambda t: begun.append(t.ticket)).submit([transfer(1), transfer(2)])
