"""The adapter of SGLang: copies around an admission, clearing a store, fp8 formats, and the record of the interface."""

from __future__ import annotations

import importlib.util
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sglang_pools as pools
import torch
from fake_lanes import FakeDevice, delay_copies
from sglang_tiers import KINDS, PAGES, SIZE, TOKENS, Served

from unified_tree import Key
from unified_tree.controllers.adapters.sglang.device_pools import FULL, WINDOW
from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover, RankParts, engine_tensors
from unified_tree.declare.page_format import PageFormat
from unified_tree.terms.errors import StorageError

# SGLang counts what can be evicted when it admits a request, and evicts when it allocates. A copy to host that began in
# between kept pages that were counted, and the scheduler ended with "Prefill out of memory".


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


# `POST /hicache/storage-backend/clear` of an SGLang with this cache answered "cleared", and the store kept all of it.


def found(kind: str, files: Path) -> int:
    """How many tokens the next life of a server gets from the store."""
    served = Served(kind, files)
    tokens = served.found()
    served.check_nothing_is_lost()
    served.tiers.close()
    return tokens


@pytest.mark.parametrize("is_copied_again", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_store_that_was_cleared_only_what_is_copied_after_that_is_found(
    kind: str, is_copied_again: bool, tmp_path: Path
) -> None:
    served = Served(kind, tmp_path).stored()
    assert served.store.clear()
    assert served.tiers.storage is not None
    if is_copied_again:
        served.tiers.storage.flush()
    served.tiers.close()
    assert found(kind, tmp_path) == (len(TOKENS) if is_copied_again else 0)


def test_a_store_that_fails_to_clear_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served("full", tmp_path).stored()
    assert served.tiers.storage is not None

    def clear() -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(served.tiers.storage.tier.engine, "clear", clear)
    with caplog.at_level(logging.ERROR):
        assert not served.store.clear()
    assert "the store was not cleared: the disk is gone" in caplog.text
    monkeypatch.undo()
    served.tiers.close()
    assert found("full", tmp_path) == len(TOKENS)


def stored(dtype: torch.dtype) -> PageFormat:
    """The format under which pages of an fp8 cache are stored."""
    bytes_of_it = {name: [torch.zeros(8, 1, 2, dtype=torch.uint8)] for name in ("k_buffer", "v_buffer")}
    pool = pools.attention(8, 1, dtype=dtype, **bytes_of_it)
    return engine_tensors(pool, None, 1, RankParts.of(0, 1), has_windows=False, has_states=False)["full"].format


def test_two_fp8_caches_shared_pages_in_a_store() -> None:
    """SGLang keeps fp8 of both kinds as plain bytes: servers with `fp8_e4m3` and with `fp8_e5m2` read each other's pages."""
    one, two = stored(torch.float8_e4m3fn), stored(torch.float8_e5m2)
    assert [part.dtype for part in one.parts] == ["float8_e4m3fn"] * 2
    assert one != two
    assert one.page_bytes == two.page_bytes


# The record of SGLang's interface held the names that the backend used when it was made. A name that the backend began to use
# later was told as SGLang's addition, and the check failed against the very version that it had recorded.

SCRIPT = Path(__file__).parents[1] / "e2e" / "sglang" / "contract.py"


ALLOCATOR = """
class BaseTokenToKVPoolAllocator(ABC):
    @abstractmethod
    def clear(self):
        pass

    def available_size(self):
        pass
"""


@pytest.fixture
def interface(tmp_path: Path) -> Any:
    """SGLang's interface, recorded for a backend that asks an allocator for its size."""
    spec = importlib.util.spec_from_file_location("sglang_contract", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sglang_contract"] = module
    spec.loader.exec_module(module)
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "pools.py").write_text("def free(pool):\n    return pool.available_size()\n")
    interface = replace(module.INTERFACE, record=tmp_path / "contract.json", adapter=tmp_path / "backend")
    assert interface.main([sources(tmp_path, ALLOCATOR), "--record"]) == 0
    return interface


def sources(folder: Path, allocator: str) -> str:
    memory = folder / "sglang" / "srt" / "mem_cache"
    (memory / "allocator").mkdir(parents=True, exist_ok=True)
    (memory / "base_prefix_cache.py").write_text("class BasePrefixCache(ABC):\n    pass\n")
    (memory / "allocator" / "base.py").write_text(allocator)
    return str(folder)


def test_a_name_that_the_backend_begins_to_use_is_no_change(interface: Any, tmp_path: Path) -> None:
    (tmp_path / "backend" / "rows.py").write_text("def forget(kept):\n    kept.clear()\n")
    assert interface.main([sources(tmp_path, ALLOCATOR)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("available_size(self)", "available_size(self, *, kind)", 1),
        ("available_size", "room", 1),
        ("clear(self)", "clear(self, *, hard)", 0),
        ("    def available", "    @abstractmethod\n    def shrink(self):\n        pass\n\n    def available", 0),
    ],
)
def test_a_change_counts_if_the_backend_uses_it(interface: Any, tmp_path: Path, old: str, new: str, code: int) -> None:
    assert interface.main([sources(tmp_path, ALLOCATOR.replace(old, new))]) == code
