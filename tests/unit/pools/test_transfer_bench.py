"""The transfer benchmark runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_transfer_benchmark_runs_and_bytes_arrive(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "benches.transfers", "--quick", "--json", str(tmp_path / "t.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "t.json").read_text())
    assert {row["composition"] for row in rows} == {"mha-32", "mla-61", "mamba"}
    assert {row["layout"] for row in rows} == {"layer_first", "page_first", "page_first_direct"}
    assert {row["operation"] for row in rows} == {"backup", "load", "load_layers"}
    assert all(row["right"] and row["ratio"] > 0 and row["ratio_numpy"] > 0 for row in rows)
    hashes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        hashes.setdefault((row["composition"], row["operation"], row["pages"]), set()).add(row["hash"])
    assert all(len(same) == 1 for same in hashes.values()), "a layout moved other bytes"
