"""Virtual time: histories that a seed decides, and every fault."""

from __future__ import annotations

import pytest

from unified_tree.controllers.testing import Cells, Faults, Latencies, SimulatedEngine
from unified_tree.controllers.testing.transfer_rig import transfer
from unified_tree.controllers.transfer_engines import Completion, VirtualClock
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError

BACKUP, LOAD = EffectKind.BACKUP, EffectKind.LOAD
STEADY = Latencies(stage_ns=100, page_ns=0, cancel_ns=150, late_ns=1000, again_ns=1000, spread=0)
LAYERS = (0, 1, 2, 3)


class World:
    """One component of four layers; a stage takes 100 ns."""

    def __init__(self, faults: Faults | None = None, latencies: Latencies = STEADY, seed: int = 1):
        self.clock = VirtualClock()
        self.cells = Cells(LAYERS, 16)
        self.engine = SimulatedEngine(seed, self.clock, latencies, faults, {"full": self.cells})

    def poll_after(self, duration_ns: int) -> list[Completion]:
        self.clock.advance(duration_ns)
        return self.engine.poll()


def history(seed: int, look_ns: int = 700) -> list[tuple[int, int, str | None]]:
    """(time, ticket, error) of 40 transfers, looked at every so often."""
    world = World(Faults(fails=0.05, late=0.2, twice=0.2), Latencies(), seed)
    for ticket in range(0, 40, 2):
        world.engine.submit(
            [transfer(ticket, LOAD, full=([ticket % 16], [3])), transfer(ticket + 1, BACKUP, full=([1, 2], [3, 4]))]
        )
    seen = []
    while world.engine.next_event_ns is not None:
        seen += [(world.clock.now, c.ticket, c.error) for c in world.poll_after(look_ns)]
    return seen + [(world.clock.now, c.ticket, c.error) for c in world.engine.poll()]


def test_a_seed_decides_everything() -> None:
    assert history(3) == history(3)
    assert history(3) != history(4)
    errors = {(ticket, error) for _, ticket, error in history(3)}
    assert errors == {(ticket, error) for _, ticket, error in history(3, look_ns=90_000)}, "whoever looks when"
    assert any(error for _, error in errors)


def test_bytes_arrive_layer_by_layer_as_time_passes() -> None:
    world = World()
    world.engine.submit([transfer(1, LOAD, full=([4], [5]))])
    for layer in LAYERS:
        assert world.poll_after(99) == []
        assert world.cells.device[layer, 5] != world.cells.host[layer, 4]
        completions = world.poll_after(1)
        assert world.cells.device[layer, 5] == world.cells.host[layer, 4]
    assert completions == [Completion(ticket=1, error=None)]


def test_waiting_advances_the_clock_just_far_enough() -> None:
    world = World()
    world.engine.submit([transfer(1, LOAD, full=([4], [5])), transfer(2, BACKUP, full=([4], [5]))])
    for layer in LAYERS:
        world.engine.wait_layer(1, layer)
        assert world.clock.now == 100 * (layer + 1)
    world.engine.wait_layer(1, 0)
    assert world.clock.now == 400
    assert {completion.ticket for completion in world.engine.poll()} == {1, 2}
    assert world.engine.next_event_ns is None


def test_a_fault_leaves_part_of_the_bytes() -> None:
    places = set()
    for seed in range(30):
        world = World(Faults(fails=0.3), seed=seed)
        pages = list(range(8))
        world.engine.submit([transfer(1, LOAD, full=(pages, pages))])
        world.engine.drain()
        moved = (world.cells.device[:, :8] == world.cells.host[:, :8]).sum(axis=1).tolist()
        [completion] = world.engine.poll()
        if completion.error is None:
            assert moved == [8] * 4
            continue
        assert completion.error == "a simulated fault"
        whole = moved.count(8) if 8 in moved else 0
        places.add((whole, moved[whole] if whole < 4 else 8))
        assert all(count == 0 for count in moved[whole + 1 :])
        for layer in LAYERS[:whole]:
            if moved[layer] == 8 and layer < whole - 1:
                world.engine.wait_layer(1, layer)
        with pytest.raises(TransferError, match="layer 3 will not come: a simulated fault"):
            world.engine.wait_layer(1, 3)
    assert len(places) > 5


def test_a_late_completion_comes_after_its_bytes_and_gates() -> None:
    world = World(Faults(late=1.0))
    world.engine.submit([transfer(1, LOAD, full=([4], [5]))])
    world.engine.wait_layer(1, 3)
    assert world.clock.now == 400
    assert world.poll_after(999) == []
    assert world.poll_after(1) == [Completion(ticket=1, error=None)]


def test_a_completion_may_be_told_twice() -> None:
    world = World(Faults(twice=1.0))
    world.engine.submit([transfer(1, LOAD, full=([4], [5]))])
    told = Completion(ticket=1, error=None)
    assert world.poll_after(400) == [told]
    assert world.poll_after(999) == []
    assert world.poll_after(1) == [told]
    assert world.poll_after(10_000) == []


def test_a_cancelled_transfer_moves_bytes_until_it_ends_and_none_after() -> None:
    world = World()
    world.engine.submit([transfer(1, LOAD, full=([4], [5]))])
    assert world.poll_after(100) == []
    world.engine.cancel(1)
    world.engine.cancel(1)
    assert world.poll_after(149) == []
    assert world.cells.device[1, 5] == world.cells.host[1, 4]
    with pytest.raises(TransferError, match="cancelled"):
        world.engine.wait_layer(1, 0)
    assert world.poll_after(1) == [Completion(ticket=1, error="cancelled")]
    before = world.cells.device.copy()
    assert world.poll_after(10_000) == []
    assert (world.cells.device == before).all()


def test_cancelling_twice_is_no_faster() -> None:
    ends = set()
    for cancels in (1, 20):
        world = World(latencies=Latencies(stage_ns=10_000, cancel_ns=100, spread=50.0))
        world.engine.submit([transfer(1, LOAD, full=([4], [5]))])
        for _ in range(cancels):
            world.engine.cancel(1)
        world.engine.wait(1)
        ends.add(world.clock.now)
    assert len(ends) == 1


def test_without_movers_any_component_has_one_layer() -> None:
    clock = VirtualClock()
    engine = SimulatedEngine(0, clock, STEADY)
    engine.submit([transfer(1, LOAD, anything=([4], [5]), more=([1], [1])), transfer(2, BACKUP, swa=([1], [2]))])
    engine.wait_layer(1, 0)
    assert clock.now == 100
    assert sorted(completion.ticket for completion in engine.poll()) == [1, 2]


def test_conditions_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"late must be a probability, which 1\.5 is not"):
        Faults(late=1.5)
    with pytest.raises(ConfigurationError, match="page_ns must not be negative, as -1 is"):
        Latencies(page_ns=-1)
