"""Rows whose pools share a tier's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from replay_rows import host_of, invoke, rows_of

from unified_tree.components import composition_for
from unified_tree.controllers.cli.size_command import learned_split
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload

GIB = 1 << 30


def plan_of(model: str, gib: float, requests: int = 300) -> Plan:
    return Plan(
        composition=composition_for(model),
        device_bytes=int(gib * GIB),
        settings=ServerSettings(concurrency=8),
        workload=synthetic_workload(SyntheticOptions(request_count=requests)),
    )


def shared(policy: str) -> RowSpec:
    return RowSpec(kind=RowKind.POLICY, policy=policy, page_counts={}, is_shared=True, is_bounded=False)


@pytest.mark.parametrize(("model", "gib"), [("gpt-oss-20b", 2.0), ("gemma-3-27b", 16.0), ("qwen3-next-80b-a3b", 4.0)])
def test_it_hits_no_less_than_the_proposed_split(model: str, gib: float) -> None:
    plan = plan_of(model, gib, 600)
    counts = split_for_server(plan.composition, plan.device_bytes, plan.settings)
    split = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=counts, is_bounded=False))
    row = run_row(plan, shared("lru"))
    assert row.hit_tokens >= 0.999 * split.hit_tokens, "spare windows of one pool may go for what another needs"
    assert len(row.served) == len(split.served) == 600


def test_no_byte_is_wrong_and_both_tiers_keep_to_their_budgets() -> None:
    plan = plan_of("gemma-3-27b", 8.0)
    plan = replace(plan, host=host_of(plan.composition, 16.0), verification=Verification.SHRUNK)
    row = run_row(plan, shared("cost"))
    assert row.verified is not None and row.verified.wrong_bytes == 0 < row.verified.checked_bytes
    for budget in (row.cache.budget, row.cache.host_budget):
        assert budget is not None and 0 < sum(budget.pool_blocks.values()) == budget.used <= budget.total
        assert len([1 for blocks in budget.pool_blocks.values() if blocks]) == 2


def test_the_same_replay_has_the_same_result() -> None:
    plan = plan_of("qwen3-next-80b-a3b", 4.0)
    one, other = run_row(plan, shared("lru")), run_row(plan, shared("lru"))
    assert one.hit_tokens == other.hit_tokens
    assert one.cache.pools == other.cache.pools


def test_the_command_shows_it_beside_the_split_with_an_interval_of_its_own(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path / "rows.json", "replay", "--model", "gemma-3-27b", "--device-gib", 16, "--requests", 150,
        "--policy", "lru", "--certify", "--shared-pools", "--jobs", 1,
    )  # fmt: skip
    assert list(rows)[:4] == ["lru", "shared lru", "clairvoyant", "shared clairvoyant"]
    known = rows["shared clairvoyant"]
    for name in ("optimum_low_tokens", "optimum_high_tokens"):
        assert rows["shared lru"][name] == known[name] > rows["lru"][name] == rows["clairvoyant"][name]
    assert known["hit_tokens"] == known["optimum_low_tokens"] <= known["optimum_high_tokens"] <= known["ceiling_tokens"]
    assert rows["shared lru"]["path_only_hit_rate"] == rows["lru"]["path_only_hit_rate"]


def test_true_page_sizes_are_refused() -> None:
    result = invoke("replay", "--requests", 10, "--shared-pools", "--verify-full-bytes")
    assert result.exit_code == 2
    assert "--shared-pools" in result.output


def test_a_split_can_be_learned_from_the_workload(tmp_path: Path) -> None:
    given = ("replay", "--model", "gemma-3-27b", "--device-gib", 40, "--requests", 800, "--policy", "lru", "--jobs", 1)
    plan = plan_of("gemma-3-27b", 40.0, 800)
    plan = replace(plan, settings=ServerSettings())
    learned = learned_split(plan, jobs=1)
    assert learned != split_for_server(plan.composition, plan.device_bytes, plan.settings)
    row = rows_of(tmp_path / "learned.json", *given, "--pages", "learned")["lru"]
    assert {name: row[f"total_pages.{name}"] for name in learned} == learned
