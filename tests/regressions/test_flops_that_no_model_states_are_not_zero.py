"""A report said that no FLOPs were saved where the model states none."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from unified_tree import Component, ConfigurationError, Path
from unified_tree.components import Composition, composition_for, model_names
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.report.report import print_rows
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.workload import Request, Workload

REQUESTS = tuple(
    Request(index=i, arrival_s=float(i), runs=np.array([0, 4], np.int64), block_tokens=16, prompt_tokens=70, output_tokens=1)
    for i in range(3)
)


def plan_of(flops_per_token: float, **settings: float) -> Plan:
    full = Component(name="full", coverage=Path(), page_bytes=64, flops_per_token=flops_per_token)
    return Plan(
        workload=Workload(name="made", requests=REQUESTS, block_count=4),
        composition=Composition(name="made", components=(full,), page_size=16),
        device_bytes=64 * 100,
        settings=ServerSettings(**settings),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("flops", [0.0, 1e9])
def test_a_report_says_that_flops_are_not_stated(flops: float) -> None:
    plan = plan_of(flops)
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 100}, is_bounded=False))
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
        plan_of(0.0, prefill_flops_per_s=1e15)
    assert plan_of(1e9, prefill_flops_per_s=1e15).settings.prefill_flops_per_s == 1e15


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_states_its_flops(name: str) -> None:
    assert composition_for(name).states_flops
