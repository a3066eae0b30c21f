"""The transfer benchmark runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import PROGRAM_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_transfer_benchmark_runs_and_bytes_arrive(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    command = [sys.executable, "-W", "error", "-m", "benches.transfers", "--quick", "--json", str(tmp_path / "t.json")]
    command += ["--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("one budget")] == [
        f"one budget, {operation:<6} with {host}" for host in ("a host pool", "host blocks") for operation in ("backup", "load")
    ]
    rows = json.loads((tmp_path / "t.json").read_text())
    assert {row["composition"] for row in rows} == {"mha-32", "mla-61", "mamba"} | ({"mha-32/1"} if device == "cuda" else set())
    assert {row["layout"] for row in rows} == {"layer_first", "page_first", "page_first_direct"}
    assert {row["operation"] for row in rows} == {"backup", "load", "load_layers"}
    assert all(
        row["right"] and row["ratio"] > 0 and row["ratio_numpy" if device == "cpu" else "ratio_index"] > 0 for row in rows
    )
    hashes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        hashes.setdefault((row["composition"], row["operation"], row["pages"]), set()).add(row["hash"])
    assert all(len(same) == 1 for same in hashes.values()), "a layout moved other bytes"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it takes a minute there")
def test_what_a_model_pays_is_measured_on_a_gpu_alone() -> None:
    done = subprocess.run([sys.executable, "-m", "benches.beside"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "torch finds no GPU here\n")
