"""Small plans of a replay, and the rows of the report of one, replayed once for all that ask."""

from __future__ import annotations

from functools import cache

from replay_rows import GIB, page_counts

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.report.page import PageContent
from unified_tree.controllers.workbench.runs.certificate import certified
from unified_tree.controllers.workbench.runs.plan import Plan, report_specs, sweep_specs
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload

POLICIES = ("lru", "density")


@cache
def small_plan(device_gib: float = 2.0, requests: int = 80) -> Plan:
    """Agents on a hybrid model."""
    return Plan(
        workload=synthetic_workload(SyntheticOptions(request_count=requests)),
        composition=composition_for("gpt-oss-20b"),
        device_bytes=int(device_gib * GIB),
        settings=ServerSettings(),
    )


@cache
def small_report(device_gib: float = 2.0) -> PageContent:
    """The rows of a report of it, and those of half and twice the size."""
    plan = small_plan(device_gib)
    counts = page_counts(plan)
    rows = certified([run_row(plan, spec) for spec in report_specs(POLICIES, counts, plan)])
    sizes = [spec for spec in sweep_specs(POLICIES, plan) if spec.capacity in (0.5, 2.0)]
    sweep = certified([run_row(plan, spec) for spec in sizes])
    return PageContent(plan=plan, page_counts=counts, rows=rows, sweep=sweep, answers=("One.", "Two.", "Three."))
