"""The bench of requests with a host tier runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches.hosted import KINDS, LOADS, WAYS, main


def test_the_hosted_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--floor", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["load"], row["components"]) for row in rows] == [(load, kinds) for load in LOADS for kinds in KINDS]
    assert all(row[f"{way}_us"] > 0 and row["backups"] >= 2 for row in rows for way in WAYS)
    assert all(row[f"{way}_floor_us"] > 0 for row in rows for way, has in WAYS.items() if has)
    assert capsys.readouterr().out.count("\n| chat |") == len(KINDS)
