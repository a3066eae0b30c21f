"""Modelled latency: what a step computes, what a time to the first token consists of, and the closed loop of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_rows import invoke as run
from replay_rows import wrong_bytes

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.runs.row_result import LATENCY_PARTS, RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.step_clock import PrefillPace
from unified_tree.controllers.workbench.server.traffic import ClosedLoop
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.traces.synthetic import MultiturnOptions, multiturn_workload
from unified_tree.terms.errors import ConfigurationError

MODEL = composition_for("llama-3.1-8b")
GIB = 1 << 30


def row_of(rate: float, options: MultiturnOptions, pages: int = 100_000, step_ms: float = 1.0) -> RowResult:
    plan = Plan(
        workload=multiturn_workload(options),
        composition=MODEL,
        device_bytes=GIB,
        settings=ServerSettings(step_ms=step_ms, prefill_flops_per_s=rate),
        verification=Verification.SHRUNK,
    )
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": pages}))
    assert row.verified is not None
    assert row.verified.wrong_bytes == 0
    return row


@pytest.mark.parametrize("rate", [1e13, 3e14, 1e17])
def test_a_prompt_alone_takes_as_long_as_its_flops(rate: float) -> None:
    row = row_of(rate, MultiturnOptions(clients=3, rounds=1, parallel=1))
    times = record(row)
    seconds = MODEL.prefill_flops(0, 8000) / rate
    assert seconds <= times["modelled_ttft_s_mean"] <= seconds + 0.001
    assert [times[f"modelled_{name}_s_mean"] for name in LATENCY_PARTS] == [0.0, 0.0, 0.0, times["modelled_ttft_s_mean"]]
    assert times["modelled_ttft_s_p50"] == pytest.approx(times["modelled_ttft_s_p99"])
    assert times["modelled_ttft_s_first_turns"] == times["modelled_ttft_s_mean"]
    assert times["modelled_ttft_s_later_turns"] is None
    assert times["modelled_requests_per_s"] == pytest.approx(1 / (times["modelled_ttft_s_mean"] + 0.2), rel=0.01), (
        "200 tokens of a ms"
    )


def test_prompts_that_come_together_wait_for_each_other_in_turn() -> None:
    rate = 1e14
    row = row_of(rate, MultiturnOptions(clients=4, rounds=1, parallel=4))
    seconds = MODEL.prefill_flops(0, 8000) / rate
    assert record(row)["modelled_ttft_s_mean"] == pytest.approx(2.5 * seconds, abs=0.002), "1, 2, 3 and 4 of them"
    assert record(row)["modelled_ttft_s_p99"] == pytest.approx(4 * seconds, rel=0.05)


def test_later_turns_compute_only_what_is_new() -> None:
    rate = 1e13
    row = row_of(rate, MultiturnOptions(clients=2, rounds=3, parallel=1))
    kept = (8000 + 200) // 64 * 64
    kept_later = (8000 + 200 + 128 + 200) // 64 * 64
    flops = [MODEL.prefill_flops(kept, 8000 + 328), MODEL.prefill_flops(kept_later, 8000 + 2 * 328)]
    assert record(row)["modelled_ttft_s_later_turns"] == pytest.approx(sum(flops) / 2 / rate, abs=0.002)
    assert row.hit_tokens == 2 * (kept + kept_later), "answers are gone on from, too"


def test_a_hybrid_goes_on_from_the_state_behind_the_answer() -> None:
    hybrid = composition_for("qwen3-next-80b-a3b")
    plan = Plan(
        workload=multiturn_workload(MultiturnOptions(clients=2, rounds=3, parallel=2, request_tokens=1280, answer_tokens=256)),
        composition=hybrid,
        device_bytes=GIB,
        settings=ServerSettings(prefill_flops_per_s=1e15),
        verification=Verification.SHRUNK,
    )
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 1000, "mamba": 40}))
    assert row.hit_tokens == 2 * (1280 + 256 + 1280 + 256 + 128 + 256)
    assert wrong_bytes(row) == 0


def test_a_rate_below_a_token_a_step_gets_on() -> None:
    one_token = MODEL.prefill_flops(0, 1)
    small = MultiturnOptions(clients=1, rounds=1, parallel=1, request_tokens=20, answer_tokens=4, follow_up_tokens=4)
    row = row_of(one_token * 100, small)  # ten steps of 1 ms a token
    assert 0.199 < record(row)["modelled_ttft_s_mean"] < 0.203


def test_without_a_rate_a_step_computes_its_chunk_whatever_it_costs() -> None:
    pace = PrefillPace(ServerSettings(chunk_tokens=100))
    pace.begin_step()
    assert pace.max_tokens(0, 1000) == 100
    pace.spend(0, 60)
    assert pace.max_tokens(60, 1000) == 40
    assert pace.max_tokens(60, 70) == 10
    pace.spend(60, 100)
    assert pace.max_tokens(0, 5) == 0


def test_a_step_s_flops_are_spent_to_the_last_token_and_idle_hardware_saves_none() -> None:
    settings = ServerSettings(chunk_tokens=8192, step_ms=1000, prefill_flops_per_s=MODEL.prefill_flops(0, 1000) * 1.0001)
    pace = PrefillPace(settings, MODEL)
    for _ in range(3):
        pace.begin_step()
        assert pace.max_tokens(0, 5000) == 1000
        pace.end_step(has_more=False)
    pace.begin_step()
    pace.spend(0, 1000)
    pace.end_step(has_more=True)
    pace.begin_step()
    most = pace.max_tokens(1000, 5000)
    left = settings.prefill_flops_per_s
    assert left is not None
    assert MODEL.prefill_flops(1000, 1000 + most) <= left * 1.001 < MODEL.prefill_flops(1000, 1002 + most)


def test_the_workload_has_the_published_parameters() -> None:
    workload = multiturn_workload()
    assert len(workload.requests) == 3 * 128
    assert sorted({request.prompt_tokens for request in workload.requests}) == [8000, 8328, 8656]
    assert {request.output_tokens for request in workload.requests} == {200}
    assert workload.parallel == 4
    first, second = workload.requests[5], workload.requests[128 + 5]
    assert first.chain == second.chain
    assert second.tokens()[:8200].tolist() == first.tokens().tolist(), "an answer is part of the next prompt"
    seen = [set(request.tokens().tolist()) for request in workload.requests[:128]]
    assert len(set.union(*seen)) == sum(map(len, seen)), "clients share nothing"
    assert np.unique(np.concatenate([request.tokens() for request in workload.requests])).max() < workload.block_count


def test_a_closed_loop_keeps_as_many_out_as_it_may_and_clients_in_turn() -> None:
    workload = multiturn_workload(MultiturnOptions(clients=5, rounds=2, parallel=2))
    loop = ClosedLoop(workload, 2)
    out = [request for _, request in loop.until(7)]
    assert loop.next_step is None, "all others wait for somebody to end"
    order = [request.index for request in out]
    while out:
        following = loop.after(out.pop(0))
        if following is not None:
            out.append(following)
            order.append(following.index)
            assert len(out) == 2
    assert order == list(range(10))
    assert loop.until(9) == []


def test_fewer_clients_than_places() -> None:
    workload = multiturn_workload(MultiturnOptions(clients=2, rounds=3, parallel=9))
    loop = ClosedLoop(workload, 9)
    out = [request for _, request in loop.until(0)]
    seen = 0
    while out:
        seen += 1
        following = loop.after(out.pop(0))
        out += [following] if following is not None else []
    assert seen == 6


LOOP = ["replay", "multiturn", "--clients", 6, "--rounds", 2, "--parallel", 2, "--request-tokens", 2000, "--policy", "lru"]


def test_the_report_states_the_hardware_and_every_tier_cuts_the_wait(tmp_path: Path) -> None:
    def modelled(*arguments: object) -> dict[str, Any]:
        out = tmp_path / "rows.json"
        given = [*LOOP, "--model", "llama-3.1-8b", "--device-gib", 1, "--prefill-tflops", 40, "--jobs", 1, "--step-ms", 5]
        result = run(*given, *arguments, "--json", out)
        assert result.exit_code == 0, result.output
        assert all(len(line) <= 120 for line in result.stdout.splitlines() if str(tmp_path) not in line)
        assert "Modelled, not measured, from prefill 40 TFLOP/s" in result.stdout
        row: dict[str, Any] = json.loads(out.read_text())[0]
        parts = sum(row[f"modelled_{name}_s_mean"] for name in LATENCY_PARTS)
        assert row["modelled_ttft_s_mean"] == pytest.approx(parts)
        return row

    store = ["--storage", f"file:{tmp_path / 'store'}", "--host-gib", 1.2]
    device, host = modelled(), modelled("--host-gib", 4)
    cold, warm = modelled(*store), modelled(*store)
    assert host["modelled_ttft_s_later_turns"] < device["modelled_ttft_s_later_turns"] / 2
    assert cold["modelled_ttft_s_later_turns"] < device["modelled_ttft_s_later_turns"] / 2
    assert cold["modelled_ttft_s_first_turns"] >= device["modelled_ttft_s_first_turns"], "nothing is stored yet"
    assert warm["modelled_ttft_s_first_turns"] < cold["modelled_ttft_s_first_turns"] / 2
    assert warm["modelled_requests_per_s"] > device["modelled_requests_per_s"]
    assert host["modelled_load_s_mean"] > 0 == device["modelled_load_s_mean"]
    assert warm["modelled_fetch_s_mean"] > 0


def test_a_trace_is_modelled_where_hardware_is_stated_and_not_otherwise(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    plain = ["replay", "--requests", 20, "--policy", "lru", "--jobs", 1, "--json", out]
    assert "odelled" not in run(*plain).stdout
    assert not [name for row in json.loads(out.read_text()) for name in row if "modelled" in name]
    assert "Modelled, not measured" in run(*plain, "--prefill-tflops", 100).stdout
    assert all(row["modelled_ttft_s_mean"] > 0 for row in json.loads(out.read_text()))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="rounds"):
        MultiturnOptions(rounds=0)
