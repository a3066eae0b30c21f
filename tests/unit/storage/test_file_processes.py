"""Processes that are killed while they write, and processes that write and read at once: no byte is ever wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PROGRAM_S

SUPPORT = Path(__file__).parents[2] / "support"


def run(mode: str, directory: Path, amount: int, seed: int, timeout_s: float = PROGRAM_S) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "file_store_processes.py"), mode, str(directory), str(amount), str(seed)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT.parents[1]), str(SUPPORT)])},
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_killed_writers_leave_whole_values_or_none(tmp_path: Path) -> None:
    counts = run("kill", tmp_path, 200, 1)
    assert counts["killed"] == 200
    assert counts["wrong"] == 0
    assert counts["done"] > 200
    assert set(counts) == {"killed", "wrong", "done", "missing"}, "nothing but hits and misses"


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    counts = run("share", tmp_path, 150, 1)
    assert counts["wrong"] == counts["failed"] == 0
    assert counts["done"] > 200
    assert counts["put done"] > 200
    assert not {"failed ", "put failed", "corrupt"} & set(counts)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 7))
def test_more_killed_writers(tmp_path: Path, seed: int) -> None:
    counts = run("kill", tmp_path, 1000, seed)
    assert counts["killed"] == 1000
    assert counts["wrong"] == 0


@pytest.mark.deep
def test_writers_and_readers_for_longer(tmp_path: Path) -> None:
    counts = run("share", tmp_path, 5000, 2)
    assert counts["wrong"] == counts["failed"] == 0
