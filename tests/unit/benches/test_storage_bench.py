"""The bench of storage engines runs, and what it reads is what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from waiting import PROGRAM_S

ROOT = Path(__file__).resolve().parents[3]


def test_the_bench_of_storage_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benches.storage", "--quick", "--folder", str(tmp_path), "--json", str(tmp_path / "s.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *rows, found = json.loads((tmp_path / "s.json").read_text())
    assert {(row["operation"], row["store"]) for row in rows} >= {
        (operation, store) for operation in ("put", "get") for store in ("raw", "file", "sealed", "sqlite")
    }
    assert all(row["right"] for row in rows)
    assert set(found) >= {"open_ms", "exists_present_us", "exists_absent_us", "hash_128k_tokens_ms"}
    assert [file.name for file in tmp_path.iterdir()] == ["s.json"], "nothing is left behind"
