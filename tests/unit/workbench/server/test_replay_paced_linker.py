"""A linker on the replay's clock: calls are made when they are due, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree.controllers.prefix_linker import MemoryLinker, Progress, Span
from unified_tree.controllers.testing.linked_tensors import PAGE, LinkedTensors
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.controllers.workbench.server.paced_transfers import PacedLinker, narrowed
from unified_tree.controllers.workbench.server.server_settings import StorageCost
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS
from unified_tree.terms.errors import LinkError

CHUNK = 4 * PAGE
IDS = np.concatenate([np.arange(2 * CHUNK), np.full(CHUNK, OWN_TOKENS + 3)])
END = IDS.size


def paced() -> tuple[PacedLinker, LinkedTensors, VirtualClock]:
    tensors, clock = LinkedTensors(64), VirtualClock()
    cost = StorageCost(bytes_per_s=1e9, latency_s=1e-6)
    inner = MemoryLinker(tensors.linked, CHUNK, 100)
    return PacedLinker(inner, clock, cost, {pool.name: 1000 for pool in tensors.linked}, PAGE), tensors, clock


def span(tensors: LinkedTensors, begin: int = 0, first_page: int = 0) -> Span:
    first = begin // CHUNK * CHUNK
    ids = np.arange(first_page, first_page + (END - first) // PAGE)
    return Span(tokens=IDS, salt="a", begin=begin, end=END, pages=tensors.pages(ids))


def test_calls_take_their_time() -> None:
    linker, tensors, clock = paced()
    tensors.write(IDS, "a", np.arange(12))
    linker.store("store", span(tensors))
    size_bytes = 3 * 12 * 1000
    assert linker.next_event_ns == size_bytes + 1000
    linker.lookup("early", IDS, "a")
    clock.advance(999)
    assert linker.found("early") is None
    clock.advance(1)
    assert linker.found("early") == 0, "what is not stored yet is not found"
    clock.advance(size_bytes - 1)
    assert linker.progress("store") is Progress.RUNNING and linker.transfers == 1
    with pytest.raises(LinkError, match="runs"):
        linker.release("store")
    clock.advance(1)
    assert linker.progress("store") is Progress.DONE and linker.stored_bytes == size_bytes
    linker.release("store")
    linker.lookup("late", IDS, "a")
    clock.advance(1000)
    assert linker.found("late") == END
    tensors.spoil(np.arange(20, 40))
    begin = CHUNK + PAGE
    linker.retrieve("late", span(tensors, begin, 20))
    assert tensors.is_spoilt(np.arange(20, 40)), "it is not due"
    clock.advance(3 * 7 * 1000 + 1000)
    assert linker.progress("late") is Progress.DONE
    assert linker.retrieved_bytes == 3 * 7 * 1000, "pages before the beginning do not move"
    assert tensors.holds(IDS, "a", np.arange(21, 28), begin // PAGE)
    assert linker.next_event_ns is None


def test_bytes_of_one_direction_pass_one_after_the_other() -> None:
    linker, tensors, clock = paced()
    linker.store("one", span(tensors))
    linker.store("two", span(tensors))
    clock.advance(36_000 + 1000)
    assert [linker.progress(name) for name in ("one", "two")] == [Progress.DONE, Progress.RUNNING]
    clock.advance(36_000)
    assert linker.progress("two") is Progress.DONE


def test_what_is_released_or_closed_is_never_called() -> None:
    linker, tensors, _ = paced()
    linker.lookup("one", IDS, "a")
    linker.release("one")
    assert linker.next_event_ns is None
    linker.store("two", span(tensors))
    linker.close()
    assert linker.next_event_ns is None


def test_tokens_become_those_of_a_model() -> None:
    given = np.array([0, 7, OWN_TOKENS, OWN_TOKENS + 9])
    assert narrowed(given).tolist() == [0, 7, 1 << 31, (1 << 31) + 9]
