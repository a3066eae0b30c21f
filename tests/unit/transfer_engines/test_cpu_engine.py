"""The worker thread: who waits for what, and what happens when it ends in any way."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from waiting import PATIENCE_S, PROGRAM_S

from unified_tree.controllers.testing import Cells, Ids
from unified_tree.controllers.testing.transfer_rig import transfer
from unified_tree.controllers.transfer_engines import Completion, CpuEngine
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError

BACKUP, LOAD = EffectKind.BACKUP, EffectKind.LOAD


class Stop:
    """Blocks a mover in the middle of a copy until it is told to go on."""

    def __init__(self, when: Callable[[int | None, list[int]], bool] = lambda _layer, _targets: True):
        self._when = when
        self._reached, self._go = threading.Event(), threading.Event()

    def __call__(self, layer_id: int | None, _source: Ids, target: Ids) -> None:
        if self._when(layer_id, target.tolist()):
            self._reached.set()
            assert self._go.wait(PATIENCE_S)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def go_on(self) -> None:
        self._go.set()


@pytest.fixture
def engines() -> Iterator[list[CpuEngine]]:
    made: list[CpuEngine] = []
    yield made
    for engine in made:
        engine.close()


def outcomes(engine: CpuEngine) -> dict[int, str | None]:
    engine.drain()
    return {completion.ticket: completion.error for completion in engine.poll()}


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "unified_tree transfers"}


def test_whoever_needs_layer_0_does_not_wait_for_layer_47(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda layer_id, _: layer_id == 1)
    cells = Cells(tuple(range(48)), 4, stop)
    engines.append(engine := CpuEngine({"full": cells}))
    engine.submit([transfer(1, LOAD, full=([2], [3]))])
    engine.wait_layer(1, 0)
    stop.wait_until_reached()
    assert cells.device[0, 3] == cells.host[0, 2]
    assert (cells.device[1:, 3] != cells.host[1:, 2]).all()
    assert engine.poll() == []
    engine.wait_layer(1, 0)
    stop.go_on()
    engine.wait_layer(1, 47)
    assert (cells.device[:, 3] == cells.host[:, 2]).all()
    assert outcomes(engine) == {1: None}


def test_layers_ascend_over_all_components(engines: list[CpuEngine]) -> None:
    order: list[tuple[str, int | None]] = []
    cells = {
        name: Cells(layers, 4, partial(lambda name, layer_id, *_: order.append((name, layer_id)), name))
        for name, layers in (("full", (3, 7)), ("mamba", (0, 3, 5)))
    }
    engines.append(engine := CpuEngine(cells))
    engine.submit([transfer(1, LOAD, full=([0], [1]), mamba=([0], [1]))])
    assert outcomes(engine) == {1: None}
    assert order == [("mamba", 0), ("full", 3), ("mamba", 3), ("full", 7), ("mamba", 5)], "5 and 7 go together"
    order.clear()
    engine.submit([transfer(2, BACKUP, full=([0], [1]), mamba=([0], [1]))])
    assert outcomes(engine) == {2: None}
    assert order == [("full", None), ("mamba", None)], "the paths first"


def test_layers_come_in_groups_as_long_as_all_before_them(engines: list[CpuEngine]) -> None:
    cells = Cells(tuple(range(0, 46, 2)), 16)
    engines.append(engine := CpuEngine({"full": cells}))
    engine.submit([transfer(1, LOAD, full=([1], [2]))])
    engine.drain()
    assert [len(group) for group in cells.groups] == [1, 1, 2, 4, 8, 7]
    assert sum(cells.groups, ()) == cells.layer_ids


@pytest.mark.parametrize(("pages", "sizes"), [(2, [1, 1, 2, 4, 5, 5, 2]), (3, [1, 1, 2, 3, 3, 3, 3, 3, 1]), (11, [1] * 20)])
def test_a_group_is_no_more_than_a_chunk_of_all_its_pages(pages: int, sizes: list[int], engines: list[CpuEngine]) -> None:
    cells = Cells(tuple(range(20)), 16)
    engines.append(engine := CpuEngine({"full": cells}, chunk_blocks=11))
    engine.submit([transfer(page, LOAD, full=([page], [page])) for page in range(pages)])
    engine.drain()
    assert [len(group) for group in cells.groups] == sizes
    assert (cells.device[:, :pages] == cells.host[:, :pages]).all()


def test_a_group_opens_all_its_layers_of_every_transfer(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda layer_id, _: layer_id == 4)
    full, mamba = Cells(tuple(range(8)), 4, stop), Cells((2, 3, 6), 4)
    engines.append(engine := CpuEngine({"full": full, "mamba": mamba}))
    engine.submit(
        [
            transfer(1, LOAD, full=([0], [1])),
            transfer(2, LOAD, mamba=([0], [1])),
            transfer(3, LOAD, full=([2], [3]), mamba=([2], [3])),
        ]
    )
    stop.wait_until_reached()
    for ticket in (1, 2, 3):
        for layer_id in range(4):
            engine.wait_layer(ticket, layer_id)
    assert (full.device[:4, [1, 3]] == full.host[:4, [0, 2]]).all()
    assert (full.device[4:, [1, 3]] != full.host[4:, [0, 2]]).all()
    assert (mamba.device[:2, [1, 3]] == mamba.host[:2, [0, 2]]).all()
    assert engine.poll() == []
    stop.go_on()
    assert outcomes(engine) == {1: None, 2: None, 3: None}
    assert (mamba.device[:, [1, 3]] == mamba.host[:, [0, 2]]).all()


def test_a_batch_is_merged_and_cut_into_chunks(engines: list[CpuEngine]) -> None:
    cells = Cells((0, 1), 16)
    engines.append(engine := CpuEngine({"full": cells}, chunk_blocks=4))
    engine.submit([transfer(1, LOAD, full=([0], [1])), transfer(2, LOAD, full=([2, 3, 4, 5], [6, 7, 8, 9]))])
    engine.drain()
    assert [call for call in cells.calls if call[0] == 0] == [(0, [0, 2, 3, 4], [1, 6, 7, 8]), (0, [5], [9])]
    assert [layer_id for layer_id, _, _ in cells.calls] == [0, 0, 1, 1]
    cells.calls.clear()
    engine.submit([transfer(3, BACKUP, full=([0], [1])), transfer(4, BACKUP, full=([2, 3, 4, 5], [6, 7, 8, 9]))])
    engine.drain()
    assert cells.calls == [(None, [0, 2], [1, 6]), (None, [3, 4], [7, 8]), (None, [5], [9])]
    assert [completion.ticket for completion in engine.poll()] == [1, 2, 3, 4]


def test_loads_overtake_backups_that_wait(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda layer_id, _: layer_id is None)
    cells = Cells((0, 1), 16, stop)
    engines.append(engine := CpuEngine({"full": cells}, chunk_blocks=2))
    engine.submit([transfer(1, BACKUP, full=([0, 1, 2], [0, 1, 2])), transfer(2, BACKUP, full=([3], [3]))])
    stop.wait_until_reached()
    engine.submit([transfer(3, LOAD, full=([5], [6]))])
    stop.go_on()
    engine.wait(3)
    engine.drain()
    assert [layer_id for layer_id, _, _ in cells.calls] == [None, 0, 1, None, None, None]
    assert outcomes(engine) == {1: None, 2: None, 3: None}


def test_cancelled_before_it_starts(engines: list[CpuEngine]) -> None:
    stop = Stop()
    cells = Cells((0,), 16, stop)
    engines.append(engine := CpuEngine({"full": cells}))
    engine.submit([transfer(1, BACKUP, full=([1], [1]))])
    stop.wait_until_reached()
    engine.submit([transfer(2, LOAD, full=([1], [1])), transfer(3, BACKUP, full=([1], [2]))])
    engine.cancel(2)
    engine.cancel(3)
    assert engine.poll() == [Completion(ticket=2, error="cancelled")], "at once; 3 stands behind 1"
    stop.go_on()
    assert outcomes(engine) == {1: None, 3: "cancelled"}
    assert len(cells.calls) == 1


def test_cancelled_in_the_middle(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda layer_id, targets: layer_id == 1 and 5 in targets)
    cells = Cells((0, 1, 2), 16, stop)
    engines.append(engine := CpuEngine({"full": cells}, chunk_blocks=1))
    engine.submit([transfer(1, LOAD, full=([4, 5], [4, 5])), transfer(2, LOAD, full=([6], [6]))])
    stop.wait_until_reached()
    engine.wait_layer(1, 0)
    engine.cancel(1)
    assert engine.poll() == [], "its chunk is still being copied"
    with pytest.raises(TransferError, match="transfer 1: layer 0 will not come: cancelled"):
        engine.wait_layer(1, 0)
    stop.go_on()
    engine.wait(1)
    assert engine.poll()[0] == Completion(ticket=1, error="cancelled")
    before = cells.device.copy()
    engine.drain()
    assert (cells.device[:, [4, 5]] == before[:, [4, 5]]).all()
    assert [call for call in cells.calls if call[0] == 2] == [(2, [6], [6])], "the other one goes on"


def test_cancelled_between_chunks_of_a_backup(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda _, targets: 1 in targets)
    cells = Cells((0, 1), 16, stop)
    engines.append(engine := CpuEngine({"full": cells}, chunk_blocks=1))
    engine.submit([transfer(1, BACKUP, full=([0, 1, 2, 3], [0, 1, 2, 3]))])
    stop.wait_until_reached()
    engine.cancel(1)
    stop.go_on()
    assert outcomes(engine) == {1: "cancelled"}
    assert [target for _, _, target in cells.calls] == [[0], [1]]


def test_cancelled_in_its_last_chunk_it_is_cancelled_and_after_that_it_is_not(engines: list[CpuEngine]) -> None:
    stop = Stop()
    engines.append(engine := CpuEngine({"full": Cells((0,), 4, stop)}))
    engine.submit([transfer(1, LOAD, full=([0], [0]))])
    stop.wait_until_reached()
    engine.cancel(1)
    stop.go_on()
    assert outcomes(engine) == {1: "cancelled"}
    engine.submit([transfer(2, LOAD, full=([0], [0]))])
    engine.wait(2)
    engine.cancel(2)
    engine.wait_layer(2, 0)
    assert outcomes(engine) == {2: None}


def test_a_layer_that_fails_raises_at_its_gate(engines: list[CpuEngine]) -> None:
    def watch(layer_id: int | None, _source: Ids, _target: Ids) -> None:
        if layer_id == 2:
            raise OSError("the bus is on fire")

    engines.append(engine := CpuEngine({"full": Cells((0, 1, 2, 3), 4, watch)}))
    engine.submit([transfer(1, LOAD, full=([0], [1]))])
    engine.wait_layer(1, 1)
    message = "full: load of layers 2 … 3 failed: OSError: the bus is on fire"
    for layer_id in (2, 3):
        with pytest.raises(TransferError, match=message):
            engine.wait_layer(1, layer_id)
    assert outcomes(engine) == {1: message}
    engine.wait_layer(1, 1)


def test_a_component_that_fails_closes_the_gate_though_the_others_of_its_layer_arrive(engines: list[CpuEngine]) -> None:
    def watch(layer_id: int | None, _source: Ids, target: Ids) -> None:
        if layer_id == 1 and 1 in target:
            raise OSError("no")

    engines.append(engine := CpuEngine({"full": Cells((0, 1, 2), 8, watch), "draft": Cells((0, 1, 2), 8)}))
    both = {"full": ([0], [1]), "draft": ([0], [1])}
    engine.submit([transfer(1, LOAD, **both), transfer(2, LOAD, full=([2], [3]), draft=([2], [3]))])
    engine.drain()
    engine.wait_layer(1, 0)
    with pytest.raises(TransferError, match="layer 1 will not come: full: load of layer 1 failed: OSError: no"):
        engine.wait_layer(1, 1)
    engine.wait_layer(2, 2)
    assert outcomes(engine) == {1: "full: load of layer 1 failed: OSError: no", 2: None}


def test_threads_may_wait_at_gates_side_by_side(engines: list[CpuEngine]) -> None:
    stop = Stop(lambda layer_id, _: layer_id == 0)
    cells = Cells((0, 1, 2), 8, stop)
    engines.append(engine := CpuEngine({"full": cells}))
    with ThreadPoolExecutor(4) as pool:
        engine.submit([transfer(1, LOAD, full=([1], [2])), transfer(2, LOAD, full=([3], [4]))])
        waiting = [pool.submit(engine.wait_layer, ticket, layer_id) for ticket in (1, 2) for layer_id in (0, 2)]
        stop.wait_until_reached()
        stop.go_on()
        for future in waiting:
            future.result(PATIENCE_S)


class Death(BaseException):
    """No Exception, so no transfer's failure: the end of the thread."""


