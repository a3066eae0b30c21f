"""Whole replays over the real cache: the traces' own ceiling, what adds up, what comes home."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_rows import figures

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, report_specs, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row, run_rows
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import Workload
from unified_tree.policies.table import POLICIES

Listed = tuple[int, int, int, list[int]]
"""Prompt tokens, tokens a block, scope of the ids, ids."""
TRACES = Path(os.environ.get("UNIFIED_TREE_TRACES", Path(__file__).parents[5] / "shared" / "traces"))
ONE_AT_A_TIME = ServerSettings(concurrency=1, time_scale=0, chunk_tokens=1 << 20)
GIB = 1 << 30


def ceiling(lists: Iterable[Listed]) -> tuple[int, int]:
    """Hit and prompt tokens of (prompt tokens, block tokens, scope, ids) in order, in a cache that forgets nothing."""
    known: set[tuple[int, int]] = set()
    hit = total = 0
    for prompt, block, scope, ids in lists:
        whole = [(scope, i) for i in ids[: prompt // block]]
        matched = next((k for k, i in enumerate(whole) if i not in known), len(whole))
        known.update(whole)
        hit += min(matched * block, (prompt - 1) // block * block)
        total += prompt
    return hit, total


def mooncake_lists(path: Path) -> Iterator[Listed]:
    data = path.read_bytes()
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
        fields = json.loads(line)
        yield fields["input_length"], 512, 0, fields["hash_ids"]


def generated_block_trace(path: Path) -> Path:
    """Chats that grow by some blocks a turn, in Mooncake's format."""
    draw = np.random.default_rng(11)
    chats, next_id, lines = [[0] for _ in range(40)], 1, []
    for i in range(400):
        chat = chats[int(draw.integers(40))]
        grown = int(draw.integers(1, 6))
        chat += range(next_id, next_id + grown)
        next_id += grown
        length = 512 * (len(chat) - 1) + int(draw.integers(1, 513))
        lines.append({"timestamp": 50 * i, "input_length": length, "output_length": 7, "hash_ids": list(chat)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def unbounded(workload: Workload) -> RowResult:
    composition = composition_for("llama-3.1-8b", page_size=64)
    plan = Plan(workload=workload, composition=composition, device_bytes=GIB, settings=ONE_AT_A_TIME)
    return run_row(plan, RowSpec(kind=RowKind.UNBOUNDED, policy="lru", page_counts={}))


def test_one_at_a_time_without_bounds_a_full_attention_model_reaches_the_block_traces_ceiling(tmp_path: Path) -> None:
    real = TRACES / "mooncake" / "conversation_trace.jsonl.gz"
    path = real if real.exists() else generated_block_trace(tmp_path / "trace.jsonl")
    workload = read_trace(path)
    hit, total = ceiling(mooncake_lists(path))
    row = unbounded(workload)
    assert (row.hit_tokens, row.prompt_tokens) == (hit, total)
    if real.exists():
        assert row.hit_rate == pytest.approx(0.374, abs=0.001)


def session_lists(path: Path, count: int) -> Iterator[tuple[float, *Listed]]:
    with gzip.open(path, "rt") as stream:
        for number, line in zip(range(count), stream, strict=False):
            yield from agent_lists(json.loads(line)["requests"], number, 0.0)


def agent_lists(requests: list[dict[str, Any]], scope: int, start_s: float) -> Iterator[tuple[float, *Listed]]:
    """(arrival, prompt, 64, scope, ids) of one session, sub-agents included."""
    for request in requests:
        if "requests" in request:
            yield from agent_lists(request["requests"], scope, start_s + request["t"])
            continue
        runs = request["hash_runs"]
        ids = [i for first, n in zip(runs[::2], runs[1::2], strict=True) for i in range(first, first + n)]
        yield start_s + request["t"], request["in"], 64, scope, ids


def generated_session_trace(path: Path) -> Path:
    draw = np.random.default_rng(12)
    with gzip.open(path, "wt") as stream:
        for _ in range(12):
            turns, size = [], 100
            for turn in range(20):
                size += int(draw.integers(1, 30))
                runs = [1, size - turn, 5000 + 100 * turn, turn][
                    : 4 if turn else 2
                ]  # an id stands for a block behind its prefix
                turns.append({"t": 9.0 * turn, "in": 64 * size + 3, "out": 20, "hash_runs": runs})
            nested = {"t": 50.0, "requests": [{"t": 1.0, "in": 700, "out": 1, "hash_runs": [1, 10]}]}
            stream.write(json.dumps({"block_size": 64, "hash_id_scope": "local", "requests": [*turns, nested]}) + "\n")
    return path


def test_the_same_for_the_agent_sessions(tmp_path: Path) -> None:
    real = TRACES / "kv-cache-tester" / "claude_code.runs.jsonl.gz"
    path = real if real.exists() else generated_session_trace(tmp_path / "sessions.gz")
    count = 12  # sessions; the whole trace takes minutes
    lists = list(session_lists(path, count))
    workload = read_trace(path, TraceOptions(max_requests=len(lists)))
    assert len(workload.requests) == len(lists)
    hit, total = ceiling(
        (prompt, block, scope, ids) for _, prompt, block, scope, ids in sorted(lists, key=lambda entry: (entry[3], entry[0]))
    )
    row = unbounded(workload)
    assert (row.hit_tokens, row.prompt_tokens) == (hit, total)


SMALL = SyntheticOptions(request_count=150, session_gap_s=4)


def small_plan(model: str, device_gib: float) -> Plan:
    return Plan(
        certify=True,
        workload=synthetic_workload(SMALL),
        composition=composition_for(model),
        device_bytes=int(device_gib * GIB),
        settings=ServerSettings(concurrency=8),
    )


@pytest.mark.parametrize(
    ("model", "device_gib"),
    [("llama-3.1-8b", 12.0), ("gpt-oss-20b", 2.5), ("qwen3-next-80b-a3b", 4.0), ("deepseek-v4-flash", 2.0)],
)
def test_every_row_adds_up_and_repeats(model: str, device_gib: float) -> None:
    plan = small_plan(model, device_gib)
    page_counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    for each in report_specs(list(POLICIES), page_counts, plan):
        spec = replace(each, is_bounded=each.policy == "lru")  # bounds are dear, and have tests of their own
        row = run_row(plan, spec)
        assert row.rejected == 0
        assert row.hit_tokens + record(row)["recomputed_tokens"] == row.prompt_tokens == plan.workload.prompt_tokens
        assert row.prefill_flops is not None and row.prefill_flops_saved is not None
        assert 0 <= row.prefill_flops_saved <= row.prefill_flops
        for name, pool in row.cache.pools.items():
            assert pool.used <= row.peak_pages[name]
            assert pool.total is None or row.peak_pages[name] <= pool.total
        if spec.policy == "lru":
            assert figures(run_row(plan, spec)) == figures(row)


def test_the_references_frame_the_policies() -> None:
    plan = small_plan("gpt-oss-20b", 2.5)
    page_counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    rows = {spec.label: run_row(plan, spec) for spec in report_specs(["lru", "mru"], page_counts, plan)}
    assert rows["unbounded"].cache.evictions == 0
    assert rows["lru"].cache.evictions > 0
    assert rows["mru"].hit_rate < rows["lru"].hit_rate <= rows["unbounded"].hit_rate
    assert rows["lru"].hit_rate <= rows["clairvoyant"].hit_rate + 0.02


def test_rows_in_processes_are_the_same_rows() -> None:
    plan = small_plan("gpt-oss-20b", 2.5)
    specs = report_specs(["lru"], split_for_server(plan.composition, plan.device_bytes, plan.settings), plan)[:2]
    seen = dict.fromkeys(range(len(specs)), 0)

    def progress(row: int, count: int) -> None:
        seen[row] += count

    side_by_side = run_rows(plan, specs, 2, progress)
    assert seen == dict.fromkeys(range(len(specs)), 150)
    one_by_one = run_rows(plan, specs, 1, lambda _row, _count: None)
    for a, b in zip(side_by_side, one_by_one, strict=True):
        assert figures(a) == figures(b)


def test_requests_that_can_never_fit_are_rejected_and_counted() -> None:
    plan = small_plan("llama-3.1-8b", 1.0)
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 150}))
    fitting = [r for r in plan.workload.requests if r.prompt_tokens + r.output_tokens <= 150 * 64]
    assert row.rejected == len(plan.workload.requests) - len(fitting) > 0
    assert row.served_prompt_tokens == sum(r.prompt_tokens for r in fitting)
    assert row.prompt_tokens == plan.workload.prompt_tokens
    assert row.hit_tokens + record(row)["recomputed_tokens"] + row.rejected_tokens == row.prompt_tokens
