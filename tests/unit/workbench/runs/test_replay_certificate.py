"""No row hits more than its certificate allows, however requests overlap."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

import numpy as np
import pytest
from replay_rows import host_of

from unified_tree.components import Composition, composition_for
from unified_tree.components.kinds import full, mamba, swa
from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.workbench.runs.certificate import certified
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowPlan, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import HostSettings, ServerSettings
from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order, pack_runs

SEEDS = int(os.environ.get("SEEDS", "3"))
SHARING = ("qwen3-32b", "gemma-3-27b", "qwen3-next-80b-a3b", "deepseek-v4-flash")
MODELS = ("qwen3-32b", "gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b-a3b")


def workload(rng: Random, block_tokens: int) -> Workload:
    """Conversations that go on, branch off and come again; some prompts end within a block."""
    paths: list[list[int]] = [[]]
    requests, next_id = [], 0
    for index in range(rng.randint(40, 90)):
        path = list(rng.choice(paths[-12:]))
        path = path[: rng.randint(0, len(path))] if rng.random() < 0.3 else path
        fresh = rng.randint(0, 6) if path else rng.randint(1, 12)
        path += range(next_id, next_id + fresh)
        next_id += fresh
        paths.append(path)
        requests.append(
            Request(
                index=index,
                arrival_s=rng.expovariate(2.0) + index * 0.2,
                runs=pack_runs(np.array(path, np.int64)),
                block_tokens=block_tokens,
                prompt_tokens=len(path) * block_tokens + rng.choice([0, 0, rng.randrange(1, block_tokens)]),
                output_tokens=rng.randint(1, 300),
            )
        )
    return Workload(name="conversations", requests=in_arrival_order(requests), block_count=next_id)


def plan_of(rng: Random, model: str) -> tuple[Plan, dict[str, int]]:
    """Memory that is short, and its device's pages."""
    composition = composition_for(model)
    counts = {"full": rng.randint(60, 400), "swa": rng.randint(30, 120), "mamba": rng.randint(20, 60)}
    counts = {
        component.name: counts.get(component.name, 100) for component in composition.components if component.shares is None
    }
    page_bytes = composition.pool_page_bytes()
    plan = Plan(
        workload=workload(rng, rng.choice([64, 128, 512])),
        composition=composition,
        device_bytes=sum(count * page_bytes[name] for name, count in counts.items()),
        settings=ServerSettings(concurrency=rng.choice([1, 2, 8]), chunk_tokens=rng.choice([512, 8192])),
        host=host_of(composition, rng.choice([1.0, 3.0])) if rng.random() < 0.4 else None,
    )
    return plan, counts


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("model", MODELS)
def test_no_row_hits_more_than_is_possible(model: str, seed: int) -> None:
    rng = Random(seed * 31 + MODELS.index(model))
    plan, counts = plan_of(rng, model)
    specs = [RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=counts) for policy in ("lru", "cost", "mru")]
    specs.append(RowSpec(kind=RowKind.CLAIRVOYANT, policy="lru", page_counts=counts))
    paths = {name: count for name, count in counts.items() if name not in ("swa", "mamba")}
    specs += [replace(spec, page_counts=paths, is_path_only=True) for spec in (specs[0], specs[-1])]
    specs.append(RowSpec(kind=RowKind.UNBOUNDED, policy="lru", page_counts=counts))
    alone = [run_row(plan, spec) for spec in specs]
    assert all(row.hit_tokens <= (row.optimum_high_tokens or 0) for row in alone), "in its own order, too"
    rows = certified(alone)
    for row in rows:
        assert row.optimum_low_tokens is not None
        assert row.optimum_high_tokens is not None
        assert row.hit_tokens <= row.optimum_low_tokens <= row.optimum_high_tokens, (row.policy, counts, plan.settings)
        assert row.hit_tokens <= row.ceiling_tokens
    assert any(row.hit_tokens for row in rows)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("model", SHARING)
