"""Whoever waits for a large trace is told how far it was read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from unified_tree.controllers.workbench.traces.trace import read_trace


@pytest.mark.parametrize("opener", [open, gzip.open])
def test_the_bytes_that_were_read_are_told_as_they_are(tmp_path: Path, opener: type) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": i, "input_length": 900, "output_length": 9, "hash_ids": [i, i + 1]} for i in range(20_000)]
    with opener(path, "wb") as file:
        file.write("\n".join(map(json.dumps, lines)).encode())
    told: list[int] = []
    workload = read_trace(path, None, told.append)
    assert len(workload.requests) == len(lines)
    assert len(told) > 20
    assert min(told) >= 0
    assert 0.9 * path.stat().st_size <= sum(told) <= path.stat().st_size
