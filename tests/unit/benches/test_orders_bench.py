"""The bench of eviction policies runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches.orders import main


def test_the_bench_of_orders_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--policy", "cost", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 6
    assert all(row["lru_us"] > 0 and row["other_us"] > 0 and row["lru_hit"] > 0 for row in rows)
    assert "`cost`" in capsys.readouterr().out
