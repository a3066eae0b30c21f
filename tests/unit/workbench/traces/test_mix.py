"""Several traces at a time, each of a tenant."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from replay_rows import invoke

from unified_tree import TraceError
from unified_tree.controllers.workbench.traces.mix import mixed
from unified_tree.controllers.workbench.traces.synthetic import (
    MultiturnOptions,
    SyntheticOptions,
    multiturn_workload,
    synthetic_workload,
)
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN


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
    (line,) = [line for line in said.output.split("Hits by tenant")[1].splitlines() if line.strip().startswith("lru")]
    of_flood, of_quiet = (float(part) for part in line.split()[1:])
    assert of_flood == 0
    assert of_quiet > 90


@pytest.mark.parametrize(
    "options",
    [
        ["--tenant", "quiet"],
        ["--floor", "a=0.5"],
        ["--tenant", "a={}", "--floor", "a=x"],
        ["--tenant", "a={}", "--tenant", "a={}"],
    ],
)
def test_a_tenant_that_makes_no_sense_is_refused(options: list[str], tmp_path: Path) -> None:
    file = trace(tmp_path, "t.jsonl", [0, 0])
    said = invoke("replay", file, *[option.format(file) for option in options], "--policy", "lru")
    assert said.exit_code not in (0, 1)
    assert "--tenant" in said.output + said.stderr or "--floor" in said.output + said.stderr
