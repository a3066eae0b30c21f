"""The bench of splits tries each share of the memory, and one budget for all pools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benches import cell, splits
from benches.cell import Cell
from benches.splits import SHARES, best, hybrids, line, main, measured, static_split

ROW = {
    "workload": "built-in agents",
    "model": "gpt-oss-20b",
    "device_gib": 8,
    "proposed": 0.5,
    "static": {"0.1": 0.4, "0.2": 0.6},
    "shared": 0.57,
}


def test_a_line_compares_with_the_best_static_split() -> None:
    assert line(ROW) == "built-in agents | gpt-oss-20b | 8 | 50.00 | 60.00 | 0.2 | 57.00 | 0.950"
    assert best(ROW | {"static": {"0.1": 0.4}}) == (0.5, "proposed")
    assert line(ROW | {"proposed": 0.0, "static": {}, "shared": 0.0}).endswith("| 0.00 | proposed | 0.00 | ")


def test_there_are_five_hybrids_for_each_workload() -> None:
    assert len(list(hybrids())) == 4 * 5


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v4-flash"])
def test_a_split_gives_windows_and_states_their_share(model: str, tmp_path: Path) -> None:
    plan = Cell("built-in agents", model, 100).plan(tmp_path)
    bytes_of = plan.composition.pool_page_bytes()
    for share in SHARES:
        split = static_split(plan, {"swa": 100}, share)
        assert split is not None
        assert split["swa"] * bytes_of["swa"] / plan.device_bytes == pytest.approx(share, abs=0.01)
        assert sum(count * bytes_of[name] for name, count in split.items()) == pytest.approx(plan.device_bytes, rel=0.01)


def test_a_cell_is_replayed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "60"))
    monkeypatch.setattr(splits, "SHARES", (0.1, 0.9999))
    row = measured(Cell("built-in agents", "gpt-oss-20b", 2), tmp_path)
    assert list(row["static"]) == ["0.1"], "of so much for windows nothing is left for the path"
    assert min(row["proposed"], row["static"]["0.1"], row["shared"]) > 0
    file = tmp_path / "splits.json"
    file.write_text(json.dumps([ROW]))
    assert main([str(tmp_path), "--only", "built-in agents gpt-oss-20b 8", "--json", str(file)]) == 0
    assert line(ROW) in capsys.readouterr().out  # as the file had it
