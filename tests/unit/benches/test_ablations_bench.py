"""The bench of ablations takes one part of the order away at a time, and puts it back."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from benches import ablations
from benches.ablations import CELLS, LRU, PARTS, hit_rate, main
from benches.machine import core
from unified_tree import reuse, visit_memory
from unified_tree.reuse import Reuse

CELL = "built-in, deepseek-v4-flash (4)"
INTERPRETED = pytest.mark.skipif(core() == "compiled", reason="compiled code keeps its parts")


def parts() -> tuple[object, ...]:
    """What is altered."""
    methods = (Reuse._choose_mode, Reuse._fork, Reuse._compare, Reuse.locked)
    return (*methods, reuse.LENGTH_PAYS, reuse.rank_of, visit_memory.RISE_PAYS)


@INTERPRETED
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_gone_while_its_row_runs_and_there_again_after(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts()
    seen: list[tuple[object, ...]] = []

    def run_row(*_: object) -> Mock:
        seen.append(parts())
        return Mock(hit_tokens=3, prompt_tokens=4)

    monkeypatch.setattr(ablations, "run_row", run_row)
    monkeypatch.setattr(ablations, "parsed", Mock())
    assert hit_rate(part, CELL, Path()) == hit_rate(part, CELL, Path()) == 0.75, "a second time, too"
    assert parts() == before
    changed = sum(now is not then for now, then in zip(seen[0], before, strict=True))
    assert changed == (0 if part in ("all of it", LRU) else 1)


@INTERPRETED
def test_figures_that_are_there_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablations, "hit_rate", lambda _part, _cell, _traces: 0.5)
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({CELL: {"all of it": 0.25}}))
    assert main([str(tmp_path), "--only", "deepseek", "--json", str(file)]) == 0
    assert json.loads(file.read_text())[CELL] == dict.fromkeys(PARTS, 0.5) | {"all of it": 0.25}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"| | {CELL} |" and lines[2] == "| all of it | 25.0 |" and len(lines) == 2 + len(PARTS)


def test_compiled_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ablations, "core", lambda: "compiled")
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "PYTHONPATH" in capsys.readouterr().err


def test_cells_are_what_a_replay_takes() -> None:
    assert all("--model" in options for options in CELLS.values())
