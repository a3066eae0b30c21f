"""LMCache in this process: a cache over it, what is refused, and an engine that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcache_server
import numpy as np
import pytest
from lmcache_server import until

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.adapters.lmcache import InProcessLinker, open_in_process
from unified_tree.controllers.prefix_linker import LinkedPrefixes, Progress, Span
from unified_tree.controllers.testing.linked_tensors import COMPONENTS, PAGE, LinkedTensors
from unified_tree.terms.errors import ConfigurationError

lmcache_server.skip_unless_it_runs()
pytestmark = lmcache_server.QUIET

CHUNK, PAGES = 16, 64
IDS = np.random.default_rng(2).integers(0, 50_000, 6 * CHUNK)


@pytest.fixture
def tensors() -> LinkedTensors:
    return LinkedTensors(PAGES)


@pytest.fixture
def linker(tensors: LinkedTensors) -> Iterator[InProcessLinker]:
    made = open_in_process(tensors.linked, model="tests", chunk_tokens=CHUNK, memory_bytes=32 << 20)
    yield made
    made.close()


def test_a_second_cache_finds_what_the_first_computed(tensors: LinkedTensors, linker: InProcessLinker) -> None:
    for turn in range(2):
        cache = PrefixCache(COMPONENTS, PAGE, {"full": PAGES})
        link = LinkedPrefixes(cache, linker, tensors.linked, weights_version="v1", wait_s=20)
        tensors.spoil(np.arange(PAGES))
        link.lookup("one", Key(IDS, "tenant"))
        while not link.is_ready("one"):
            link.poll()
        with cache.acquire(Key(IDS, "tenant")) as lease:
            assert lease.cached_tokens == turn * 5 * CHUNK
            cached = lease.cached_tokens // PAGE
            assert tensors.holds(IDS, "tenant", lease.pages("full")[:cached])
            cache.allocate(lease, IDS.size)
            tensors.write(IDS, "tenant", lease.pages("full")[cached:], cached)
            cache.commit(lease, IDS)
            link.store("one", lease)
        link.release("one")
        while link._stores:
            link.poll()


def test_an_engine_that_raises_is_a_transfer_that_failed(
    tensors: LinkedTensors, linker: InProcessLinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    for call in ("store", "lookup", "retrieve"):
        monkeypatch.setattr(linker._engine, call, fails)
    ids = np.arange(CHUNK // PAGE)
    linker.store("a", Span(tokens=IDS, salt="s", begin=0, end=CHUNK, pages=tensors.pages(ids)))
    until(lambda: linker.progress("a") is Progress.FAILED)
    linker.lookup("b", IDS, "s")
    until(lambda: linker.found("b") is not None)
    assert linker.found("b") == 0
    linker.retrieve("b", Span(tokens=IDS, salt="s", begin=0, end=CHUNK, pages=tensors.pages(ids)))
    until(lambda: linker.progress("b") is Progress.FAILED)
    linker.release("a")
    linker.release("b")


def test_what_was_evicted_after_the_lookup_is_a_failed_retrieve(tensors: LinkedTensors, linker: InProcessLinker) -> None:
    ids = np.arange(CHUNK // PAGE)
    linker.store("a", Span(tokens=IDS, salt="s", begin=0, end=CHUNK, pages=tensors.pages(ids)))
    until(lambda: linker.progress("a") is Progress.DONE)
    linker.lookup("b", IDS[:CHUNK], "s")
    until(lambda: linker.found("b") == CHUNK)
    linker._engine.unlock(linker._lookups["b"].name)
    linker._engine._engine.clear()
    linker.retrieve("b", Span(tokens=IDS, salt="s", begin=0, end=CHUNK, pages=tensors.pages(ids)))
    until(lambda: linker.progress("b") is Progress.FAILED)


def test_locks_are_released(tensors: LinkedTensors, linker: InProcessLinker) -> None:
    ids = np.arange(CHUNK // PAGE)
    linker.store("a", Span(tokens=IDS, salt="s", begin=0, end=CHUNK, pages=tensors.pages(ids)))
    linker.lookup("b", IDS, "s")
    until(lambda: linker.found("b") == CHUNK)
    assert linker._engine._engine.lookup_pins
    linker.release("b")
    until(lambda: not linker._engine._engine.lookup_pins)


def test_lmcaches_own_file_wins(tensors: LinkedTensors, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("chunk_size: 8\nlocal_cpu: true\nmax_local_cpu_size: 0.05\n")
    linker = open_in_process(tensors.linked, model="tests", engine_file=str(file))
    assert linker.chunk_tokens == 8
    linker.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "model is missing"),
        ({"model": "a b"}, "model must be"),
        ({"model": "m", "chunk_tokens": 0}, "chunk_tokens must be at least 1"),
        ({"model": "m", "chunk_tokens": 6}, "chunks of 6 tokens are no multiple of the page size 4"),
    ],
)
def test_settings_that_cannot_be_are_named(tensors: LinkedTensors, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        open_in_process(tensors.linked, **given)
