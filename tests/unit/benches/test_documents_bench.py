"""The bench of documents: its traces are what it says, and it runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benches.documents import CELLS, MOST_QUESTIONS, MOST_TOKENS, main, prompts


def test_documents_come_again_and_questions_never_do() -> None:
    trace = list(prompts(3, 300))
    documents = Counter(int(prompt[0]) // MOST_TOKENS for prompt in trace)
    assert len(trace) == 300 and 1 < max(documents.values()) <= MOST_QUESTIONS
    lasts = [int(prompt[-1]) for prompt in trace]
    assert len(set(lasts)) == 300
    assert all(np.array_equal(one, other) for one, other in zip(trace, prompts(3, 300), strict=True))


def test_the_bench_of_documents_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--policies", "lru,density", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["cell"] for row in rows] == list(CELLS)
    assert all(0 <= row[policy] <= 100 for row in rows for policy in ("lru", "density"))
    assert "`density`" in capsys.readouterr().out
