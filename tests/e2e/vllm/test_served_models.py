"""Tiny models in a real vLLM: every output equals that of no cache, and planted defects are seen.

Run from the repository's root with the engine's python, which needs pytest, sortedcontainers and xxhash:

    PYTHONPATH=. ENGINE/bin/python -m pytest -q -o filterwarnings=default tests/e2e/vllm

One engine a model serves all its tests, for an engine needs most of a minute to start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import vllm_tiny_models as tiny_models
from vllm_page_witness import PageWitness, differing
from vllm_served_mix import SETTINGS, Engine, mix, nothing_leaks, small_host, wrong_outputs

from unified_tree import ConfigurationError, Key, Tier
from unified_tree.controllers.adapters.vllm import HostIndex, SchedulerSide, StepReport
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
from unified_tree.declare.coverage import Trailing

pytest.importorskip("vllm", reason="the engine's python runs these")
MODELS = os.environ.get("MODELS", ",".join(tiny_models.MODELS)).split(",")
REQUESTS = int(os.environ.get("REQUESTS", "40"))


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp(request.param)
    tiny_models.MODELS[request.param](path)
    engine = Engine(request.param, path, settings=SETTINGS)
    yield engine
    engine.core.shutdown()


@pytest.fixture(autouse=True)
def sound(engine: Engine) -> Iterator[None]:
    """Each test begins with empty caches, and leaves a sound tree with nothing in flight."""
    engine.forget(host=True)
    engine.counters()
    yield
    nothing_leaks(engine)


def test_every_output_equals_no_cache(engine: Engine) -> None:
    wrong, counters = wrong_outputs(engine, 1, REQUESTS)
    assert wrong == 0
    assert counters["loaded_tokens"] > 5 * engine.page


def test_a_hit_is_the_longest_that_every_group_can_resume_from(engine: Engine) -> None:
    tokens = [3 + number * 7 % 500 for number in range(4 * engine.page + 5)]
    names = []
    for _ in range(2):
        engine.forget()
        names.append(engine.add(tokens))
        engine.run()
    assert [engine.hits[name] for name in names] == [0, 4 * engine.page]
    assert engine.outputs[names[0]] == engine.outputs[names[1]]


def test_salts_do_not_share(engine: Engine) -> None:
    tokens = [3 + number * 5 % 500 for number in range(2 * engine.page + 5)]
    for salt in ("a", "b"):
        name = engine.add(tokens, salt=salt)
        engine.run()
        engine.forget()
        assert engine.hits[name] == 0


def test_a_request_is_aborted_while_it_loads(engine: Engine) -> None:
    tokens = [3 + number * 11 % 500 for number in range(3 * engine.page + 5)]
    engine.add(tokens)
    engine.run()
    engine.forget()
    load = BlockPages.load

    def slow(pages: BlockPages, copies: Any) -> None:
        time.sleep(0.3)
        load(pages, copies)

    with mock.patch.object(BlockPages, "load", slow):
        victim = engine.add(tokens)
        engine.step()
        assert engine.side.open_jobs
        engine.llm.llm_engine.abort_request([victim])
        engine.run()
    name = engine.add(tokens)
    engine.run()
    assert engine.outputs[name] == engine.alone(tokens)


def test_a_page_that_changed_in_memory_is_computed_anew(engine: Engine) -> None:
    tokens = [3 + number * 13 % 500 for number in range(3 * engine.page + 5)]
    engine.add(tokens)
    engine.run()
    engine.forget()
    for host in engine.worker().pages[0].hosts:
        host.fill_(1)
    name = engine.add(tokens)
    engine.run()
    assert engine.counters()["failed_loads"] == 1
    assert engine.outputs[name] == engine.alone(tokens)


def test_a_small_host_evicts(engine: Engine) -> None:
    with small_host(8):
        wrong, counters = wrong_outputs(engine, 2, REQUESTS // 2)
    assert wrong == 0
    assert counters["loaded_tokens"]
    assert counters["evicted_pages"]


def test_a_reset_forgets(engine: Engine) -> None:
    tokens = [3 + number * 17 % 500 for number in range(2 * engine.page + 5)]
    engine.add(tokens)
    engine.run()
    assert any(engine.side.index.used_pages.values())
    engine.forget(host=True)
    assert not any(engine.side.index.used_pages.values())


# Planted defects: each is seen by a wrong output, or by an assertion.


def no_lock(index: HostIndex, boundary: Any) -> Any:
    receipt = index.tree.lock(boundary, Tier.HOST)
    receipt.release()
    return mock.Mock(boundary=receipt.boundary)


def publish_unsaved() -> Any:
    add = StepReport.add

    @contextmanager
    def planted() -> Iterator[None]:
        with (
            mock.patch.object(BlockPages, "save", side_effect=RuntimeError("planted")),
            mock.patch.object(BlockPages, "corrupt", return_value=[]),
            mock.patch.object(StepReport, "add", lambda report, job_id, **_: add(report, job_id)),
        ):
            yield

    return planted()


def load_wrong_block() -> Any:
    load = BlockPages.load
    return mock.patch.object(
        BlockPages, "load", lambda pages, copies: load(pages, replace(copies, pages=tuple(page ^ 1 for page in copies.pages)))
    )


def one_namespace() -> Any:
    begin = SchedulerSide.begin
    return mock.patch.object(SchedulerSide, "begin", lambda side, request, _, **more: begin(side, request, "", **more))


DEFECTS: dict[str, Callable[[], Any]] = {
    "load of the wrong block": load_wrong_block,
    "published without being saved": publish_unsaved,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_gives_wrong_outputs(engine: Engine, defect: str) -> None:
    for pages in engine.worker().pages.values():
        for host in pages.hosts:
            host.view(torch.uint8).fill_(0x40)  # 3.0 in every format: what is not saved is not the zeros of a fresh state
    with DEFECTS[defect]():
        served = mix(engine, 3, 12, aborts=0)
    loaded = engine.counters().get("loaded_tokens", 0)
    wrong = sum(engine.alone(tokens, salt=salt) != output for tokens, salt, output in served)
    assert loaded
    assert wrong


def test_an_ignored_salt_is_seen(engine: Engine) -> None:
    with one_namespace(), pytest.raises(AssertionError):
        test_salts_do_not_share(engine)


@pytest.mark.parametrize("locked", [True, False])
def test_a_page_that_is_freed_while_it_is_read_is_seen(engine: Engine, locked: bool) -> None:
    tokens = [3 + number * 19 % 500 for number in range(3 * engine.page + 5)]
    right = engine.alone(tokens)
    engine.forget()
    load, tree = BlockPages.load, engine.side.index.tree

    def late(pages: BlockPages, copies: Any) -> None:
        group = engine.side.index.groups[copies.group]
        if not tree.pool(group.name, Tier.HOST).protected_pages:  # then another save may write there
            for host in pages.hosts:
                host[list(copies.pages)] = 0
        load(pages, copies)

    lock = HostIndex.lock if locked else no_lock
    with mock.patch.object(HostIndex, "lock", lock), mock.patch.object(BlockPages, "load", late):
        name = engine.add(tokens)
        engine.run()
    assert engine.hits[name]
    assert (engine.outputs[name] == right) == locked


def test_the_whole_window_is_loaded_and_a_shorter_one_is_seen(engine: Engine) -> None:
    coverages = {group.index: group.coverage for group in engine.side.index.groups}
    windows = {index for index, coverage in coverages.items() if isinstance(coverage, Trailing)}
    if engine.model != "gemma3":
        assert not windows
        return
    assert {coverages[index] for index in windows} == {Trailing(tiny_models.WINDOW_TOKENS - 1)}
    tokens = [3 + number * 23 % 500 for number in range(4 * engine.page + 5)]
    right = engine.alone(tokens)
    load = BlockPages.load
    loaded: dict[int, int] = {}

    def counted(pages: BlockPages, copies: Any) -> None:
        loaded[copies.group] = len(copies.pages)
        load(pages, copies)

    engine.forget()
    with mock.patch.object(BlockPages, "load", counted):
        name = engine.add(tokens)
        engine.run()
    assert engine.outputs[name] == right
    assert loaded == {index: 2 if index in windows else 4 for index in coverages}  # one token less would need one block
    length = engine.side.index.longest(Key(tokens), len(tokens)).length
    short = Trailing(tiny_models.WINDOW_TOKENS - 2)
    assert length // engine.page - short.first_page(length, engine.page) == 1


def prompt(engine: Engine, step: int) -> list[int]:
    return [3 + number * step % 500 for number in range(4 * engine.page + 5)]


def test_a_request_resumes_on_the_bits_that_it_would_have_computed(engine: Engine) -> None:
    witness = PageWitness(engine)
    for step in (29, 31, 37):
        tokens, length = prompt(engine, step), 4 * engine.page
        right = witness.computed(tokens, length)
        assert len(right) >= len(engine.side.index.groups)
        assert differing(witness.resumed(tokens, length), right) == []


@contextmanager
def window_one_token_short(engine: Engine) -> Iterator[None]:
    """The scheduler side keeps and loads windows without their first token."""
    groups = [
        replace(group, coverage=Trailing(group.coverage.window_tokens - 1)) if group.coverage.window_tokens else group
        for group in engine.side.index.groups
    ]
    counts = {name: pool.page_count for name, pool in engine.side.index.host.allocators.items()}
    narrow, right = SchedulerSide(HostIndex(groups, engine.page, counts, "lru")), engine.side
    connector = engine.core.scheduler.connector
    connector._scheduler = engine.side = narrow
    try:
        yield
    finally:
        connector._scheduler = engine.side = right


@contextmanager
def load_not_waited_for(engine: Engine) -> Iterator[None]:
    """A request is said to be loaded when its load has begun, which ends two steps after."""
    worker, load, step, steps = engine.worker(), BlockPages.load, engine.step, [0]
    start = worker.start_loads

    def early(jobs: Any) -> None:
        start(jobs)
        begun.update(job.request_id for job in jobs)

    def late(pages: BlockPages, copies: Any) -> None:
        end = steps[0] + (3 if copies.group == 0 else 0)
        while steps[0] < end:
            time.sleep(0.001)
        load(pages, copies)

    def counted() -> None:
        steps[0] += 1
        step()

    def once() -> tuple[set[str], set[str]]:
        received, failed = take()
        new = (received | begun) - told
        told.update(new)
        return new, failed

    take, begun, told = worker.take_received, set[str](), set[str]()
    with (
        mock.patch.object(engine, "step", counted),
        mock.patch.object(worker, "start_loads", early),
        mock.patch.object(worker, "take_received", once),
        mock.patch.object(BlockPages, "load", late),
    ):
        yield


@contextmanager
def wrong_block(engine: Engine) -> Iterator[None]:
    del engine
    with load_wrong_block():
        yield


PAGE_DEFECTS: dict[str, Callable[[Engine], Any]] = {
    "window one token short": window_one_token_short,
    "load not waited for": load_not_waited_for,
    "load of the wrong block": wrong_block,
}


@pytest.mark.parametrize("defect", PAGE_DEFECTS)
def test_a_planted_defect_is_seen_in_the_pages(engine: Engine, defect: str) -> None:
    if defect == "window one token short" and engine.model != "gemma3":
        return
    tokens, length = prompt(engine, 41), 4 * engine.page
    witness = PageWitness(engine)
    right = witness.computed(tokens, length)
    engine.forget(host=True)
    with PAGE_DEFECTS[defect](engine):
        engine.add([7] * (2 * engine.page + 1))  # so that a block that is not loaded holds something else
        engine.add(tokens)
        engine.run()
        assert differing(witness.resumed(tokens, length), right)
    engine.forget(host=True)


def test_another_version_is_refused() -> None:
    import vllm

    from unified_tree.controllers.adapters.vllm.connector import UnifiedTreeConnector

    with mock.patch.object(vllm, "__version__", "0.34.0"), pytest.raises(ConfigurationError, match=r"install vllm==0\.33\.0"):
        UnifiedTreeConnector(None, None, None)
