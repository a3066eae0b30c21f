"""Stores behind the host tier, with a model of the engine: what one life wrote, another resumes on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from vllm_engine_model import MODELS, PAGE, PROMPT, EngineModel, Request, files, traffic

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.vllm import ConnectorSettings, HostIndex, StepReport
from unified_tree.controllers.adapters.vllm.messages import Answer, ReadPages, WritePages
from unified_tree.controllers.adapters.vllm.scheduler_store import SchedulerStore
from unified_tree.controllers.adapters.vllm.worker_store import WorkerStore
from unified_tree.controllers.storage import KeyChain
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy


@contextmanager
def life(kind: str, seed: int = 0, **settings: Any) -> Iterator[EngineModel]:
    engine = EngineModel(kind, seed, **{"host_bytes": 100_000, **settings})
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_restart_is_served_from_the_files(kind: str, workers: int, tmp_path: Path) -> None:
    for hit in (0, 6 * PAGE):
        with life(kind, workers=workers, store=files(tmp_path)) as engine:
            assert engine.serve(PROMPT) == hit
            counters = engine.side.take_counters()
            assert counters.get("fetched_tokens", 0) == hit
            assert bool(counters.get("stored_pages")) != bool(hit)


def test_other_weights_and_other_namespaces_find_nothing(tmp_path: Path) -> None:
    for version, namespace, hit in (("1", "", 0), ("2", "", 0), ("1", "salt", 0), ("2", "", 6 * PAGE)):
        with life("window", store=files(tmp_path), weights_version=version) as engine:
            assert engine.serve(PROMPT, namespace) == hit


def test_another_number_of_workers_finds_nothing(tmp_path: Path) -> None:
    for workers in (1, 2):
        with life("full", workers=workers, store=files(tmp_path)) as engine:
            assert engine.serve(PROMPT) == 0


def test_only_what_every_worker_has_is_fetched(tmp_path: Path) -> None:
    with life("window", workers=2, store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
    with life("window", workers=2, store=files(tmp_path)) as engine:
        store = engine.workers[1].store
        assert store is not None
        store._tier.engine.clear()
        assert engine.serve(PROMPT) == 0
        assert engine.serve(PROMPT) == 6 * PAGE  # it was computed and saved again


def test_pages_are_fetched_anew_when_the_host_has_evicted_them(tmp_path: Path) -> None:
    for kind in MODELS:
        with life(kind, 1, store=files(tmp_path / kind), host_bytes=1200) as engine:
            engine.serve(PROMPT)
            other = [number % 2 for number in range(8 * PAGE)]
            for number in range(4):
                engine.serve(other, f"{number}")
            assert engine.serve(PROMPT) == 6 * PAGE
            assert engine.side.take_counters()["fetched_tokens"]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_request_resumes_on_what_was_computed(kind: str, workers: int, tmp_path: Path) -> None:
    with life(kind, 1, workers=workers, store=files(tmp_path), host_bytes=1500, verify=True) as engine:
        traffic(engine, 30)
        asked = engine.asked
    with life(kind, 2, workers=workers, store=files(tmp_path), host_bytes=1500, verify=True) as engine:
        for number, (namespace, tokens) in enumerate(random.Random(3).sample(asked, len(asked))):
            engine.add(Request(f"again{number}", namespace, [*tokens, 0], 2))
            while len(engine.running) + len(engine.waiting) > 3:
                engine.step()
        engine.settle()
        counters = engine.side.take_counters()
    assert counters["fetched_tokens"], "how many depends on how fast the store is"
    assert "failed_loads" not in counters


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    with life("window", store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
    with life("window", store=files(tmp_path)) as engine:
        request = Request("a", "", PROMPT.copy(), 1)
        engine.add(request)
        engine.step()
        engine.abort(request)
        engine.settle()
        assert engine.serve(PROMPT) == 6 * PAGE


def test_a_request_does_not_wait_longer_than_it_is_told_to(tmp_path: Path) -> None:
    with life("full", store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
    at_once = PrefetchPolicy(mode=PrefetchMode.TIMEOUT, min_tokens=1, base_s=0.0, per_token_s=0.0, grace_s=0.0)
    with life("full", store=files(tmp_path), prefetch=at_once) as engine:
        engine.add(Request("a", "", PROMPT.copy(), 1))
        assert not engine.waiting
        engine.settle()
        assert engine.hit_tokens == 0


def test_a_reset_leaves_what_was_stored_before_behind(tmp_path: Path) -> None:
    with life("window", store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
        engine.side.reset()
        assert engine.serve(PROMPT) == 0
        engine.index_only_forgets()
        assert engine.serve(PROMPT) == 6 * PAGE  # of what b computed under the new weights
    with life("window", store=files(tmp_path)) as engine:
        assert engine.serve(PROMPT) == 6 * PAGE  # of what a computed under the old ones


def test_a_store_lives_through_sleep_and_new_weights_have_no_part_in_it(tmp_path: Path) -> None:
    with life("window", store=files(tmp_path), sleeps=True) as engine:
        assert engine.serve(PROMPT) == 0
        engine.index_only_forgets()
        engine.sleep()
        assert engine.serve(PROMPT) == 6 * PAGE
        assert engine.side.take_counters()["fetched_tokens"] == 6 * PAGE
        engine.sleep(weights=1)
        assert engine.serve(PROMPT) == 0
        engine.index_only_forgets()
        assert engine.serve(PROMPT, "other") == 0
    with life("window", store=files(tmp_path)) as engine:  # with the weights of the beginning
        assert engine.serve(PROMPT) == 6 * PAGE
        assert engine.serve(PROMPT, "other") == 0


def test_a_store_that_fails_fails_no_request(tmp_path: Path) -> None:
    with life("window", store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
    for method in ("exists", "get_verified", "put_sealed"):
        with life("window", store=files(tmp_path)) as engine:
            store = engine.workers[0].store
            assert store is not None
            with mock.patch.object(store._tier.engine, method, side_effect=OSError("planted")):
                assert engine.serve(PROMPT) in (0, 6 * PAGE)
            traffic(engine, 5)


def spoil(path: Path, kind: str) -> None:
    """Flip a bit of each page of every table, or cut the pages off."""
    for table in path.glob("*.pages"):
        if kind == "cut":
            os.truncate(table, 0)
            continue
        with table.open("r+b") as opened:
            for at in range(0, table.stat().st_size, 512):
                opened.seek(at)
                byte = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["corrupt", "cut"])
def test_pages_that_are_not_what_was_put(model: str, kind: str, tmp_path: Path) -> None:
    """They are counted, whatever kind of fault it is, and the misses that it caused have their cause."""
    with life(model, store=files(tmp_path)) as engine:
        engine.serve(PROMPT)
    spoil(tmp_path, kind)
    with life(model, store=files(tmp_path)) as engine:
        assert engine.serve(PROMPT) == 0
        counted: dict[str, float] = dict(engine.side.take_counters())
        for worker in engine.workers:
            for name, count in worker.take_counters().items():
                counted[name] = counted.get(name, 0) + count
        assert counted["store_errors"] >= 1
        assert counted["miss_tokens/store_failed"] > 0
        assert counted["prompt_tokens"] == sum(n for name, n in counted.items() if name.startswith("miss_tokens/"))
        assert "miss_tokens/never_seen" not in counted


def test_a_page_that_changed_in_memory_is_not_stored(tmp_path: Path) -> None:
    with life("full", store=files(tmp_path), verify=True) as engine:
        write = WorkerStore._write

        def changed(store: WorkerStore, message: WritePages, chain: Any) -> Any:
            for pages in store._pages.values():
                pages.hosts[0][:] = 7
            return write(store, message, chain)

        with mock.patch.object(WorkerStore, "_write", changed):
            engine.serve(PROMPT)
        assert "stored_pages" not in engine.side.take_counters()


def test_events_tell_of_what_is_fetched(tmp_path: Path) -> None:
    names: dict[tuple[int, ...], bytes] = {}
    with life("full", 1, store=files(tmp_path), host_bytes=1000) as engine:
        told: set[bytes] = set()
        for number in range(60):
            tokens = [number % 7 % 2, *(engine.random.randrange(2) for _ in range(3)), *PROMPT]
            request = Request(f"r{number}", "", tokens, 1)
            ends = range(PAGE, len(tokens) + 1, PAGE)
            request.block_hashes[:] = [names.setdefault(tuple(tokens[:end]), str(len(names)).encode()) for end in ends]
            engine.add(request)
            engine.settle()
            for event in engine.side.take_events():
                assert len(event.hashes) == len(set(event.hashes))
                assert not event.stored or not told & set(event.hashes)
                assert event.stored or told >= set(event.hashes)
                told = told | set(event.hashes) if event.stored else told - set(event.hashes)
            assert len(told) == engine.side.index.used_pages["group0"]
        assert engine.side.take_counters()["fetched_tokens"]


def test_settings() -> None:
    settings = ConnectorSettings.of({"store": {"engine": "file", "directory": "x", "prefetch": {"min_tokens": 3}}})
    assert settings.store is not None
    assert settings.store.options == {"directory": "x"}
    assert settings.prefetch_policy().min_tokens == 3
    for wrong in ("file", {"directory": "x"}, {"engine": "file", "prefetch": {"mode": "never"}}):
        with pytest.raises(ConfigurationError, match="store"):
            ConnectorSettings.of({"store": wrong})


# Planted defects: each must be seen by the mix above.


@contextmanager
def answered_by_one() -> Iterator[None]:
    """The scheduler side does not wait for the second worker."""
    made = SchedulerStore.__init__

    def init(store: SchedulerStore, *given: Any) -> None:
        made(store, *given)
        store._workers._workers = 1

    with mock.patch.object(SchedulerStore, "__init__", init):
        yield


@contextmanager
def read_not_waited_for() -> Iterator[None]:
    """A worker answers that it has read what it has not."""

    def read(store: WorkerStore, message: ReadPages, chain: Any) -> Any:
        del chain
        store._answer(message, {name: ids.size for name, ids in message.pages.items()})
        yield 0.0

    with mock.patch.object(WorkerStore, "_read", read):
        yield


@contextmanager
def keys_without_tokens() -> Iterator[None]:
    """Pages are named by their number alone."""
    digests = KeyChain.digests

    def wrong(chain: Any, key: Any, **more: Any) -> Any:
        return digests(chain, type(key)(np.zeros(key.length, np.int64), key.namespace), **more)

    with mock.patch.object(KeyChain, "digests", wrong):
        yield


@contextmanager
def namespace_ignored() -> Iterator[None]:
    root = KeyChain.root

    def unsalted(chain: Any, namespace: str, **more: Any) -> bytes:
        del namespace
        return root(chain, "", **more)

    with mock.patch.object(KeyChain, "root", unsalted):
        yield


@contextmanager
def unlocked_while_written() -> Iterator[None]:
    """The worker answers a write at once, and makes it when the pages hold something else."""
    write = WorkerStore._write

    def late(store: WorkerStore, message: WritePages, chain: Any) -> Any:
        for pages in store._pages.values():
            pages.hosts[0][:] = 7
        yield from write(store, message, chain)

    with mock.patch.object(WorkerStore, "_write", late):
        yield


DEFECTS: dict[str, Callable[[], Any]] = {
    "keys without the tokens": keys_without_tokens,
    "namespace ignored": namespace_ignored,
    "read not waited for": read_not_waited_for,
    "written from pages that are free": unlocked_while_written,
    "answered by one of two workers": answered_by_one,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, tmp_path: Path) -> None:
    seen = 0
    with DEFECTS[defect]():
        for kind in MODELS:
            try:
                for seed in range(2):
                    with life(kind, seed, workers=2, store=files(tmp_path / kind), host_bytes=1500) as engine:
                        traffic(engine, 30)
            except (AssertionError, KeyError):
                seen += 1
    assert seen


def test_answers_of_several_workers_are_joined() -> None:
    one, two = StepReport(answers={1: [Answer(content={"a": 1})]}), StepReport(answers={1: [Answer(error="gone")]})
    assert one.merge(two).answers == {1: [Answer(content={"a": 1}), Answer(error="gone")]}


def test_the_index_counts_what_it_evicts() -> None:
    index = HostIndex(MODELS["full"], PAGE, {"group0": 2}, "lru")
    assert index.allocate({"group0": 3}) is None
    assert index.counters.evicted_pages == 0
