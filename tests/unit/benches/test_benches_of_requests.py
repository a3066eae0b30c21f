"""The benches that serve the same requests in several ways run, and write what they print."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benches import documents, hosted, ledger, orders

KINDS_AND_PAGES = [(kinds, size) for kinds in ("full", "full + window", "full + Mamba") for size in (1, 64)]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a bench with few requests; returns its rows."""

    def ran(main: Callable[[list[str]], int], *options: str) -> list[dict[str, Any]]:
        file = tmp_path / "rows.json"
        assert main(["--quick", "--json", str(file), *options]) == 0
        rows: list[dict[str, Any]] = json.loads(file.read_text())
        return rows

    return ran


def test_documents_come_again_and_questions_never_do() -> None:
    trace = list(documents.prompts(3, 300))
    asked = Counter(int(prompt[0]) // documents.MOST_TOKENS for prompt in trace)
    assert len(trace) == 300 and 1 < max(asked.values()) <= documents.MOST_QUESTIONS
    assert len({int(prompt[-1]) for prompt in trace}) == 300
    assert all(np.array_equal(one, other) for one, other in zip(trace, documents.prompts(3, 300), strict=True))


def test_the_bench_of_documents_runs(run: Any) -> None:
    rows = run(documents.main, "--policies", "lru,density")
    assert [row["cell"] for row in rows] == list(documents.CELLS)
    assert all(0 <= row[policy] <= 100 for row in rows for policy in ("lru", "density"))


def test_the_bench_of_orders_runs(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(orders.main, "--policy", "cost")
    assert len(rows) == 6
    assert all(row["lru_us"] > 0 and row["other_us"] > 0 and row["lru_hit"] > 0 for row in rows)
    assert "`cost`" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--steps"]])
def test_the_ledger_bench_runs(run: Any, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    rows = run(ledger.main, *options)
    assert [(row["components"], row["page_size"]) for row in rows] == KINDS_AND_PAGES
    assert all(row["on_us"] > 0 and row["off_us"] > 0 and row["hit"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n| full") == len(rows)


def test_the_hosted_bench_runs(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(hosted.main, "--floor")
    assert [(row["load"], row["components"]) for row in rows] == [
        (load, kinds) for load in hosted.LOADS for kinds in hosted.KINDS
    ]
    assert all(row[f"{way}_us"] > 0 and row["backups"] >= 2 for row in rows for way in hosted.WAYS)
    assert all(row[f"{way}_floor_us"] > 0 for row in rows for way, has in hosted.WAYS.items() if has)
    assert capsys.readouterr().out.count("\n| chat |") == len(hosted.KINDS)