def test_no_row_hits_more_than_is_possible_in_a_memory_that_pools_share(model: str, seed: int) -> None:
    rng = Random(seed * 37 + SHARING.index(model))
    plan, counts = plan_of(rng, model)
    plan = replace(plan, device_bytes=int(plan.device_bytes * rng.choice([0.6, 1.0])))
    specs = [
        RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=counts, is_shared=True) for policy in ("lru", "density", "mru")
    ]
    specs.append(RowSpec(kind=RowKind.CLAIRVOYANT, policy="lru", page_counts=counts, is_shared=True))
    specs.append(RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=counts))
    alone = [run_row(plan, spec) for spec in specs]
    assert all(row.hit_tokens <= (row.optimum_high_tokens or 0) for row in alone), "in its own order, too"
    *rows, split = certified(alone)
    for row in rows:
        assert row.optimum_low_tokens == max(row.hit_tokens for row in rows)
        assert row.optimum_high_tokens == rows[0].optimum_high_tokens, "one interval for all of them"
        assert row.optimum_high_tokens is not None
        assert row.optimum_low_tokens <= row.optimum_high_tokens <= max(row.ceiling_tokens for row in rows)
    assert split.optimum_low_tokens == split.hit_tokens, "what shares memory is no row of these pools"
    assert rows[0].rejected or any(row.hit_tokens for row in rows)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_row_without_a_bound_hits_the_same_and_a_clairvoyant_one_has_its_bound_anyway(is_shared: bool) -> None:
    plan, counts = plan_of(Random(3), MODELS[0])
    spec = RowSpec(kind=RowKind.POLICY, policy="density", page_counts=counts, is_shared=is_shared)
    bounded, alone = run_row(plan, spec), run_row(plan, replace(spec, is_bounded=False))
    assert alone.hit_tokens == bounded.hit_tokens > 0
    assert alone.optimum_high_tokens is None and bounded.optimum_high_tokens is not None
    clairvoyant = replace(spec, kind=RowKind.CLAIRVOYANT, policy="lru")
    found, wanted = run_row(plan, replace(clairvoyant, is_bounded=False)), run_row(plan, clairvoyant)
    assert found.hit_tokens == wanted.hit_tokens
    assert found.optimum_high_tokens == wanted.optimum_high_tokens is not None


