"""Requests that never had a place left all figures: pools in which next to nothing fitted seemed to hit most."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from random import Random
from typing import Any

import numpy as np
import pytest
from replay_rows import invoke, rows_of

from unified_tree import Component, Path, Trailing
from unified_tree.components import Composition
from unified_tree.controllers.doctor import findings
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.sizes import best_split, path_sizes, sizes_of
from unified_tree.controllers.workbench.sizing.surface import Surface, survey
from unified_tree.controllers.workbench.traces.workload import Request, Workload

PAGE = 16


def workload_of(lengths: list[tuple[int, int]]) -> Workload:
    """Requests of so many prompt and answer tokens; all of those shorter than 33 pages begin alike."""
    requests = []
    for index, (prompt, answer) in enumerate(lengths):
        first = 0 if prompt < 33 * PAGE else 1000 * (index + 1)
        runs = np.array([first, prompt // PAGE], np.int64)
        requests.append(
            Request(
                index=index, arrival_s=float(index), runs=runs, block_tokens=PAGE, prompt_tokens=prompt, output_tokens=answer
            )
        )
    return Workload(name="made", requests=tuple(requests), block_count=1000 * (len(lengths) + 2))


def composition(window: int | None = None) -> Composition:
    components = [Component(name="full", coverage=Path(), page_bytes=1024)]
    if window is not None:
        components.append(Component(name="swa", coverage=Trailing(window), page_bytes=1024))
    return Composition(name="made", components=tuple(components), page_size=PAGE)


def plan_of(workload: Workload, window: int | None, device_pages: int, **settings: int) -> Plan:
    given: dict[str, Any] = {"concurrency": 2, "chunk_tokens": 512, **settings}
    return Plan(
        workload=workload,
        composition=composition(window),
        device_bytes=device_pages * 1024,
        settings=ServerSettings(**given),
    )


def row_of(plan: Plan, page_counts: dict[str, int]) -> RowResult:
    return run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=page_counts, is_bounded=False))


def surface_of(plan: Plan, page_counts: dict[str, int]) -> Surface:
    needs = Needs.of(plan.composition.components, PAGE, plan.settings.chunk_tokens)
    return survey(Sample.of(plan.workload), needs, plan.settings, path_sizes(plan, needs, page_counts), 1)


SHORT_AND_LONG = [(500, 4)] * 20 + [(4000, 10)] * 180


def test_a_row_says_both_rates_and_the_causes_sum_up() -> None:
    row = row_of(plan_of(workload_of(SHORT_AND_LONG), None, 100), {"full": 100})
    told = record(row)
    assert (told["requests"], told["rejected"], told["rejected_tokens"]) == (200, 180, 180 * 4000)
    assert told["prompt_tokens"] == 20 * 500 + 180 * 4000
    assert told["hit_rate"] == row.hit_tokens / told["prompt_tokens"] < 0.02
    assert told["served_hit_rate"] == row.hit_tokens / (20 * 500) > 0.8
    assert row.miss_tokens["rejected"] == 180 * 4000
    assert row.hit_tokens + sum(row.miss_tokens.values()) == row.prompt_tokens


def test_the_doctor_names_what_was_rejected_first() -> None:
    row = row_of(plan_of(workload_of(SHORT_AND_LONG), None, 100), {"full": 100})
    first = findings(row.figures)[0]
    assert "180 requests" in first.what and "never had a place" in first.what
    assert "4,000" in first.advice
    assert first.tokens == 180 * 4000
    assert sum(row.figures.misses.values()) == row.figures.prompt_tokens - row.figures.hit_tokens


def test_a_split_that_rejects_is_not_the_best() -> None:
    """Few pages of path would hit all that is served; a quarter more serve all."""
    plan = plan_of(workload_of([(500, 4)] * 30 + [(4000, 10)] * 3), 100, 560)
    counts = {"full": 100, "swa": 460}
    sizes = sizes_of(plan, surface_of(plan, counts), counts)
    assert sizes.present.rejected == 3 and sizes.present.rejected_share == 3 * 4000 / plan.workload.prompt_tokens
    assert sizes.recommended.rejected == 0
    assert sizes.recommended.page_counts["full"] * PAGE >= 4010
    assert row_of(plan, dict(sizes.recommended.page_counts)).rejected == 0


def test_the_report_warns_where_no_split_serves_all(tmp_path: FilePath) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 60000, "output_length": 4, "hash_ids": list(range(1000 * i, 1000 * i + 117))}
        for i in range(20)
    ] + [{"timestamp": 1000 * i, "input_length": 1024, "output_length": 4, "hash_ids": [9, 8]} for i in range(20, 30)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    told = tmp_path / "sizes.json"
    result = invoke(
        "size", trace, "--model", "qwen3-32b", "--device-gib", 4, "--json", told, "--plot", tmp_path / "a.svg", "--check"
    )
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "WARNING: the present split rejects 20 of 30 requests, 99.2 % of the prompt tokens" in words
    assert "no split of this device serves all. The longest request has 60,004 tokens" in words
    sizes = json.loads(told.read_text())
    assert sizes["present"]["rejected"] == 20
    assert sizes["present"]["hit_rate"] == pytest.approx(sizes["present"]["replayed_hit_rate"], abs=0.001)
    assert sizes["present"]["hit_rate"] < 0.01
    curves = [each for each in sizes["curves"] if each["tier"] == "device" and each["split"] is not None]
    assert [curve["points"][0]["rejected"] for curve in curves] == [20, 20]
    rows = rows_of(tmp_path / "rows.json", "replay", trace, "--model", "qwen3-32b", "--device-gib", 4, "--policy", "lru")
    assert rows["lru"]["rejected"] == 20
    assert rows["lru"]["hit_rate"] < 0.01
    assert rows["lru"]["served_hit_rate"] > 0.5


def test_what_the_survey_rejects_the_replay_rejects() -> None:
    """Pools of all sizes down to none that is of use: the survey names as many requests as the server turns away."""
    rng = Random(5)
    seen = set()
    for _ in range(60):
        window = rng.choice([None, 5, 40, 127, 600])
        lengths = [(rng.choice([3, 20, 100, 511, 512, 700, 1500, 3000]), rng.choice([1, 5, 60])) for _ in range(8)]
        counts = {"full": rng.choice([1, 2, 8, 33, 40, 100, 200, 400])}
        if window is not None:
            counts["swa"] = rng.choice([1, 2, 3, 8, 20, 33, 60, 90, 200])
        plan = plan_of(workload_of(lengths), window, 600, concurrency=rng.choice([1, 3]))
        surface = surface_of(plan, counts)
        row = row_of(plan, counts)
        assert surface.rejected(counts).requests == row.rejected, (window, lengths, counts)
        assert surface.rejected(counts).token_share == row.rejected_tokens / row.prompt_tokens
        assert 0 <= surface.hit_rate(counts) <= 1 - surface.rejected(counts).token_share
        seen.add((row.rejected > 0, len(row.served) > 0, window is not None))
        best = best_split(surface, plan.device_bytes, plan.settings.concurrency)
        if best is not None and surface.rejected(best).requests == 0:
            assert row_of(plan, best).rejected == 0
    assert len(seen) >= 5
