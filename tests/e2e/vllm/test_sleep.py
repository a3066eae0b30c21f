"""Sleep and wake of a real vLLM 0.33, and loads that its scheduler defers.

Run as test_served_models.py. The allocator is a stand-in, see `vllm_sleep`.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import SETTINGS, Engine, nothing_leaks
from vllm_sleep import SleepyMemory, loads_end, skip_without_sleep, sleep, sleepy_memory

from unified_tree.controllers.adapters.vllm.worker_side import WorkerSide

vllm = pytest.importorskip("vllm", reason="the engine's python runs these")
skip_without_sleep()
SLEEPS = 200


@pytest.fixture(scope="module")
def memory() -> Iterator[SleepyMemory]:
    with sleepy_memory() as found:
        yield found


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, memory: SleepyMemory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp(request.param)
    tiny_models.MODELS[request.param](path)
    memory.runner = None
    engine = Engine(request.param, path, settings=SETTINGS, enable_sleep_mode=True)
    memory.runner = engine.core.model_executor.driver_worker.worker.model_runner
    engine.forget(host=True)
    engine.add([7] * 40)
    engine.run()  # so that the connector has the digest of weights that it could not see at the start
    yield engine
    engine.core.shutdown()


def test_a_prompt_hits_after_a_sleep_as_before(engine: Engine, memory: SleepyMemory) -> None:
    tokens = [3 + number * 7 % 500 for number in range(4 * engine.page + 5)]
    before = {name: each.clone() for name, each in memory.weights.items()}
    after = {name: each + 0.01 for name, each in before.items()}
    engine.forget(host=True)
    hits, outputs = [], []
    for level, weights in ((1, None), (2, before), (1, after), (1, before), (0, None)):
        name = engine.add(tokens)
        engine.run()
        hits.append(engine.hits[name])
        outputs.append(engine.outputs[name])
        if level:
            sleep(engine, memory, level=level, weights=weights)
    assert hits == [0, 4 * engine.page, 4 * engine.page, 0, 0]
    assert outputs[0] == outputs[1] == outputs[2] == outputs[4] != outputs[3]
    nothing_leaks(engine)


def test_a_worker_that_does_not_compare_the_weights_is_seen(engine: Engine, memory: SleepyMemory) -> None:
    """The planted defect."""

    def careless(worker: WorkerSide, job_id: int, _: int) -> None:
        worker._report.add(job_id)

    tokens = [3 + number * 13 % 500 for number in range(4 * engine.page + 5)]
    before = {name: each.clone() for name, each in memory.weights.items()}
    engine.add(tokens)
    engine.run()
    with mock.patch.object(WorkerSide, "answer_reset", careless):
        sleep(engine, memory, weights={name: each + 0.01 for name, each in before.items()})
        name = engine.add(tokens)
        engine.run()
    assert engine.hits[name]
    assert engine.outputs[name] != engine.alone(tokens)
    sleep(engine, memory, weights=before)


def test_sleeps_at_random_moments_lose_nothing_and_change_no_output(engine: Engine, memory: SleepyMemory) -> None:
    pick, page = random.Random(5), engine.page
    versions = [{name: each.clone() for name, each in memory.weights.items()}]
    versions.append({name: each + 0.01 for name, each in versions[0].items()})
    current, past = 0, [[pick.randrange(3, tiny_models.VOCABULARY) for _ in range(3 * page + 7)] for _ in range(2)]
    asked: dict[str, tuple[tuple[int, ...], set[int]]] = {}
    engine.forget(host=True)
    engine.counters()
    same = 0
    for _ in range(SLEEPS):
        head = pick.choice(past)
        tail = [pick.randrange(3, tiny_models.VOCABULARY) for _ in range(pick.randrange(1, page))]
        tokens = [*head[: pick.choice([len(head), pick.randrange(len(head) + 1)])], *tail][: 6 * page]
        name = engine.add(tokens, output_tokens=4)
        asked[name] = (tuple(tokens), {current})
        for _ in range(pick.randrange(5)):
            engine.step()
        loads_end(engine)
        changes = pick.random() < 0.1
        current = (current + changes) % 2
        same += not changes
        sleep(engine, memory, level=1, weights=versions[current] if changes else None)
        for other, (_, seen) in asked.items():
            if other not in engine.outputs:
                seen.add(current)
        if pick.random() < 0.3:
            engine.run()
            past = [*past[-3:], tokens + engine.outputs[name]]
    engine.run()
    counters = engine.counters()
    nothing_leaks(engine)
    alone: dict[tuple[tuple[int, ...], int], list[int]] = {}
    wrong = compared = 0
    for version in (0, 1):
        sleep(engine, memory, weights=versions[version])
        for name, (prompt, seen) in asked.items():
            if seen == {version}:
                if (prompt, version) not in alone:
                    alone[prompt, version] = engine.alone(list(prompt), output_tokens=4)
                wrong += engine.outputs[name] != alone[prompt, version]
                compared += 1
    print(
        f"{engine.model}: {SLEEPS} sleeps, {same} with the same weights, {compared} outputs compared, {wrong} wrong, {counters}"
    )
    assert wrong == 0
    assert compared > SLEEPS // 2
    assert counters["kept_sleeps"] > same // 2
    assert counters["loaded_tokens"] > 20 * page
    sleep(engine, memory, weights=versions[0])


def test_deferred_loads_end_with_the_right_output(engine: Engine) -> None:
    """As under vLLM's own sparse host cache: blocks are told a step after the promise. Then what was promised may have gone."""
    scheduler = engine.core.scheduler
    prompts = [[3 + number * step % 500 for number in range(3 * engine.page + 5)] for step in (7, 11, 13, 17)]
    right = [engine.alone(tokens) for tokens in prompts]
    engine.forget(host=True)
    for tokens in prompts:
        engine.add(tokens)
    engine.run()
    engine.counters()
    told: list[int] = []
    tell = type(scheduler.connector).update_state_after_alloc

    def counted(self: Any, request: Any, blocks: Any, tokens: int) -> None:
        if tokens:
            told.append(scheduler.sched_step_seq - promised.pop(request.request_id))
            if len(told) == 2:
                engine.side.index.invalidate()
        tell(self, request, blocks, tokens)

    promised: dict[str, int] = {}
    match = type(scheduler.connector).get_num_new_matched_tokens

    def matched(self: Any, request: Any, local: int) -> Any:
        promised[request.request_id] = scheduler.sched_step_seq
        return match(self, request, local)

    connector = type(scheduler.connector)
    with (
        mock.patch.object(connector, "update_state_after_alloc", counted),
        mock.patch.object(connector, "get_num_new_matched_tokens", matched),
        mock.patch.multiple(scheduler, defer_block_free=True, defer_async_loads=True),
        mock.patch.object(scheduler, "sched_step_seq", scheduler.sched_step_seq + 1),  # as if a step were always in flight
    ):
        engine.forget()
        engine.add([7] * (3 * engine.page + 1), output_tokens=60)
        engine.step()
        names = [engine.add(tokens) for tokens in prompts]
        engine.run()
    assert [engine.outputs[name] for name in names] == right
    counters = engine.counters()
    print(f"{engine.model}: steps between promise and blocks {told}, {counters}")
    scheduler.processed_step_seq = scheduler.sched_step_seq
    assert told[:2] == [1, 1]
    assert counters["lost_loads"] >= 1
    assert counters["loaded_tokens"] >= 3 * engine.page
    nothing_leaks(engine)
