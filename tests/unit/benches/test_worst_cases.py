"""Worst cases run at tiny sizes, say what they found in the same words every time, and tell how they grow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import PROGRAM_S

from benches import worst_collections
from benches.slope import percentile, slope
from benches.worst_case import Call, WorstCase, live
from benches.worst_cases import WORST_CASES, Limits, lines_of, measure_worst, rows_of

ROOT = Path(__file__).resolve().parents[3]
QUICK = Limits(quick=True)


@pytest.mark.parametrize("operation", WORST_CASES)
def test_a_worst_case_has_figures_at_every_size_and_variant(operation: str) -> None:
    """Measured in a process of its own; here its answers are the same again."""
    case = WORST_CASES[operation]
    for growth in measure_worst([operation], QUICK, 0):
        assert growth.missing == ""
        assert [figures.size for figures in growth.figures] == list(case.smoke_sizes)
        assert growth.slope_median is not None and growth.slope_worst is not None
        for figures in growth.figures:
            assert figures.calls > 0
            assert figures.worst_seen >= figures.worst >= 0
            assert figures.worst_seen >= figures.p999 >= figures.median
            assert len(figures.digest) == 12 and not figures.cut_short
        assert len(lines_of(growth).splitlines()) == len(case.smoke_sizes)
        for row in rows_of(growth, "machine", None, "core"):
            assert row["slope_worst"] == growth.slope_worst and row["unit"] and json.dumps(row)
        first, size = growth.figures[0].digest, case.smoke_sizes[0]
        assert live(case, growth.variant, size, smoke=True).digest == first
        assert case(size, growth.variant, smoke=True).digest() != first, "nothing was answered"


def test_every_worst_case_says_what_it_asks_and_spans_two_decades() -> None:
    for operation, case in WORST_CASES.items():
        assert operation.startswith("worst_")
        assert case.question.endswith("?") and case.silent_on
        assert list(case.sizes) == sorted(case.sizes)
        assert case.sizes[2] >= 80 * case.sizes[0]


class Counted(WorstCase):
    """Calls whose times are given."""

    question, silent_on = "?", "all"
    smoke_sizes = (3,)
    unit, ns_a_unit = "ns", 1.0
    lives = 0

    def build(self) -> None:
        """One life has a disturbance of its own, and the last call is always long."""
        type(self).lives += 1
        self.left = [*range(1, 1 + self.size), 20_000 if type(self).lives == 2 else 1, 500]

    def calls(self) -> Iterator[Call]:
        for spent in self.left:
            yield partial(int, spent)

    def measure(self, call: Call) -> tuple[float, object]:
        spent = call()
        assert isinstance(spent, int)
        return float(spent), 1


def test_the_worst_is_what_every_life_had() -> None:
    figures = live(Counted, "", 100)
    assert (figures.calls, figures.median, figures.worst, figures.worst_seen) == (306, 51, 500, 20_000)


def test_a_life_that_takes_too_long_is_cut_short_and_has_no_digest() -> None:
    figures = live(Counted, "", 100, budget_s=0.0)
    assert figures.cut_short and figures.digest == "" and figures.calls == 3


class Endless(Counted):
    """Is never built."""

    def build(self) -> None:
        """Stand still."""
        while True:
            pass


class Failing(Counted):
    """Cannot be built."""

    def build(self) -> None:
        """Object."""
        raise ValueError("no such tree")


@pytest.mark.parametrize(
    ("case", "patience_s", "reason"),
    [(Endless, 0.2, "given up after 0 s"), (Failing, 60.0, "ValueError: no such tree")],
)
def test_what_cannot_be_measured_says_why(
    case: type[WorstCase], patience_s: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORST_CASES, "worst_test", case)
    (growth,) = measure_worst(["worst_test"], Limits(patience_s=patience_s), 0)
    assert growth.missing == f"at 1,000: {reason}"
    assert reason in lines_of(growth)
    (row,) = rows_of(growth, "machine", None, "core")
    assert row["missing"] == growth.missing and row["median"] is None


def test_a_tree_that_grew_into_memory_it_had_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving memory back before the second look can make the process smaller than it was."""
    resident = iter((1 << 20, (1 << 20) - 4096))
    monkeypatch.setattr(worst_collections, "resident_bytes", partial(next, resident))
    figures = live(worst_collections.MemoryOfNodes, worst_collections.SETS[0], 8, smoke=True)
    assert (figures.calls, figures.worst, figures.worst_seen) == (1, 0, 0)


def test_a_slope_is_the_exponent() -> None:
    assert slope([(10, 5.0), (100, 5.0), (1000, 5.0)]) == 0
    assert slope([(10, 1.0), (100, 10.0), (1000, 100.0)]) == 1
    assert slope([(10, 1.0), (1000, 10_000.0)]) == 2
    assert slope([(10, 1.0)]) is None
    assert slope([(10, 0.0), (100, 0.0)]) == 0


def test_a_percentile_is_one_of_the_figures() -> None:
    figures = [float(i) for i in range(1, 2001)]
    assert percentile(figures, 0.5) == 1000
    assert percentile(figures, 0.999) == 1998
    assert percentile([7.0], 0.999) == 7.0


def test_worst_cases_can_be_chosen_and_are_written_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    command = [
        sys.executable,
        "-m",
        "benches",
        "--quick",
        "--suite",
        "worst",
        "--operation",
        "worst_relock",
        "--json",
        str(path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    assert [(row["operation"], row["size"]) for row in rows] == [("worst_relock", 8), ("worst_relock", 24)]
    assert all(row["ours_us"] > 0 and row["hash"] for row in rows)
    fields = {"operation", "components", "page_size", "ours_us", "rust_us", "python_us", "ratio", "hash", "machine", "commit"}
    assert all({*fields, "ours_core"} <= row.keys() for row in rows)
    assert "worst_relock" in done.stdout and "slope" in done.stdout
