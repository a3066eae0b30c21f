"""What the CUDA engine puts on which lane and when; streams and events are fakes that run only when told to."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from fake_lanes import FakeDevice, FakeLane, LaneCells

from unified_tree.controllers.testing.transfer_rig import transfer
from unified_tree.controllers.transfer_engines import Completion, CudaEngine
from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError

BACKUP, LOAD = EffectKind.BACKUP, EffectKind.LOAD
PAGES = 16


class Bench:
    """An engine of ten layers whose device runs nothing by itself."""

    def __init__(self, window_steps: int = 4, chunk_blocks: int = 10):
        self.device = FakeDevice(runs_when_looked_at=False)
        self.cells = LaneCells(self.device, tuple(range(10)), PAGES)
        self.engine = CudaEngine({"full": self.cells}, self.device.lanes, window_steps, chunk_blocks)
        self.load, self.backup = self.device.lanes[LOAD], self.device.lanes[BACKUP]

    def waiting(self, lane: FakeLane) -> int:
        return len(lane.work) - lane.done

    def finish(self) -> list[Completion]:
        completions = self.engine.poll()
        while self.waiting(self.load) or self.waiting(self.backup):
            self.load.run()
            self.backup.run()
            completions += self.engine.poll()
        return completions


def test_a_lane_holds_no_more_than_a_window() -> None:
    bench = Bench(chunk_blocks=1)
    bench.engine.submit([transfer(1, LOAD, full=([1], [2]))])
    assert len(bench.cells.calls) == 4
    assert bench.engine.poll() == []
    assert len(bench.cells.calls) == 4
    bench.load.run(3)  # a wait for the caller's stream, and two layers
    assert bench.engine.poll() == []
    assert len(bench.cells.calls) == 6
    assert bench.finish() == [Completion(ticket=1, error=None)]
    assert (bench.cells.device[:, 2] == bench.cells.host[:, 1]).all()


def test_a_gate_holds_the_callers_stream_and_not_the_host() -> None:
    bench = Bench(chunk_blocks=1)
    bench.engine.submit([transfer(1, LOAD, full=([1], [2]))])
    bench.engine.wait_layer(1, 2)
    assert len(bench.cells.calls) == 4
    bench.engine.wait_layer(1, 7)
    assert len(bench.cells.calls) == 8, "what the gate needs, past the window"
    assert bench.load.done == 0
    bench.device.caller.run(1)
    assert (bench.cells.device[:3, 2] == bench.cells.host[:3, 1]).all()
    assert (bench.cells.device[3:, 2] != bench.cells.host[3:, 1]).all()
    bench.device.caller.run(1)
    assert (bench.cells.device[:8, 2] == bench.cells.host[:8, 1]).all()
    assert (bench.cells.device[8:, 2] != bench.cells.host[8:, 1]).all()
    assert bench.finish() == [Completion(ticket=1, error=None)]
    held = len(bench.device.caller.work)
    bench.engine.wait_layer(1, 9)
    assert len(bench.device.caller.work) == held, "nothing to wait for"


def test_the_layers_of_a_group_have_one_mark() -> None:
    bench = Bench(window_steps=3)
    bench.engine.submit([transfer(1, LOAD, full=([1], [2]))])
    assert bench.cells.groups == [(0,), (1,), (2, 3)]
    bench.engine.wait_layer(1, 3)
    bench.device.caller.run(1)
    assert (bench.cells.device[:4, 2] == bench.cells.host[:4, 1]).all()
    bench.engine.wait_layer(1, 5)
    assert bench.cells.groups[3:] == [(4, 5, 6, 7)]
    bench.device.caller.run(1)
    assert (bench.cells.device[:8, 2] == bench.cells.host[:8, 1]).all()
    assert (bench.cells.device[8:, 2] != bench.cells.host[8:, 1]).all()
    for layer_id in (0, 2, 7):
        bench.engine.wait_layer(1, layer_id)
    assert len(bench.cells.groups) == 4
    assert bench.finish() == [Completion(ticket=1, error=None)]


def test_transfers_follow_what_the_caller_had_launched_by_then() -> None:
    bench = Bench()
    written: list[int] = []
    bench.device.caller.work.append(lambda: written.append(1))
    bench.engine.submit([transfer(1, BACKUP, full=([1], [1]))])
    bench.device.caller.work.append(lambda: written.append(2))
    bench.backup.run()
    assert written == [1]
    bench.engine.submit([transfer(2, LOAD, full=([2], [2]))])
    bench.load.run()
    assert written == [1, 2]


def test_backups_get_onto_their_lane_when_all_loads_are_on_theirs() -> None:
    bench = Bench(chunk_blocks=1)
    bench.engine.submit([transfer(1, BACKUP, full=([1], [1])), transfer(2, LOAD, full=([2], [2]))])
    assert bench.waiting(bench.backup) == 0
    assert len(bench.cells.calls) == 4
    assert [completion.ticket for completion in bench.finish()] == [2, 1]
    assert [layer_id for layer_id, _, _ in bench.cells.calls] == [*range(10), None]


def test_a_cancelled_load_ends_when_what_was_launched_has_passed() -> None:
    bench = Bench()
    bench.engine.submit([transfer(1, LOAD, full=([1], [1])), transfer(2, LOAD, full=([2], [2]))])
    bench.engine.cancel(1)
    with pytest.raises(TransferError, match="transfer 1: layer 0 will not come: cancelled"):
        bench.engine.wait_layer(1, 0)
    bench.load.run(4)
    assert bench.engine.poll() == []
    bench.load.run(1)
    assert bench.engine.poll() == [Completion(ticket=1, error="cancelled")]
    before = bench.cells.device.copy()
    assert bench.finish() == [Completion(ticket=2, error=None)]
    assert (bench.cells.device[:, 1] == before[:, 1]).all()


def test_cancelled_before_it_is_launched_it_ends_at_once() -> None:
    bench = Bench()
    bench.engine.submit([transfer(1, LOAD, full=([1], [1])), transfer(2, BACKUP, full=([2], [2]))])
    bench.engine.cancel(2)
    assert bench.engine.poll() == [Completion(ticket=2, error="cancelled")]
    assert bench.finish() == [Completion(ticket=1, error=None)]
    assert bench.backup.work == []


def test_a_layer_that_cannot_be_launched_raises_at_its_gate_and_the_ones_before_open() -> None:
    bench = Bench()

    def watch(layer_id: int | None, *_: object) -> None:
        if layer_id == 2:
            raise ValueError("no")

    bench.cells.watch = watch
    bench.engine.submit([transfer(1, LOAD, full=([1], [1]))])
    bench.engine.wait_layer(1, 1)
    with pytest.raises(TransferError, match="full: load of layers 2 … 3 failed: ValueError: no"):
        bench.engine.wait_layer(1, 2)
    assert bench.engine.poll() == [], "two layers of it are on their way"
    assert bench.finish() == [Completion(ticket=1, error="full: load of layers 2 … 3 failed: ValueError: no")]
    bench.engine.wait_layer(1, 1)


@pytest.mark.parametrize("call", ["poll", "wait", "drain", "submit", "launched gate", "later gate", "close"])
def test_a_device_that_fails_ends_everything(call: str) -> None:
    bench = Bench()
    bench.engine.submit([transfer(1, LOAD, full=([1], [1])), transfer(2, BACKUP, full=([2], [2]))])
    bench.device.broken = True
    message = "the device failed: RuntimeError: an illegal memory access"
    match call:
        case "wait":
            bench.engine.wait(2)
        case "drain" | "close":
            getattr(bench.engine, call)()
        case "submit":
            bench.engine.submit([])
        case "launched gate" | "later gate":
            with pytest.raises(TransferError, match=message):
                bench.engine.wait_layer(1, 0 if call == "launched gate" else 9)
    completions = {completion.ticket: completion.error for completion in bench.engine.poll()}
    assert completions.keys() == {1, 2}
    assert all(error.startswith((message, "the engine was closed")) for error in completions.values() if error)
    if call != "close":
        bench.engine.submit([transfer(3, LOAD, full=([1], [1]))])
        with pytest.raises(TransferError, match=message):
            bench.engine.wait_layer(3, 0)
        assert [completion.ticket for completion in bench.engine.poll()] == [3]
        bench.engine.close()
    assert bench.engine.poll() == []


def test_a_collected_engine_outlasts_its_copies() -> None:
    bench = Bench()
    bench.engine.submit([transfer(1, LOAD, full=([1], [1]))])
    del bench.engine
    gc.collect()
    assert bench.load.done == len(bench.load.work) > 0
    assert (bench.cells.device[:4, 1] == bench.cells.host[:4, 1]).all()


def test_lanes_have_a_window() -> None:
    with pytest.raises(ConfigurationError, match="window_steps must be 1 or more, not 0"):
        Bench(window_steps=0)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.is_done, self.was_awaited = stream, False, False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.was_awaited = True


class Stream:
    def __init__(self, device: str = "cuda", priority: int = 0) -> None:
        self.device, self.priority = device, priority
        self.waits_for: list[Stream] = []
        self.events: list[Event] = []

    def record_event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]

    def wait_event(self, event: Event) -> None:
        self.waits_for.append(event.stream)


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    return stream


@pytest.mark.parametrize("fence_count", [0, 1, 2])
def test_copies_wait_for_the_callers_stream_and_its_fences(current: Stream, fence_count: int) -> None:
    fences: list[Any] = [Stream() for _ in range(fence_count)]
    lanes = cuda_lanes("cuda", fences)
    for lane in lanes.values():
        lane.follow(lane.mark_caller())
        assert lane._stream.waits_for == [current, *fences]  # type: ignore[attr-defined]
    assert lanes[EffectKind.LOAD]._stream.priority < lanes[EffectKind.BACKUP]._stream.priority


def test_the_callers_stream_waits_for_the_lane_alone(current: Stream) -> None:
    fence: Any = Stream()
    lane = cuda_lanes("cuda", [fence])[EffectKind.LOAD]
    lane.mark().make_caller_wait()
    assert current.waits_for == [lane._stream]
    assert not fence.events


def test_a_mark_has_passed_when_all_its_streams_have(current: Stream) -> None:
    fence: Any = Stream()
    mark = cuda_lanes("cuda", [fence])[EffectKind.BACKUP].mark_caller()
    assert not mark.has_passed()
    current.events[0].is_done = True
    assert not mark.has_passed()
    fence.events[0].is_done = True
    assert mark.has_passed()
    mark.wait()
    assert current.events[0].was_awaited
    assert fence.events[0].was_awaited
