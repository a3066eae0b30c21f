"""The bench of the ledger of misses runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches.ledger import main


@pytest.mark.parametrize("options", [[], ["--steps"]])
def test_the_ledger_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert main(["--quick", "--json", str(tmp_path / "rows.json"), *options]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["components"], row["page_size"]) for row in rows] == [
        (kinds, page_size) for kinds in ("full", "full + window", "full + Mamba") for page_size in (1, 64)
    ]
    assert all(row["on_us"] > 0 and row["off_us"] > 0 and row["hit"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n| full") == len(rows)
