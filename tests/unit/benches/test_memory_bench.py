"""The bench of memory finds the least that is enough, and goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from benches import cell, memory
from benches.cell import Cell
from benches.memory import PARTS, THREE_QUARTERS, Rates, line, main, needed, rates

ROW = {
    "workload": "built-in agents",
    "model": "gpt-oss-20b",
    "device_gib": 8,
    "lru": 0.4,
    "needed": 0.75,
    "density": 0.41,
    "most": None,
}
CELL = Cell("built-in agents", "gpt-oss-20b", 8)


def test_a_line_says_how_much_is_enough() -> None:
    assert line(ROW) == "built-in agents | gpt-oss-20b | 8 | 40.0 | 75 % | 41.0 | "
    more = ROW | {"needed": None, "most": 0.391}
    assert line(more) == "built-in agents | gpt-oss-20b | 8 | 40.0 | more than all | 41.0 | 39.1"
    assert line(ROW | {"needed": None, "lru": 0.0}) == "built-in agents | gpt-oss-20b | 8 | 0.0 |  | 41.0 | "


def rates_are(monkeypatch: pytest.MonkeyPatch, lru: float, density: Callable[[int], float]) -> None:
    """Rates by sixteenths of the memory, instead of replays."""

    def rate(_plan: None, policy: str, parts: int = PARTS) -> Rates:
        hit = lru if policy == "lru" else density(parts)
        return Rates(hit, most=hit + parts / 100)

    monkeypatch.setattr(Cell, "plan", Mock(return_value=None))
    monkeypatch.setattr(memory, "rates", rate)


@pytest.mark.parametrize("enough", range(1, PARTS + 1))
def test_the_least_that_is_enough_is_found(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rates_are(monkeypatch, 0.4, lambda parts: 0.4 if parts >= enough else 0.39)
    row = needed(CELL, Path())
    assert row["needed"] == enough / PARTS
    assert row["most"] == (None if enough <= THREE_QUARTERS else 0.39 + 0.12), (
        "what is possible in 3/4, where these are too few"
    )


@pytest.mark.parametrize(("lru", "density"), [(0.4, 0.39), (0.0, 0.2)])
def test_no_share_is_known_where_less_or_nothing_is_hit(lru: float, density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rates_are(monkeypatch, lru, lambda _: density)
    assert needed(CELL, Path())["needed"] is None


def test_a_replay_in_less_memory_hits_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "60"))
    plan = Cell("built-in agents", "gpt-oss-20b", 2).plan(tmp_path)
    assert 0 < rates(plan, "density", 4).hit < rates(plan, "density").hit <= rates(plan, "density").most
    assert rates(plan, "density", 0).hit == 0.0  # no page


def test_what_is_known_is_not_replayed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    file.write_text(json.dumps([ROW]))
    assert main([str(tmp_path), "--only", CELL.name, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert line(ROW) in printed
    assert "median of 1 cells: 75 % of the memory\nin 0 of them" in printed
