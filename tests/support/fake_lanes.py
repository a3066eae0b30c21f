"""Streams and events without a GPU: work waits in a list until a test, or a look at an event, lets it run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unified_tree.controllers.testing import Cells, Ids
from unified_tree.controllers.transfer_engines.cuda_engine import Mark
from unified_tree.nodes.effect import EffectKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class FakeMark:
    def __init__(self, device: FakeDevice, lane: FakeLane, position: int):
        self.device, self.lane, self.position = device, lane, position

    def has_passed(self) -> bool:
        self.device.check()
        if self.device.runs_when_looked_at and self.lane.done < self.position:
            self.lane.run(1)
        return self.lane.done >= self.position

    def make_caller_wait(self) -> None:
        self.device.check()
        self.device.caller.follow(self)

    def wait(self) -> None:
        self.device.check()
        self.lane.run(self.position - self.lane.done)


class FakeLane:
    """A stream: `work` in order, of which `done` items have run."""

    def __init__(self, device: FakeDevice):
        self.device = device
        self.work: list[Callable[[], object]] = []
        self.done = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        before, self.device.current = self.device.current, self
        yield
        self.device.current = before

    def mark(self) -> FakeMark:
        self.device.check()
        return FakeMark(self.device, self, len(self.work))

    def mark_caller(self) -> FakeMark:
        return self.device.caller.mark()

    def follow(self, mark: Mark) -> None:
        self.work.append(mark.wait)

    def run(self, count: int | None = None) -> None:
        """Let the next `count` items of work run, or all."""
        end = len(self.work) if count is None else self.done + count
        while self.done < end:
            self.done += 1
            self.work[self.done - 1]()


class FakeDevice:
    """Two lanes and the caller's stream."""

    def __init__(self, runs_when_looked_at: bool = True):
        self.runs_when_looked_at = runs_when_looked_at
        self.broken = False
        self.caller = self.current = FakeLane(self)
        self.lanes = {direction: FakeLane(self) for direction in EffectKind}

    def check(self) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")


class PromptLane(FakeLane):
    """A stream whose work has run when it was given."""

    def follow(self, mark: Mark) -> None:
        mark.wait()


def delay_copies(device: FakeDevice, movers: type, patch: pytest.MonkeyPatch) -> None:
    """Let the copies of a class of movers run on the current stream of a fake device, and the caller's work at once."""
    device.caller = device.current = PromptLane(device)

    def delayed(copy: Callable[..., None]) -> Callable[..., None]:
        return lambda *arguments: device.current.work.append(lambda: copy(*arguments))

    for name in ("backup", "load_layers"):
        patch.setattr(movers, name, delayed(getattr(movers, name)))


class LaneCells(Cells):
    """Cells whose copies run on the current stream of a fake device. Bad pages are refused at once, as by a PagePair."""

    def __init__(self, device: FakeDevice, layer_ids: tuple[int, ...], pages: int):
        super().__init__(layer_ids, pages)
        self._device = device

    def backup(self, source: Ids, target: Ids) -> None:
        self._check(None, source, target)
        self._device.current.work.append(lambda: self._backup(source, target))

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        self.groups.append(layer_ids)
        for layer_id in layer_ids:
            self._check(layer_id, source, target)
        self._device.current.work.append(lambda: self._load(layer_ids, source, target))

    def _backup(self, source: Ids, target: Ids) -> None:
        self.host[:, target] = self.device[:, source]

    def _load(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        for index in map(self.layer_ids.index, layer_ids):
            self.device[index, target] = self.host[index, source]
