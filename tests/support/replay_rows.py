"""What tests of the replay ask of its rows and of its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from unified_tree.controllers.replay.columns import record
from unified_tree.controllers.replay.commands import app
from unified_tree.controllers.replay.row_result import RowResult


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
