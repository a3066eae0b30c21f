"""An engine that dies: a TransferError in the caller's thread, nothing leaked, and a cache that goes on or closes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA
from page_memory import Ids, MemoryMover, PageMemory

from unified_tree import TransferError
from unified_tree.controllers import WritePolicy
from unified_tree.controllers.transfer_engines import CpuEngine


class Fragile:
    """A mover in whose hands the thread dies, once it is told to."""

    def __init__(self, mover: MemoryMover) -> None:
        self.layer_ids = mover.layer_ids
        self.mover = mover
        self.broken = False

    def backup(self, source: Ids, target: Ids) -> None:
        self._use()
        self.mover.backup(source, target)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        self._use()
        self.mover.load_layers(layer_ids, source, target)

    def _use(self) -> None:
        if self.broken:
            raise SystemExit("out of everything")


class Rig:
    """A cache over a real thread."""

    def __init__(self, **tier: Any) -> None:
        kinds = [FULL, MAMBA]
        memory = PageMemory(kinds)
        self.movers = {name: Fragile(mover) for name, mover in memory.movers().items()}
        self.tiered = Tiered(kinds, engine=CpuEngine(self.movers), memory=memory, **tier)

    def break_down(self) -> None:
        for mover in self.movers.values():
            mover.broken = True


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.tiered.cache.close()


def test_a_real_thread_brings_every_byte_back(rig: Rig) -> None:
    tiered = rig.tiered
    for text in ("abcdefgh", "abcdxy", "uvw"):
        tiered.serve(text)
    tiered.settle()
    for text, cached in (("abcdefgh?", 8), ("abcdxy?", 6), ("uvw", 2)):
        tiered.forget()
        assert tiered.serve(text) == cached
    tiered.end()


def test_in_the_middle_of_a_load(rig: Rig) -> None:
    tiered = rig.tiered
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    rig.break_down()
    request = tiered.start("abcdefghi")
    for _ in range(2):
        with pytest.raises(TransferError, match="died"):
            tiered.cache.wait_layer(request.lease, 0)
    with pytest.raises(TransferError, match="died"):
        tiered.cache.commit(request.lease, 8)
    tiered.check()
    tiered.runner.finish(request)
    again = tiered.start("abcdefghi")
    with pytest.raises(TransferError, match="died"):
        tiered.runner.verify(again)
    tiered.runner.finish(again)
    assert tiered.serve("uvwxyz") == 0
    assert tiered.serve("uvwxyz?") == 6, "the device does not need it"
    tiered.end()


def test_in_the_middle_of_a_backup(rig: Rig) -> None:
    tiered = rig.tiered
    rig.break_down()
    tiered.serve("abcdefgh")
    tiered.settle()
    assert tiered.on_host() == 0
    assert tiered.cache.stats().drops["backup failed"] >= 1
    assert tiered.serve("abcdefghi") == 8
    tiered.end()


def test_waiting_for_all_comes_back(rig: Rig) -> None:
    rig.tiered.cache.close()
    rig = Rig(write_policy=WritePolicy.WRITE_BACK, low_water=1.0)
    rig.break_down()
    for text in ("abcdefgh", "ijklmnop"):
        rig.tiered.serve(text)
    rig.tiered.cache.drain()
    rig.tiered.cache.flush()
    rig.tiered.end()


def test_an_engine_that_takes_nothing_any_more() -> None:
    tiered = Tiered([FULL, MAMBA])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    tiered.serve("uvwxyz")
    request = tiered.start("abcdefghi")
    tiered.engine.error = "gone for good"
    with pytest.raises(TransferError, match="gone for good"):
        tiered.cache.poll()
    tiered.check()
    with pytest.raises(TransferError, match="gone for good"):
        tiered.cache.wait_layer(request.lease, 0)
    tiered.runner.finish(request)
    other = tiered.start("abcdefghi")
    tiered.runner.finish(other)
    tiered.check()
    tiered.end()
