"""A row whose keys are packed has the figures of one whose keys are not. An inspector's recording needs the tokens, so with it
no keys are packed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unified_tree import TenantGroup, Tenants
from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowPlan, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import HostSettings, ServerSettings
from unified_tree.controllers.workbench.traces.block_ids import densify
from unified_tree.controllers.workbench.traces.workload import Request, Workload, pack_runs
from unified_tree.declare.keys import packed_key

if TYPE_CHECKING:
    from pathlib import Path

    from unified_tree.controllers.workbench.runs.row_result import RowResult

MODELS = {"qwen3-32b": 8 << 30, "gpt-oss-20b": 2 << 30, "qwen3-next-80b-a3b": 4 << 30}
"""With a memory for each that is short."""


def workload(seed: int, block_tokens: int) -> Workload:
    """Prompts of any length that go on from beginnings of earlier prompts and answers, in two namespaces."""
    random = np.random.default_rng(seed)
    texts, lists, lengths = [[0, 1, 2]], [], []
    for number in range(150):
        earlier = texts[int(random.integers(max(0, len(texts) - 40), len(texts)))]
        kept = earlier[: int(random.integers(1, len(earlier) + 1))]
        text = [*kept, *(1000 * (number + 1) + i for i in range(int(random.integers(1, 3000 // block_tokens))))]
        texts.append(text)
        prompt = int(random.integers(1, len(text) * block_tokens + 1))
        lists.append(np.array(text, np.int64))
        lengths.append((prompt, len(text) * block_tokens - prompt + int(random.integers(0, 700))))
    runs, block_count = densify([pack_runs(ids) for ids in lists], 0)
    requests = []
    for index, (ids, (prompt, output)) in enumerate(zip(runs, lengths, strict=True)):
        whole = np.concatenate([np.arange(first, first + count) for first, count in ids.reshape(-1, 2)])
        cut = prompt // block_tokens
        requests.append(
            Request(
                index=index,
                arrival_s=0.05 * index,
                runs=pack_runs(whole[:cut]),
                answer_runs=pack_runs(whole[cut:]) if cut < whole.size else None,
                block_tokens=block_tokens,
                prompt_tokens=prompt,
                output_tokens=output,
                namespace="ab"[index % 5 == 0],
            )
        )
    return Workload(name="random", requests=tuple(requests), block_count=block_count)


def figures(row: RowResult) -> list[Any]:
    columns = {name: row.served[name].tolist() for name in row.served.dtype.names or () if name != "spent_ns"}
    cache = re.sub(r"LatencyStats\(counts=[^)]*\)[^)]*\)", "", repr(row.cache))  # which are in real time
    return [columns, row.turned_away["prompt_tokens"].tolist(), row.preempted, row.miss_tokens, cache]


@pytest.mark.parametrize(
    ("model", "policy", "page_size", "block_tokens", "host"),
    [
        ("qwen3-32b", "lru", 64, 512, False),
        ("qwen3-32b", "density", 8, 16, True),
        ("gpt-oss-20b", "density", 64, 24, False),
        ("gpt-oss-20b", "lru", 16, 64, True),
        ("qwen3-next-80b-a3b", "density", 64, 16, False),
    ],
)
def test_packed_keys_change_no_figure(
    model: str, policy: str, page_size: int, block_tokens: int, host: bool, tmp_path: Path
) -> None:
    composition, settings = composition_for(model, page_size=page_size), ServerSettings(concurrency=6)
    page_counts = split_for_server(composition, MODELS[model], settings)
    host_bytes = 2 * MODELS[model]
    of_host = HostSettings(size_bytes=host_bytes, page_counts=composition.split_budget(host_bytes))
    plan = Plan(
        workload=workload(block_tokens, block_tokens),
        composition=composition,
        device_bytes=MODELS[model],
        settings=settings,
        host=of_host if host else None,
    )
    spec = RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts)
    recorded = replace(spec, recording=tmp_path / "recording")
    assert RowPlan.of(plan, spec).packs
    assert not RowPlan.of(plan, recorded).packs
    packed, plain = run_row(plan, spec), run_row(plan, recorded)
    assert figures(packed) == figures(plain)
    assert packed.hit_tokens
    assert packed.served["host_hit_tokens"].any() if host else packed.miss_tokens["evicted"]


@pytest.mark.parametrize(("page_size", "block_tokens"), [(4, 16), (16, 12), (16, 1)])
def test_keys_are_packed_only_where_blocks_and_pages_are_whole_groups(page_size: int, block_tokens: int) -> None:
    composition, settings = composition_for("qwen3-32b", page_size=page_size), ServerSettings()
    prompts = Workload(
        name="one",
        requests=(
            Request(index=0, arrival_s=0, runs=np.array([0, 2]), block_tokens=block_tokens, prompt_tokens=40, output_tokens=1),
        ),
        block_count=2,
    )
    plan = Plan(workload=prompts, composition=composition, device_bytes=1 << 30, settings=settings)
    spec = RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=split_for_server(composition, 1 << 30, settings))
    assert not RowPlan.of(plan, spec).packs


@pytest.mark.parametrize(("is_one", "packs"), [(True, False), (False, True)])
def test_keys_of_namespaces_that_share_are_not_packed(is_one: bool, packs: bool) -> None:
    """Their ids have marks."""
    composition, settings = composition_for("qwen3-32b", page_size=16), ServerSettings()
    plan = Plan(
        workload=workload(3, 16),
        composition=composition,
        device_bytes=8 << 30,
        settings=settings,
        tenants=Tenants(groups=(TenantGroup(name="both", namespaces=("a", "b"), one_namespace=is_one),)),
    )
    spec = RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=split_for_server(composition, 8 << 30, settings))
    assert RowPlan.of(plan, spec).packs == packs
    assert run_row(plan, spec).hit_tokens


def test_every_eighth_token_is_the_id_of_a_packed_key() -> None:
    prompt = Request(
        index=3,
        arrival_s=0,
        runs=np.array([7, 2]),
        answer_runs=np.array([1, 1]),
        block_tokens=16,
        prompt_tokens=45,
        output_tokens=8,
    )
    assert prompt.tokens(8).tolist() == prompt.tokens()[::8].tolist()
    key = packed_key(prompt.tokens(8), 45, "a")
    assert (len(key), len(key.data), key.namespace) == (45, 45, "a")
    assert (len(key.prefix(16)), key.tail(16).data) == (16, bytes(key.data)[16:])
