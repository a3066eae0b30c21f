"""Lanes over streams that a test records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes
from unified_tree.nodes.effect import EffectKind


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
