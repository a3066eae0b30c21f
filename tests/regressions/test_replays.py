"""Replays: their rates, causes of misses, FLOPs, plots, and that they repeat."""

from __future__ import annotations

import io
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa
from replay_plans import small_report
from replay_rows import GIB, figures, host_of, invoke, row_of, rows_of, store_of, wrong_bytes
from rich.console import Console

from unified_tree import Component, ConfigurationError, Key, TreeSettings
from unified_tree.components import Composition, composition_for, model_names
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.doctor import findings
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.report.output_files import write_plot
from unified_tree.controllers.workbench.report.report import print_rows
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.sizes import best_split, path_sizes, sizes_of
from unified_tree.controllers.workbench.sizing.surface import Surface, survey
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.workload import Request, Workload
from unified_tree.memory.archive import Archive

# Requests that never had a place left all figures: pools in which next to nothing fitted seemed to hit most.

PAGE = 16


def plan_of(
    prompts: list[tuple[int, int, int]], kinds: list[Component], device_pages: int, page: int = PAGE, **settings: Any
) -> Plan:
    """A replay of prompts, each given by its first block, its tokens, and those of its answer."""
    requests = tuple(
        Request(
            index=index,
            arrival_s=float(index),
            runs=np.array([first, tokens // page], np.int64),
            block_tokens=page,
            prompt_tokens=tokens,
            output_tokens=answer,
        )
        for index, (first, tokens, answer) in enumerate(prompts)
    )
    blocks = max(first + tokens // page for first, tokens, _ in prompts)
    return Plan(
        workload=Workload(name="made", requests=requests, block_count=blocks),
        composition=Composition(name="made", components=tuple(kinds), page_size=page),
        device_bytes=device_pages * kinds[0].page_bytes,
        settings=ServerSettings(**settings),
    )


def mixed(lengths: list[tuple[int, int]], window: int | None, device_pages: int, concurrency: int = 2) -> Plan:
    """Requests of so many prompt and answer tokens; all of those shorter than 33 pages begin alike."""
    prompts = [(0 if tokens < 33 * PAGE else 1000 * at, tokens, answer) for at, (tokens, answer) in enumerate(lengths, 1)]
    kinds = [FULL, *([] if window is None else [swa(window)])]
    return plan_of(
        prompts, [replace(c, page_bytes=1024) for c in kinds], device_pages, concurrency=concurrency, chunk_tokens=512
    )


def run_with(plan: Plan, page_counts: dict[str, int], policy: str = "lru") -> RowResult:
    return run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts, is_bounded=False))


def surface_of(plan: Plan, page_counts: dict[str, int]) -> Surface:
    needs = Needs.of(plan.composition.components, PAGE, plan.settings.chunk_tokens)
    return survey(Sample.of(plan.workload), needs, plan.settings, path_sizes(plan, needs, page_counts), 1)


SHORT_AND_LONG = [(500, 4)] * 20 + [(4000, 10)] * 180


def test_a_row_says_both_rates_and_the_causes_sum_up() -> None:
    row = run_with(mixed(SHORT_AND_LONG, None, 100), {"full": 100})
    told = record(row)
    assert (told["requests"], told["rejected"], told["rejected_tokens"]) == (200, 180, 180 * 4000)
    assert told["prompt_tokens"] == 20 * 500 + 180 * 4000
    assert told["hit_rate"] == row.hit_tokens / told["prompt_tokens"] < 0.02
    assert told["served_hit_rate"] == row.hit_tokens / (20 * 500) > 0.8
    assert row.miss_tokens["rejected"] == 180 * 4000
    assert row.hit_tokens + sum(row.miss_tokens.values()) == row.prompt_tokens


def test_the_doctor_names_what_was_rejected_first() -> None:
    row = run_with(mixed(SHORT_AND_LONG, None, 100), {"full": 100})
    first = findings(row.figures)[0]
    assert "180 requests" in first.what and "never had a place" in first.what
    assert "4,000" in first.advice
    assert first.tokens == 180 * 4000
    assert sum(row.figures.misses.values()) == row.figures.prompt_tokens - row.figures.hit_tokens


def test_a_split_that_rejects_is_not_the_best() -> None:
    """Few pages of path would hit all that is served; a quarter more serve all."""
    plan = mixed([(500, 4)] * 30 + [(4000, 10)] * 3, 100, 560)
    counts = {"full": 100, "swa": 460}
    sizes = sizes_of(plan, surface_of(plan, counts), counts)
    assert sizes.present.rejected == 3 and sizes.present.rejected_share == 3 * 4000 / plan.workload.prompt_tokens
    assert sizes.recommended.rejected == 0
    assert sizes.recommended.page_counts["full"] * PAGE >= 4010
    assert run_with(plan, dict(sizes.recommended.page_counts)).rejected == 0


def test_the_report_warns_where_no_split_serves_all(tmp_path: Path) -> None:
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
    assert "WARNING: the proposed split rejects 20 of 30 requests, 99.2 % of the prompt tokens" in words
    assert "no split of this device that hits as much serves all. The longest request has 60,004 tokens" in words
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
        plan = mixed(lengths, window, 600, concurrency=rng.choice([1, 3]))
        surface = surface_of(plan, counts)
        row = run_with(plan, counts)
        assert surface.rejected(counts).requests == row.rejected, (window, lengths, counts)
        assert surface.rejected(counts).token_share == row.rejected_tokens / row.prompt_tokens
        assert 0 <= surface.hit_rate(counts) <= 1 - surface.rejected(counts).token_share
        seen.add((row.rejected > 0, len(row.served) > 0, window is not None))
        best = best_split(surface, plan.device_bytes, plan.settings.concurrency)
        if best is not None and surface.rejected(best).requests == 0:
            assert run_with(plan, best).rejected == 0
    assert len(seen) >= 5


# A replay called what had been evicted long ago unknown, as a server with bounded memory has to. It must not rank otherwise
# than such a server either, for the policy `density` learns from that memory.

BLOCK = 2
KINDS: dict[str, tuple[list[Component], dict[str, int]]] = {
    "path": ([FULL], {"full": 120}),
    "window": ([FULL, swa(6)], {"full": 160, "swa": 40}),
    "state": ([FULL, MAMBA], {"full": 160, "mamba": 9}),
}


def sessions(seed: int, count: int = 250) -> list[list[int]]:
    """Prompts of blocks, each of which stands behind one prefix; some go on from an earlier one, at its end or before."""
    rng, prompts, block = Random(seed), list[list[int]](), 0
    for _ in range(count):
        before = rng.choice(prompts[-60:]) if prompts and rng.random() < 0.8 else []
        kept = len(before) if rng.random() < 0.7 else rng.randint(0, len(before))
        prompt = before[:kept]
        for _ in range(rng.randint(0, 8)):
            block += 1
            prompt = [*prompt, block]
        prompts.append(prompt or [0])
    return prompts


Cause = tuple[str, int, int, int | None]


def served(kind: str, policy: str, settings: TreeSettings, seed: int, *, archived: bool) -> list[tuple[int, list[Cause]]]:
    """What each prompt hits, and the causes of the rest; whether other tokens came behind a known prefix is left out, for an
    archive knows no texts that went on from one. What several evictions took from one pool is told together, for an archive may
    know a later one of them.
    """
    components, counts = KINDS[kind]
    cache = PrefixCache(components, BLOCK, counts, policy=policy, settings=settings, time_s=lambda: 0.0)
    ghosts = cache.tree.state.ghosts
    assert ghosts is not None
    if archived:
        ghosts.archive = Archive(BLOCK)
    found = []
    for number, prompt in enumerate(sessions(seed)):
        tokens = np.append(np.repeat(np.array(prompt), BLOCK), 10**6 + number)
        with cache.acquire(Key(tokens)) as lease:
            causes: list[Cause] = []
            for miss in lease.misses:
                label = miss.cause.label.replace("diverged", "never_seen")
                pool = None if miss.eviction is None else miss.eviction.component
                goes_on = bool(causes) and (label, pool) == (causes[-1][0], causes[-1][3])
                begin = causes.pop()[1] if goes_on else miss.begin
                causes.append((label, begin, miss.end, pool))
            found.append((lease.cached_tokens, causes))
            for end in sorted({*lease.save_at, len(tokens)}):
                if end > lease.committed:
                    cache.allocate(lease, end)
                    cache.commit(lease, end, {at: page for at, page in lease.save_pages.items() if at <= end})
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ghost_bytes", "faded"), [(1, 0), (1_500, 3), (6_000, 40)])
def test_with_an_archive_a_small_memory_says_what_an_endless_one_says(kind: str, ghost_bytes: int, faded: int) -> None:
    small, endless = TreeSettings(ghost_bytes=ghost_bytes, faded_ghosts=faded), TreeSettings(ghost_bytes=1 << 40)
    for seed in range(3):
        told = served(kind, "lru", small, seed, archived=True)
        assert told == served(kind, "lru", endless, seed, archived=False)
        assert any(cause[0] == "evicted" for _, causes in told for cause in causes)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_changes_nothing_that_is_hit(kind: str) -> None:
    small = TreeSettings(ghost_bytes=1_500, faded_ghosts=3, remembered_turns=32, revise_every=16)
    for seed in range(3):
        with_it = served(kind, "density", small, seed, archived=True)
        without = served(kind, "density", small, seed, archived=False)
        assert [hit for hit, _ in with_it] == [hit for hit, _ in without]
        assert not any(cause[0] == "unknown" for _, causes in with_it for cause in causes)


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_nothing_is_unknown_to_a_replay_of_more_than_its_cache_remembers(policy: str) -> None:
    """Sixteen million tokens, of which a cache remembers eight; then the first prompts come back."""
    block, blocks = 512, 400
    firsts = [i * blocks for i in range(80)] + [0, blocks]
    prompts = [(first, block * blocks + 1, 1) for first in firsts]
    plan = plan_of(prompts, [replace(FULL, page_bytes=64)], 1000, block, concurrency=1)
    row = run_with(plan, {"full": 1000}, policy)
    assert (row.miss_tokens["unknown"], row.miss_tokens["evicted"]) == (0, 2 * block * blocks)
    assert row.figures.pools[0].evicted_tokens == 2 * block * blocks


# A report said that no FLOPs were saved where the model states none.


def stated_plan(flops_per_token: float, **settings: Any) -> Plan:
    return plan_of([(0, 70, 1)] * 3, [replace(FULL, page_bytes=64, flops_per_token=flops_per_token)], 100, **settings)


@pytest.mark.parametrize("flops", [0.0, 1e9])
def test_a_report_says_that_flops_are_not_stated(flops: float) -> None:
    plan = stated_plan(flops)
    row = run_with(plan, {"full": 100})
    told = record(row)
    printed = io.StringIO()
    print_rows(Console(file=printed, width=300), plan, [row])
    assert row.hit_tokens == 128
    if flops:
        assert told["prefill_flops"] == 3 * 70 * flops and told["prefill_flops_saved"] == 128 * flops
        assert "not stated" not in printed.getvalue()
    else:
        assert told["prefill_flops"] is told["prefill_flops_saved"] is told["prefill_flops_saved_share"] is None
        assert "not stated" in printed.getvalue()


def test_time_is_not_modelled_from_flops_that_are_not_stated() -> None:
    with pytest.raises(ConfigurationError, match="states no FLOPs"):
        stated_plan(0.0, prefill_flops_per_s=1e15)
    assert stated_plan(1e9, prefill_flops_per_s=1e15).settings.prefill_flops_per_s == 1e15


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_states_its_flops(name: str) -> None:
    assert composition_for(name).states_flops


def test_a_plot_takes_a_trace_of_any_name(tmp_path: Path) -> None:
    """A trace whose name has two dollar signs was read as a formula by the plot's title: the replay ended without its files."""
    path = tmp_path / "rows.svg"
    write_plot(path, small_report().rows, (), r"$\of{a$.jsonl on gpt-oss-20b")
    assert path.stat().st_size > 0


COMPOSITION = composition_for("gpt-oss-20b")
SLEEP_S = 2.5
"""In all: more than the second after which a use is noted."""


def run(directory: Path) -> list[object]:
    """The figures of two replays, one after the other, over one store, which has far less room than the workload fills."""
    plan = Plan(
        workload=synthetic_workload(
            SyntheticOptions(request_count=60, session_gap_s=4, system_tokens=(500, 3000), max_context_tokens=16_000)
        ),
        composition=COMPOSITION,
        device_bytes=GIB // 2,
        settings=ServerSettings(concurrency=4, chunk_tokens=2048),
        host=host_of(COMPOSITION, 0.5),
        storage=store_of(COMPOSITION, 2, "file", str(directory)),
        verification=Verification.SHRUNK,
    )
    rows = [row_of(plan) for _ in range(2)]
    assert [wrong_bytes(row) for row in rows] == [0, 0]
    return [figures(row) for row in rows]


def test_replay_over_files_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay with a file store gave other figures on a busier machine: the store evicted by the wall clock, and noted a use
    only when a second of that had passed since the one before.
    """
    quiet = run(tmp_path / "quiet")
    choose, left_s = random.Random(1), [SLEEP_S]

    def delayed(call: Any) -> Any:
        def late(*given: Any) -> Any:
            if left_s[0] > 0 and choose.random() < 0.05:
                pause_s = choose.random() * 0.2
                left_s[0] -= pause_s
                time.sleep(pause_s)
            return call(*given)

        return late

    for name in ("get_verified", "put_sealed", "_exists"):
        monkeypatch.setattr(FileStorage, name, delayed(getattr(FileStorage, name)))
    assert run(tmp_path / "slow") == quiet
    assert left_s[0] <= 0, "the store was slow"