@pytest.mark.parametrize("model", SHARING)
def test_what_fits_on_two_tiers_fits_into_both_budgets_together(model: str) -> None:
    rng = Random(SHARING.index(model))
    plan, counts = plan_of(rng, model)
    plan = replace(plan, host=host_of(plan.composition, 2.0))
    row = RowPlan.of(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=counts, is_shared=True))
    assert row.budget is not None and row.host_budget is not None
    on_host = dict.fromkeys(row.budget.page_blocks, 0)
    coverages = {component.name: component.coverage for component in plan.composition.components}
    for component in plan.composition.components:
        owner = component.shares or component.name
        if component.required and component.coverage == coverages[owner]:
            on_host[owner] += row.host_budget.page_blocks[component.name]
    tightest = 0.0
    for _ in range(300):
        kept = dict.fromkeys(on_host, 0)
        for blocks, page_blocks in ((row.budget.block_count, row.budget.page_blocks), (row.host_budget.block_count, on_host)):
            left = blocks
            for name in rng.sample(list(kept), len(kept)):
                count = rng.choice([left // page_blocks[name], rng.randint(0, left // page_blocks[name])])
                left -= count * page_blocks[name]
                kept[name] += count
        assert row.both_budgets.blocks(kept) <= row.both_budgets.block_count
        tightest = max(tightest, row.both_budgets.blocks(kept) / row.both_budgets.block_count)
    assert tightest > 0.98, "and not much more would"


def served_by(
    *,
    steps: tuple[int, ...],
    prompts: tuple[int, ...],
    outputs: tuple[int, ...],
    runs: tuple[list[int], ...],
    block_tokens: int,
    answers: Mapping[int, list[int]] = MappingProxyType({}),
) -> Workload:
    """Requests that arrive at these steps of 20 ms; those with answers, by index, are gone on from."""
    requests = tuple(
        Request(
            index=index,
            arrival_s=0.02 * step,
            runs=np.array(runs[index], np.int64),
            block_tokens=block_tokens,
            prompt_tokens=prompts[index],
            output_tokens=outputs[index],
            answer_runs=np.array(answers[index], np.int64) if index in answers else None,
        )
        for index, step in enumerate(steps)
    )
    return Workload(name="made", requests=requests, block_count=1000)


@pytest.mark.parametrize(("arrivals", "admissions"), [((0, 1, 2), 2), ((0, 2, 3), 1), ((0, 1, 1), 3)])
def test_a_prompt_is_done_for_the_first_admission_that_finds_its_request_beyond_it(
    arrivals: tuple[int, ...], admissions: int
) -> None:
    """Its first token comes with step 0, and step 1 computes that one; who is admitted before finds it at its prompt's end."""
    plan = Plan(
        workload=served_by(
            steps=arrivals, prompts=(64, 64, 64), outputs=(100, 100, 100), runs=([0, 1], [1, 1], [2, 1]), block_tokens=64
        ),
        composition=composition_for("qwen3-next-80b-a3b"),
        device_bytes=1 << 34,
        settings=ServerSettings(concurrency=8, step_ms=20.0),
    )
    spec = RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 100, "mamba": 20})
    served = run_row(plan, spec).served
    assert served["prompt_done"][0] == admissions
    assert served["done"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("kind", [RowKind.POLICY, RowKind.CLAIRVOYANT])
def test_a_state_behind_a_prompt_and_the_start_of_its_answer_is_saved_with_the_answer(kind: RowKind) -> None:
    """The first request's prompt ends within a page, which its answer fills; there is room for one state beside two."""
    plan = Plan(
        workload=served_by(
            steps=(0, 10, 100),
            prompts=(48, 32, 80),
            outputs=(60, 5, 5),
            runs=([0, 3], [5, 2], [0, 4]),
            block_tokens=16,
            answers={0: [3, 1]},
        ),
        composition=composition_for("qwen3-next-80b-a3b"),
        device_bytes=1 << 34,
        settings=ServerSettings(concurrency=8, step_ms=20.0),
    )
    row = run_row(plan, RowSpec(kind=kind, policy="lru", page_counts={"full": 100, "mamba": 3}))
    assert row.hit_tokens == row.optimum_high_tokens == 64


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_state_that_is_locked_with_windows_without_a_page_count_is_not_counted_twice(seed: int) -> None:
    rng = Random(seed + 124)
    page = rng.choice([1, 16, 64])
    components = (
        full(page_size=page, bytes_per_token=100, flops_per_token=1e9),
        swa(page_size=page, window_tokens=1023, layers=2, bytes_per_token=100, flops_per_token=1e8),
        mamba(state_bytes=1000, save_grid_tokens=page, flops_per_token=1e9),
    )
    plan = Plan(
        workload=workload(rng, 64),
        composition=Composition(name="made", page_size=page, components=components),
        device_bytes=1 << 30,
        settings=ServerSettings(
            concurrency=rng.choice([2, 4, 8]), chunk_tokens=rng.choice([64, 512]), time_scale=rng.choice([0.0, 0.3, 1.0])
        ),
    )
    row = run_row(plan, RowSpec(kind=RowKind.CLAIRVOYANT, policy="lru", page_counts={"mamba": rng.randint(2, 12)}))
    assert row.hit_tokens <= (row.optimum_high_tokens or 0)


def test_a_request_that_is_admitted_again_does_not_hit_itself() -> None:
    """Four prompts that share nothing, preempted, loaded back from host, and preempted while they load."""
    page = 16
    composition = Composition(
        name="made", page_size=page, components=(full(page_size=page, bytes_per_token=100, flops_per_token=1e9),)
    )
    plan = Plan(
        workload=served_by(
            steps=(0, 0, 0, 0),
            prompts=(32, 64, 80, 112),
            outputs=(253, 262, 259, 85),
            runs=([0, 2], [100, 4], [200, 5], [300, 7]),
            block_tokens=page,
        ),
        composition=composition,
        device_bytes=30 * 1600,
        host=HostSettings(
            page_counts={"full": 400}, size_bytes=400 * 1700, load_cost=LoadCost(bytes_per_s=8000.0, flops_per_s=1e3)
        ),
        settings=ServerSettings(concurrency=8, chunk_tokens=512, step_ms=20.0),
    )
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 30}))
    assert row.preempted
    assert row.hit_tokens == row.optimum_high_tokens == 0
