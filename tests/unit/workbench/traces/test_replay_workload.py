"""Runs of block ids, the built-in workload, and looking ahead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_rows import invoke

from unified_tree import TraceError
from unified_tree.controllers.workbench.runs.clairvoyance import NEVER, Foresight
from unified_tree.controllers.workbench.traces.synthetic import (
    MultiturnOptions,
    SyntheticOptions,
    multiturn_workload,
    synthetic_workload,
)
from unified_tree.controllers.workbench.traces.workload import (
    NO_CHAIN,
    OWN_TOKENS,
    Request,
    cut_runs,
    expand_runs,
    isolated,
    mixed,
    pack_runs,
)


@given(st.lists(st.integers(0, 12)), st.integers(0, 20))
def test_packing_and_cutting_lose_nothing(ids: list[int], count: int) -> None:
    runs = pack_runs(np.array(ids, np.int64))
    assert expand_runs(runs).tolist() == ids
    assert expand_runs(cut_runs(runs, count)).tolist() == ids[:count]


def request(index: int, ids: list[int]) -> Request:
    return Request(
        index=index,
        arrival_s=float(index),
        runs=pack_runs(np.array(ids, np.int64)),
        block_tokens=4,
        prompt_tokens=4 * len(ids) + 1,
        output_tokens=2,
    )


@given(st.lists(st.lists(st.integers(0, 9), unique=True, min_size=1), min_size=1, max_size=12), st.randoms())
def test_foresight_agrees_with_looking_through_the_list(id_lists: list[list[int]], rng: Random) -> None:
    foresight = Foresight([pack_runs(np.array(ids, np.int64)) for ids in id_lists], 10)
    to_come = list(range(len(id_lists)))
    if rng.random() < 0.5:
        rng.shuffle(to_come)  # they need not arrive in the order of their numbers
    while to_come:
        foresight.arrived(to_come.pop(0))
        for block in range(10):
            following = [i for i in sorted(to_come) if block in id_lists[i]]
            assert foresight.next_use(block) == (following[0] if following else NEVER)
    assert foresight.next_use(OWN_TOKENS + 3) == NEVER


def test_the_built_in_workload_is_the_same_for_the_same_seed() -> None:
    options = SyntheticOptions(request_count=200, seed=5)
    first, again = synthetic_workload(options), synthetic_workload(options)
    other = synthetic_workload(SyntheticOptions(request_count=200, seed=6))
    assert len(first.requests) == 200
    assert [r.prompt_tokens for r in first.requests] == [r.prompt_tokens for r in again.requests]
    assert all((a.runs == b.runs).all() for a, b in zip(first.requests, again.requests, strict=True))
    assert [r.prompt_tokens for r in first.requests] != [r.prompt_tokens for r in other.requests]


def test_the_built_in_workload_shares_branches_and_fans_out() -> None:
    workload = synthetic_workload(SyntheticOptions(request_count=400))
    assert all(int(r.runs[::2].max()) < workload.block_count for r in workload.requests)
    prefixes = {tuple(r.blocks()[:20].tolist()) for r in workload.requests}
    assert 2 < len(prefixes) < 40, "a few system prompts are shared by all"
    by_chain: dict[int, Any] = {}
    branched = 0
    for r in workload.requests:
        before = by_chain.get(r.chain)
        if before is not None:
            common = min(before.size, r.blocks().size)
            branched += not (before[:common] == r.blocks()[:common]).all()
        by_chain[r.chain] = r.blocks()
    assert 0.03 < branched / len(workload.requests) < 0.3


@pytest.mark.parametrize("count", [1, 3])
def test_the_built_in_workload_can_be_tiny(count: int) -> None:
    assert len(synthetic_workload(SyntheticOptions(request_count=count)).requests) == count


def test_a_mix_has_all_requests_in_order_and_shares_nothing() -> None:
    parts = {name: synthetic_workload(SyntheticOptions(request_count=60, seed=seed)) for name, seed in (("a", 0), ("b", 0))}
    mix = mixed(parts)
    assert len(mix.requests) == 120
    assert [request.index for request in mix.requests] == list(range(120))
    arrivals = [request.arrival_s for request in mix.requests]
    assert arrivals == sorted(arrivals)
    blocks = {name: {int(b) for r in mix.requests if r.namespace == name for b in r.blocks()} for name in parts}
    chains = {name: {r.chain for r in mix.requests if r.namespace == name} - {NO_CHAIN} for name in parts}
    assert blocks["a"] and not blocks["a"] & blocks["b"]
    assert not chains["a"] & chains["b"]
    assert max(max(each) for each in blocks.values()) < mix.block_count
    own = [request for request in mix.requests if request.namespace == "b"]
    for request, before in zip(own, parts["b"].requests, strict=True):
        assert np.array_equal(request.blocks() - parts["a"].block_count, before.blocks())


def test_a_closed_loop_cannot_be_mixed() -> None:
    loop = multiturn_workload(MultiturnOptions())
    with pytest.raises(TraceError, match="closed loop"):
        mixed({"a": loop, "b": synthetic_workload(SyntheticOptions(request_count=10))})


def trace(path: Path, name: str, firsts: list[int]) -> Path:
    """Prompts of two blocks each, a second apart."""
    file = path / name
    lines = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 4, "hash_ids": [first, first + 1]}
        for i, first in enumerate(firsts)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_replay_prints_the_hits_of_each_tenant(tmp_path: Path) -> None:
    flood = trace(tmp_path, "flood.jsonl", [10 * i for i in range(30)])
    quiet = trace(tmp_path, "quiet.jsonl", [0] * 30)
    said = invoke(
        "replay",
        flood,
        "--tenant",
        f"quiet={quiet}",
        "--floor",
        "quiet=0.5",
        "--device-gib",
        1,
        "--policy",
        "lru",
        "--no-advice",
    )
    assert said.exit_code == 0, said.output
    assert "Hits by tenant" in said.output
    hits = hits_by_tenant(said.output)
    assert hits["(no group)"] == ["30,720", "0.00"]
    assert float(hits["quiet"][1]) > 90


def sessions_trace(path: Path, name: str, turns: int) -> Path:
    """A session of so many turns, each behind all those before."""
    file = path / name
    lines = [{"t": 5.0 * i, "in": 64 * (i + 1) + 3, "out": 8, "hash_runs": [1, i + 1]} for i in range(turns)]
    file.write_text(json.dumps({"block_size": 64, "hash_id_scope": "local", "requests": lines}))
    return file


def test_replay_prints_how_the_hints_of_each_tenant_ended(tmp_path: Path) -> None:
    """Each turn but a session's last retains it for the next one, which uses it."""
    traces = [sessions_trace(tmp_path, "one.jsonl", 4), "--tenant", f"quiet={sessions_trace(tmp_path, 'two.jsonl', 7)}"]
    said = invoke("replay", *traces, "--sessions", "--device-gib", 1, "--policy", "lru", "--no-advice")
    assert said.exit_code == 0, said.output
    totals, by_tenant = (each.split("\n\n")[0].splitlines() for each in said.output.split("How hints ended")[1:])
    assert [line.split() for line in totals if line.startswith("lru")] == [["lru", "retain", "9", "0", "0", "0", "0"]]
    assert [line.split() for line in by_tenant if line.startswith("lru")] == [
        ["lru", "(no", "group)", "retain", "3", "0", "0", "0", "0"],
        ["lru", "quiet", "retain", "6", "0", "0", "0", "0"],
    ]
    alone = invoke("replay", traces[0], "--sessions", "--device-gib", 1, "--policy", "lru", "--no-advice")
    assert "How hints ended" in alone.output and "by tenant" not in alone.output