@pytest.mark.parametrize("call", ["wait_layer", "wait", "drain", "poll"])
@pytest.mark.parametrize("error", [Death("out of everything"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_thread_that_dies_fails_everything_and_hangs_nobody(
    error: BaseException, call: str, engines: list[CpuEngine]
) -> None:
    stop = Stop()

    def watch(layer_id: int | None, source: Ids, target: Ids) -> None:
        stop(layer_id, source, target)
        raise error

    engines.append(engine := CpuEngine({"full": Cells((0, 1), 4, watch)}))
    engine.submit([transfer(1, LOAD, full=([0], [0])), transfer(2, BACKUP, full=([1], [1])), transfer(3, LOAD)])
    stop.wait_until_reached()
    threading.Timer(0.01, stop.go_on).start()
    message = f"the transfer thread died: {type(error).__name__}"
    match call:
        case "wait_layer":
            with pytest.raises(TransferError, match=f"transfer 1: layer 1 will not come: {message}"):
                engine.wait_layer(1, 1)
        case "wait":
            engine.wait(2)
        case "drain":
            engine.drain()
    seen: list[Completion] = []
    while len(seen) < 3:
        seen += engine.poll()
    assert [completion.ticket for completion in seen if completion.error is None] == [3]
    assert all(completion.error.startswith(message) for completion in seen if completion.error)
    engine.submit([transfer(4, LOAD, full=([0], [0])), transfer(5, BACKUP, full=([0], [0]))])
    with pytest.raises(TransferError, match=message):
        engine.wait_layer(4, 0)
    engine.wait(5)
    assert {completion.ticket for completion in engine.poll()} == {4, 5}
    engine.close()
    assert engine.poll() == []


def test_a_collected_engine_ends_its_thread() -> None:
    before = workers()
    engine = CpuEngine({"full": Cells((0,), 4)})
    engine.submit([transfer(1, LOAD, full=([0], [0]))])
    engine.drain()
    [thread] = workers() - before
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_engine_collected_in_the_middle_stops_after_that_chunk() -> None:
    before, stop = workers(), Stop()
    cells = Cells((0, 1, 2), 4, stop)
    engine = CpuEngine({"full": cells})
    engine.submit([transfer(1, LOAD, full=([0], [0]))])
    stop.wait_until_reached()
    [thread] = workers() - before
    del engine
    gc.collect()
    stop.go_on()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(cells.calls) == 1


def test_closing_ends_the_thread_after_the_chunk_it_is_in() -> None:
    before, stop = workers(), Stop()
    cells = Cells((0, 1, 2), 4, stop)
    engine = CpuEngine({"full": cells})
    engine.submit([transfer(1, LOAD, full=([0], [0])), transfer(2, BACKUP, full=([1], [1]))])
    stop.wait_until_reached()
    [thread] = workers() - before
    closing = threading.Thread(target=engine.close)
    closing.start()
    engine.wait(2)
    assert engine.poll() == [Completion(ticket=2, error="the engine was closed")], "it had not started"
    assert closing.is_alive()
    stop.go_on()
    closing.join(PATIENCE_S)
    assert not thread.is_alive()
    assert engine.poll() == [Completion(ticket=1, error="the engine was closed")]
    assert len(cells.calls) == 1


SCRIPT = """
import atexit, os, sys, threading, time

atexit.register(lambda: print("threads", threading.active_count()))  # runs last
import numpy as np
from unified_tree.controllers.transfer_engines import CpuEngine, Transfer
from unified_tree.nodes.effect import Copy, EffectKind
from unified_tree.terms.errors import TransferError

class Slow:
    layer_ids = tuple(range(1000))
    def backup(self, source, target): pass
    def load_layers(self, layer_ids, source, target): time.sleep(0.01)

def load(ticket):
    copy = Copy(component="full", source=np.arange(2), target=np.arange(2))
    return Transfer(ticket=ticket, kind=EffectKind.LOAD, copies=(copy,))

engine = CpuEngine({"full": Slow()})
"""


def run_script(rest: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT + rest]  # newer Pythons warn of forks
    result = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_process_exits_with_an_engine_at_work() -> None:
    assert run_script("engine.submit([load(1)]); engine.wait_layer(1, 0); print('left')") == "left\nthreads 1\n"


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="no fork here")
def test_a_forked_child_is_told_that_its_thread_is_gone() -> None:
    rest = """
if os.fork() == 0:
    engine.submit([load(1), load(2)])
    for ask in (lambda: engine.wait_layer(1, 0), lambda: engine.wait_layer(2, 0)):
        try: ask()
        except TransferError as error: print(error, flush=True)
    engine.wait(1); engine.drain(); print(len(engine.poll()), flush=True)
    engine.close()
    os._exit(0)
os.wait()
engine.close()
"""
    lines = [f"transfer {ticket}: layer 0 will not come: the transfer thread is gone" for ticket in (1, 2)]
    assert run_script(rest).splitlines() == [*lines, "2", "threads 1"]


@pytest.mark.parametrize("chunk_blocks", [0, -1, 1.5, True])
def test_chunks_have_a_size(chunk_blocks: int) -> None:
    before = workers()
    with pytest.raises(ConfigurationError, match=r"chunk_blocks must be (an integer|1 or more)"):
        CpuEngine({}, chunk_blocks)
    assert workers() == before
