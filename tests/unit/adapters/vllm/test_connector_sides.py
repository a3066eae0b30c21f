"""The scheduler side and the workers against a model of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from vllm_engine_model import MODELS, PAGE, WINDOW, EngineModel, Request, prompt, traffic

from unified_tree import Tier, Trailing
from unified_tree.controllers.adapters.vllm import (
    BlockGroup,
    HostIndex,
    PageCopies,
    ScheduledRequest,
    SchedulerSide,
    StepReport,
)
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
from unified_tree.controllers.adapters.vllm.save_planner import SavePlanner
from unified_tree.terms.errors import ConfigurationError


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_request_resumes_on_what_was_computed(kind: str, workers: int) -> None:
    hits = evicted = 0
    for seed in range(3):
        engine = EngineModel(kind, seed, workers=workers)
        traffic(engine, 40)
        counters = engine.side.take_counters()
        hits += engine.hit_tokens
        evicted += counters.get("evicted_pages", 0)
    assert hits > 500
    assert evicted > 10


def test_a_repeated_prompt_hits_up_to_its_last_token() -> None:
    for kind in MODELS:
        engine = EngineModel(kind, 0, host_bytes=100_000)
        tokens = [number % 3 for number in range(5 * PAGE + 1)]
        assert [engine.serve(tokens), engine.serve(tokens)] == [0, 5 * PAGE]
        if kind != "state":  # which the engine decides on
            engine.serve(tokens[:-1])


def test_a_load_that_ends_between_two_questions_is_told_in_one_step() -> None:
    """Else its job is over while vLLM still keeps the blocks of a request that was aborted, and nothing makes it step again."""
    engine = EngineModel("full", 0)
    engine.serve(prompt(length=2 * PAGE + 1))
    engine.pace = (0,)
    engine.add(Request("b", "", prompt(length=2 * PAGE + 1), 1))
    engine.step()
    worker, delay = engine.workers[0], engine.delays[0]
    assert delay.waiting, "a load is under way"
    assert worker.take_received() == (set(), set())
    delay.run(1)
    assert worker.take_report() is None
    assert worker.take_received() == ({"b"}, set())
    report = worker.take_report()
    assert report is not None
    assert len(report.finished) == 1


def test_too_little_memory_for_all_groups_together_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    available = {"bytes": 1 << 62}
    monkeypatch.setattr("unified_tree.controllers.pools.host_memory.host_memory_available", lambda _: available["bytes"])
    pools = [pages.pool for pages in EngineModel("window", 0).workers[0].pages.values()]
    available["bytes"] = (256 << 20) + sum(pool.size_bytes for pool in pools) - 1
    with pytest.raises(ConfigurationError, match=r"group0, group1: .* give a smaller host_gib"):
        EngineModel("window", 0)


def test_saves_that_fail_are_not_offered() -> None:
    with failing_saves():
        for kind in MODELS:
            engine = EngineModel(kind, 0)
            traffic(engine, 40)
            assert engine.side.take_counters()["discarded_saves"] > 3


def test_nothing_is_offered_before_all_workers_have_saved_it() -> None:
    engine = EngineModel("full", 0, workers=2)
    side = engine.side
    request = Request("a", "", [1] * 9, 1)
    side.begin(request, "")
    request.blocks = [[1, 2, 3]]
    request.computed = 8
    plan = side.plan([ScheduledRequest(request_id="a", end_tokens=8, block_table=lambda: request.blocks)])
    report = StepReport()
    report.add(plan.saves[0].job_id)
    assert side.matched_tokens(request, 0) == 0
    side.complete(report)
    assert side.matched_tokens(request, 0) == 0
    side.complete(report)
    assert side.matched_tokens(request, 0) == 8


def test_a_step_that_fills_no_block_reads_neither_tokens_nor_tables() -> None:
    read: list[slice] = []

    class Tokens(list[int]):
        def __getitem__(self, part: Any) -> Any:
            read.append(part)
            return super().__getitem__(part)

    side = EngineModel("full", 0).side
    request = Request("a", "", Tokens([1] * (3 * PAGE)), 1)
    side.begin(request, "")
    for end in range(1, 3 * PAGE + 1):
        tables: list[int] = []

        def table(tables: list[int] = tables) -> list[list[int]]:
            tables.append(1)
            return [[1, 2, 3]]

        plan = side.plan([ScheduledRequest(request_id="a", end_tokens=end, block_table=table)])
        assert len(plan.saves) == len(tables) == (end % PAGE == 0)
        side.matched_tokens(request, 0)
    assert read == [slice(0, 3 * PAGE)], "the prompt is read once"


def test_a_save_of_tokens_that_were_thrown_away_is_discarded() -> None:
    side = EngineModel("full", 0).side
    request = Request("a", "", [1] * 7, 1)
    side.begin(request, "")
    plan = side.plan([ScheduledRequest(request_id="a", end_tokens=8, block_table=lambda: [[1, 2]])])
    report = StepReport()
    report.add(plan.saves[0].job_id)
    side.complete(report)
    assert side.index.used_pages == {"group0": 0}
    assert side.take_counters()["discarded_saves"] == 1


def test_a_reset_forgets_what_is_there_and_what_is_in_flight() -> None:
    for kind in MODELS:
        engine = EngineModel(kind, 3)
        for number in range(30):
            engine.add(Request(f"r{number}", "", [0, 1] * (3 + number % 9), 3))
            engine.step()
            if number % 7 == 0:
                engine.side.reset()
                assert engine.side.matched_tokens(engine.running[-1], 0) == 0 or engine.running[-1].is_loading
            while len(engine.running) > 3:
                engine.step()
        engine.settle()
        engine.side.reset()
        assert not any(engine.side.index.used_pages.values())


def test_a_page_that_changed_in_memory_fails_the_load_and_is_not_offered_again() -> None:
    for kind in MODELS:
        engine = EngineModel(kind, 0, host_bytes=100_000, verify=True)
        tokens = [number % 3 for number in range(5 * PAGE)]
        engine.serve(tokens)
        engine.workers[0].pages[0].hosts[0][:] = 7
        assert engine.serve(tokens) == 0
        assert engine.side.take_counters()["failed_loads"] == 1
        assert engine.workers[0].take_bad_blocks()
        assert engine.serve(tokens) > 0, "they were computed, and saved again"
        assert "failed_loads" not in engine.side.take_counters()


def test_events_tell_what_the_host_holds() -> None:
    engine = EngineModel("window", 1)
    told: set[bytes] = set()
    names: dict[tuple[int, ...], bytes] = {}

    def hashed(request: Request) -> None:
        request.block_hashes[:] = [
            names.setdefault(tuple(request.all_token_ids[:end]), str(len(names)).encode())
            for end in range(PAGE, request.num_tokens + 1, PAGE)
        ]

    for number in range(40):
        request = Request(f"r{number}", "", [engine.random.randrange(2) for _ in range(16)], 6)
        hashed(request)
        engine.add(request)
        while engine.running:
            engine.step()
            hashed(request)
        engine.settle()
        for event in engine.side.take_events():
            assert len(event.tokens) == (PAGE if event.stored else 0)
            told = told | set(event.hashes) if event.stored else told - set(event.hashes)
    assert len(told) == engine.side.index.used_pages["group0"]
    engine.side.reset()
    assert [event.hashes for event in engine.side.take_events()] == [()]


def no_lock(index: HostIndex, boundary: Any) -> Any:
    receipt = index.tree.lock(boundary, Tier.HOST)
    later = mock.Mock(boundary=receipt.boundary)
    receipt.release()
    return later


@contextmanager
def failing_saves() -> Iterator[None]:
    """One save in five is not made."""
    save, chance = BlockPages.save, random.Random(1)

    def flaky(pages: BlockPages, copies: PageCopies) -> None:
        if chance.random() < 0.2:
            raise RuntimeError("the copy was not made")
        save(pages, copies)

    with mock.patch.object(BlockPages, "save", flaky):
        yield


@contextmanager
def published_unsaved() -> Iterator[None]:
    add = StepReport.add
    with failing_saves(), mock.patch.object(StepReport, "add", lambda report, job_id, **_: add(report, job_id)):
        yield


@contextmanager
def window_off_by_one() -> Iterator[None]:
    narrow = BlockGroup(index=1, coverage=Trailing(PAGE), layer_names=WINDOW.layer_names, block_bytes=WINDOW.block_bytes)
    made = HostIndex.__init__

    def init(index: HostIndex, groups: Any, *rest: Any) -> None:
        made(index, [narrow if group == WINDOW else group for group in groups], *rest)

    with mock.patch.object(HostIndex, "__init__", init):
        yield


def wrong_order(side: SchedulerSide, request_id: str, blocks: Any, tokens: int) -> None:
    load(side, request_id, [list(reversed(table)) if all(table) else table for table in blocks], tokens)


load = SchedulerSide.load
begin = SchedulerSide.begin
DEFECTS: dict[str, Callable[[], Any]] = {
    "window off by one": window_off_by_one,
    "load of the wrong block": lambda: mock.patch.object(SchedulerSide, "load", wrong_order),
    "published without being saved": published_unsaved,
    "namespace ignored": lambda: mock.patch.object(
        SchedulerSide, "begin", lambda side, request, _, **more: begin(side, request, "", **more)
    ),
    "page not locked while it is loaded": lambda: mock.patch.object(HostIndex, "lock", no_lock),
    "state of an earlier length": lambda: mock.patch.object(SavePlanner, "_states_by_length", shifted_states),
}


states_by_length = SavePlanner._states_by_length


def shifted_states(planner: SavePlanner, step: ScheduledRequest, end: int) -> dict[int, dict[str, int]]:
    return {length - PAGE: found for length, found in states_by_length(planner, step, end).items() if length > PAGE}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str) -> None:
    seen = 0
    with DEFECTS[defect]():
        for kind in MODELS:
            for seed in range(2):
                try:
                    traffic(EngineModel(kind, seed, host_bytes=700, pace=[0] * 15 + [2]), 40)
                except AssertionError:
                    seen += 1
    assert seen
