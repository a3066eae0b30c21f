"""What tests of the replay ask of its rows and of its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from unified_tree.components import Composition
from unified_tree.controllers.cli.commands import app
from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.server_settings import HostSettings, StorageSettings

GIB = 1 << 30


def invoke(*arguments: object) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def rows_of(path: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    """The rows that the command line writes as JSON to `path`, by policy."""
    result = invoke(*arguments, "--json", path)
    assert result.exit_code == 0, result.output
    return {row["policy"]: row for row in json.loads(path.read_text())}


def without_wall_clock(row: dict[str, Any]) -> dict[str, Any]:
    """A row's figures but for those in real time, which no two runs share."""
    return {name: value for name, value in row.items() if not name.startswith("us_") and name != "wall_s"}


def host_of(composition: Composition, host_gib: float, **settings: Any) -> HostSettings:
    """A host tier of so many GiB, split as the command line does."""
    size_bytes = int(host_gib * GIB)
    counts = propose_page_counts(composition, host_bytes=size_bytes)
    return HostSettings(page_counts=counts, size_bytes=size_bytes, **settings)


def store_of(
    composition: Composition, store_gib: float, engine: str = "memory", place: str = "", **more: Any
) -> StorageSettings:
    """A store of so many GiB of true pages."""
    size_bytes = int(store_gib * GIB)
    counts = propose_page_counts(composition, host_bytes=size_bytes)
    return StorageSettings(engine=engine, place=place, size_bytes=size_bytes, page_counts=counts, **more)


def page_counts(plan: Plan) -> dict[str, int]:
    """The plan's device pages."""
    return split_for_server(plan.composition, plan.device_bytes, plan.settings)


def row_of(plan: Plan, kind: RowKind = RowKind.POLICY, policy: str = "lru") -> RowResult:
    """One row of a plan, on the plan's device pages."""
    return run_row(plan, RowSpec(kind=kind, policy=policy, page_counts=page_counts(plan)))


def figures(row: RowResult) -> tuple[object, ...]:
    """What a row repeats of itself, with bytes or without; the hits of each request and the pages over time included."""
    requests = [row.served[name].tolist() for name in ("hit_tokens", "host_hit_tokens", "admitted_s")]
    kept = {name: value for name, value in without_wall_clock(record(row)).items() if not name.endswith("_bytes")}
    return kept, requests, row.residency


def wrong_bytes(row: RowResult) -> int:
    """Of the bytes compared, which are some."""
    assert row.verified is not None
    assert row.verified.checked_bytes > 0
    return row.verified.wrong_bytes