def hits_by_tenant(output: str) -> dict[str, list[str]]:
    """The lines of the table: prompt tokens, and the hits of each row in percent."""
    table = output.split("Hits by tenant")[1].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return {name: rest.split() for name, _, rest in (line.strip().partition("  ") for line in table)}


@pytest.mark.parametrize(
    "options",
    [
        ["--tenant", "quiet"],
        ["--floor", "a=0.5"],
        ["--tenant", "a={}", "--floor", "a=x"],
        ["--tenant", "a={}", "--tenant", "a={}"],
        ["--tenant", "a={}", "--share-after", "2"],
        ["--share-after", "2"],
    ],
)
def test_a_tenant_that_makes_no_sense_is_refused(options: list[str], tmp_path: Path) -> None:
    file = trace(tmp_path, "t.jsonl", [0, 0])
    said = invoke("replay", file, *[option.format(file) for option in options], "--policy", "lru")
    assert said.exit_code not in (0, 1)
    assert any(option in said.output + said.stderr for option in ("--tenant", "--floor", "--share-after"))


def test_what_sharing_brings_is_printed_by_tenant(tmp_path: Path) -> None:
    """Tenants in turn ask prompts that begin alike: from the fourth one on each finds what three have shown before."""
    file = tmp_path / "tenants.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 1536, "output_length": 4, "tenant": f"t{i % 4}", "hash_ids": [1, 2, 100 + i]}
        for i in range(24)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    options = ("--device-gib", 4, "--policy", "lru", "--no-advice")
    said = invoke("replay", file, "--share-after", 2, *options)
    assert said.exit_code == 0, said.output
    hits = hits_by_tenant(said.output)
    assert list(hits) == ["t0", "t1", "t2", "t3"]
    for tenant, (tokens, together, apart) in hits.items():
        assert tokens == "9,216"
        assert float(together) == pytest.approx(100 * 1024 / 1536 * (6 if tenant == "t3" else 5) / 6, abs=0.01)
        assert float(apart) == pytest.approx(100 * 1024 / 1536 * 5 / 6, abs=0.01)
    assert "apart lru" in said.output
    alone = invoke("replay", file, "--floor", "t1=0.2", *options)
    assert {name: hit for name, (_, hit) in hits_by_tenant(alone.output).items()} == {
        name: hit for name, (_, _, hit) in hits.items()
    }
    verified = invoke("replay", file, "--share-after", 2, "--verify", *options)
    assert verified.exit_code == 0, verified.output
    assert hits_by_tenant(verified.output) == hits


def test_equal_blocks_of_two_tenants_are_two_where_they_share_nothing() -> None:
    whole = synthetic_workload(SyntheticOptions(request_count=40, seed=1))
    requests = tuple(replace(request, namespace="ab"[request.index % 2]) for request in whole.requests)
    apart = isolated(replace(whole, requests=requests))
    numbers: dict[str, dict[int, int]] = {"a": {}, "b": {}}
    for request, before in zip(apart.requests, whole.requests, strict=True):
        for new, old in zip(request.blocks().tolist(), before.blocks().tolist(), strict=True):
            assert numbers[request.namespace].setdefault(old, new) == new
    assert not set(numbers["a"].values()) & set(numbers["b"].values())
    assert isolated(whole) is whole
