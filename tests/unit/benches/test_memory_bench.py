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
    "shared_needed": 0.5,
    "shared": 0.42,
    "most": None,
}
CELL = Cell("built-in agents", "gpt-oss-20b", 8)


def test_a_line_says_how_much_is_enough() -> None:
    assert line(ROW) == "built-in agents | gpt-oss-20b | 8 | 40.0 | 75 % | 41.0 | 50 % | 42.0 | "
    more = ROW | {"needed": None, "most": 0.391}
    assert line(more) == "built-in agents | gpt-oss-20b | 8 | 40.0 | more than all | 41.0 | 50 % | 42.0 | 39.1"
    nothing = dict.fromkeys(("needed", "density", "shared_needed", "shared"))
    assert line(ROW | nothing | {"lru": 0.0}) == "built-in agents | gpt-oss-20b | 8 | 0.0 |  |  |  |  | "


def rates_are(
    monkeypatch: pytest.MonkeyPatch, lru: float, density: Callable[[int], float], shared: Callable[[int], float]
) -> None:
    """Rates by sixteenths of the memory, instead of replays."""

    def rate(_plan: None, policy: str, parts: int = PARTS, *, is_shared: bool = False, is_bounded: bool = False) -> Rates:
        hit = lru if policy == "lru" else shared(parts) if is_shared else density(parts)
        return Rates(hit, hit + parts / 100 if is_bounded else None)

    monkeypatch.setattr(Cell, "plan", Mock(return_value=None))
    monkeypatch.setattr(memory, "rates", rate)


@pytest.mark.parametrize("enough", range(1, PARTS + 1))
def test_the_least_that_is_enough_is_found(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = PARTS + 1 - enough
    rates_are(monkeypatch, 0.4, lambda parts: 0.4 if parts >= enough else 0.39, lambda parts: 0.41 if parts >= shared else 0.3)
    row = needed(CELL, Path())
    assert (row["needed"], row["density"]) == (enough / PARTS, 0.4)
    assert (row["shared_needed"], row["shared"]) == (shared / PARTS, 0.41)
    assert row["most"] == (None if enough <= THREE_QUARTERS else 0.39 + 0.12), (
        "what is possible in 3/4, where these are too few"
    )


def test_no_share_is_known_where_less_is_hit_and_none_is_sought_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rates_are(monkeypatch, 0.4, lambda _: 0.39, lambda _: 0.38)
    row = needed(CELL, Path())
    assert (row["needed"], row["density"], row["shared_needed"], row["shared"]) == (None, 0.39, None, 0.38)
    rates_are(monkeypatch, 0.0, lambda _: 0.2, lambda _: 0.2)
    row = needed(CELL, Path())
    assert row["needed"] is row["density"] is row["shared_needed"] is row["shared"] is None


def test_a_replay_in_less_memory_hits_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "60"))
    plan = Cell("built-in agents", "gpt-oss-20b", 2).plan(tmp_path)
    in_all = rates(plan, "density", is_bounded=True)
    assert in_all.most is not None and rates(plan, "density").most is None
    assert 0 < rates(plan, "density", 4).hit < in_all.hit <= in_all.most
    assert 0 < rates(plan, "density", 4, is_shared=True).hit < rates(plan, "density", is_shared=True).hit
    assert rates(plan, "density", 0).hit == 0.0  # no page


def test_what_is_known_is_not_replayed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    file.write_text(json.dumps([ROW]))
    assert main([str(tmp_path), "--only", CELL.name, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert line(ROW) in printed
    assert "median of 1 cells: 75 % of the memory, 50 % as one budget\nin 0 of them" in printed
