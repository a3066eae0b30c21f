"""An engine may forget what was polled, and nothing else; a cache gets along with one that remembers a single transfer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA
from page_memory import PageMemory

from unified_tree import ConfigurationError, TransferError
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import CpuEngine, NullEngine, Transfer, TransferEngine, VirtualClock
from unified_tree.nodes.effect import EffectKind

MAKERS: dict[str, Callable[[int], TransferEngine]] = {
    "null": NullEngine,
    "cpu": lambda remembered: CpuEngine({}, remembered=remembered),
    "simulated": lambda remembered: SimulatedEngine(0, VirtualClock(), remembered=remembered),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("remembered", [1, 3])
def test_what_was_not_polled_is_known(name: str, remembered: int) -> None:
    engine = MAKERS[name](remembered)
    engine.submit([Transfer(ticket=ticket, kind=EffectKind.LOAD, copies=()) for ticket in range(10)])
    engine.drain()
    for ticket in range(10):
        engine.wait(ticket)
        engine.wait_layer(ticket, 0)
    assert len(engine.poll()) == 10
    for ticket in range(10 - remembered):
        with pytest.raises(TransferError, match=f"ended over {remembered} transfers ago"):
            engine.wait(ticket)
    for ticket in range(10 - remembered, 10):
        engine.wait_layer(ticket, 0)
    engine.close()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("remembered", [0, -1, 2.0, True])
def test_at_least_one_is_remembered(name: str, remembered: int) -> None:
    with pytest.raises(ConfigurationError, match=r"remembered must be (an integer|1 or more)"):
        MAKERS[name](remembered)


def test_gates_of_a_load_whose_parts_were_forgotten() -> None:
    kinds = [FULL, MAMBA]
    memory = PageMemory(kinds)
    engine = SimulatedEngine(0, VirtualClock(), movers=memory.movers(), remembered=1)
    server = Tiered(kinds, engine=engine, memory=memory).served("abcd", "abcdefgh", "abcdefghij", "xyzw")
    requests = [server.start(text) for text in ("abcd?", "abcdefgh?", "abcdefghij?", "xyzw?")]
    server.cache.poll()
    first = requests[0].lease
    server.cache.wait_layer(first, 3)
    for _ in range(3):
        server.cache.poll()
        for request in requests:
            server.cache.wait_layer(request.lease, 0)
    for request in requests:
        server.runner.verify(request)
        server.runner.finish(request)
    server.end()
