"""The bench of the storage tier runs, and what was persisted comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches.storage_tier import COMPOSITIONS, main


def test_the_storage_tier_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["composition"] for row in rows} == set(COMPOSITIONS)
    assert {"poll, 10 in flight", "persist, begin", "prefetch, nothing on host"} <= {row["operation"] for row in rows}
    assert all(0 < row["min_us"] <= row["median_us"] <= row["max_us"] for row in rows)
    polls = [row for row in rows if row["operation"].startswith("poll, ")]
    assert all(row["answers"] == "0 pages answered" for row in polls)
    ways = [row for row in rows if row["operation"].startswith("poll after")]
    assert all(row["answers"].startswith("1024 tokens on host, 3 stored") for row in ways)
    assert "median us" in capsys.readouterr().out
