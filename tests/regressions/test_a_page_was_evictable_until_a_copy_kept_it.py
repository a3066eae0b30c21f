"""SGLang counts what can be evicted when it admits a request, and evicts when it allocates. A copy to host that began in
between kept pages that were counted, and the scheduler ended with "Prefill out of memory"."""

from __future__ import annotations

import pytest
from fake_lanes import FakeDevice, delay_copies
from sglang_tiers import KINDS, PAGES, SIZE, TOKENS, Served

from unified_tree import Key
from unified_tree.controllers.adapters.sglang.device_pools import FULL, WINDOW
from unified_tree.controllers.adapters.sglang.engine_mover import EngineMover


@pytest.fixture(params=["thread", "streams"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeDevice | None:
    """Streams whose copies run when somebody waits for them, or None for the thread that copies on a CPU."""
    if request.param == "thread":
        return None
    made = FakeDevice(runs_when_looked_at=False)
    delay_copies(made, EngineMover, monkeypatch)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_pages_that_are_being_copied_come_free_where_they_are_needed(kind: str, device: FakeDevice | None) -> None:
    served = Served(kind, lanes=None if device is None else device.lanes)
    boundary = served.compute()
    owners = [name for name, tensors in served.tensors.items() if tensors.shares is None]
    evictable = {name: served.tree.pool(name).evictable_pages for name in owners}
    served.tiers.controller.committed(boundary)
    served.tiers.poll()
    assert served.tiers.is_busy
    assert all(served.tree.pool(name).evictable_pages < count for name, count in evictable.items())
    freed = served.device.evict(evictable)
    assert all(freed[name] >= count for name, count in evictable.items())
    assert served.tree.match_prefix(Key(TOKENS)).reachable.length == len(TOKENS), "the copies have arrived"
    served.check_nothing_is_lost()
    served.tiers.close()


def test_pages_of_a_load_that_was_cancelled_come_free_where_they_are_needed(device: FakeDevice | None) -> None:
    served = Served("full", lanes=None if device is None else device.lanes)
    served.publish()
    served.forget()
    lock = served.begin()
    assert lock is not None
    served.tiers.start_batch()
    lock.release()
    served.device.evict({FULL: PAGES})
    assert served.pools.free_pages(FULL) == PAGES
    served.check_nothing_is_lost()
    served.tiers.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_copy_to_host_begins_between_admission_and_allocation(kind: str) -> None:
    served = Served(kind)
    boundary = served.compute()
    served.tiers.controller.committed(boundary)
    evictable = {name: served.tree.pool(name).evictable_pages for name in served.tensors}
    served.tiers.start_batch()
    assert {name: served.tree.pool(name).evictable_pages for name in served.tensors} == evictable
    served.check_nothing_is_lost()
    served.tiers.close()


def test_the_windows_that_a_load_keeps_are_counted_with_those_that_it_fills() -> None:
    served = Served("windows", window_tokens=3 * SIZE)
    half = served.compute(len(TOKENS) // 2)
    served.publish()
    state = served.tree.state
    node = state.nodes.get(half.node)
    window = None if node is None else node.device[state.layout.index[WINDOW]]
    assert window is not None
    window.touched = 0  # older than that of the second half
    state.device_pools[window.component].reorder(window)
    served.device.evict({WINDOW: 1})
    match = served.tree.match_prefix(Key(TOKENS))
    assert (match.device.length, match.reachable.length) == (0, len(TOKENS))
    pool = served.tree.pool(WINDOW)
    room = served.pools.free_pages(WINDOW) + pool.evictable_pages
    told = served.tiers.window_pages(match)
    assert served.tiers.host_needs(match)[WINDOW] < told, "a part of them is on device"
    assert served.pools.free_pages(WINDOW) + pool.evictable_pages == room
    lock = served.begin()
    assert lock is not None
    assert served.pools.free_pages(WINDOW) + pool.evictable_pages == room - told
    lock.wait()
    assert served.pools.free_pages(WINDOW) + pool.evictable_pages == room - told
    lock.release()
    served.check_nothing_is_lost()
    served.tiers.close()
