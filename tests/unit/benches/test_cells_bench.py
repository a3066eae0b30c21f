"""The bench of cells runs, and goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benches import cell
from benches.cell import Cell
from benches.cells import again, line, main, replayed

ROW: dict[str, Any] = {
    "workload": "built-in agents",
    "model": "gpt-oss-20b",
    "device_gib": 8,
    "command": "unified-tree replay --model gpt-oss-20b --device-gib 8 --policy lru,cost,density",
    "hit_rate": {"lru": 0.4, "cost": 0.5, "density": 0.55},
    "path_only_hit_rate": 0.6,
    "same_pages_hit_rate": 0.55,
    "optimum": [0.69, 0.71],
    "ceiling": 0.9,
    "commits": {"lru": "abc", "cost": "abc", "density": "abc"},
}


def test_there_are_three_sizes_of_six_models_for_each_workload() -> None:
    assert len({each.name for each in cell.cells()}) == 4 * 6 * 3


def test_a_cell_is_replayed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "60"))
    small = Cell("built-in agents", "gpt-oss-20b", 8)
    row = replayed(small, tmp_path)
    assert 0 < row["hit_rate"]["density"] <= row["optimum"][0] <= row["optimum"][1] <= row["ceiling"]
    assert row["hit_rate"]["density"] <= row["same_pages_hit_rate"] + 0.01
    assert row["command"] == "unified-tree replay --requests 60 --model gpt-oss-20b --device-gib 8 --policy lru,cost,density"
    assert again(row, small, tmp_path, cell.POLICIES) == row
    file, page = tmp_path / "cells.json", tmp_path / "cells.md"
    file.write_text(json.dumps([ROW]))
    page.write_text("# Cells\n\n<!-- python -m benches.cells -->\nold\n<!-- end -->\nbehind\n")
    options = [str(tmp_path), "--only", small.name, "--json", str(file), "--page", str(page)]
    assert main(options) == 0
    assert line(ROW) in capsys.readouterr().out  # as the file had it
    assert line(ROW) in page.read_text() and "old" not in page.read_text() and page.read_text().endswith("-->\nbehind\n")
    assert main([*options, "--again", "density"]) == 0
    [anew] = json.loads(file.read_text())
    assert anew["hit_rate"] == ROW["hit_rate"] | {"density": row["hit_rate"]["density"]}
    assert anew["optimum"] == ROW["optimum"] and anew["commits"]["lru"] == "abc" != anew["commits"]["density"]
