"""The package's face, and the transfer benchmark's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unified_tree.controllers import pools

ROOT = Path(__file__).resolve().parents[3]


def test_public_names_are_there() -> None:
    assert pools.__all__ == sorted(pools.__all__)
    assert all(getattr(pools, name).__doc__ for name in pools.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Pool'"):
        pools.Pool  # noqa: B018


def test_formats_layouts_and_sizes_need_no_torch() -> None:
    code = (
        "import sys; from unified_tree.controllers.pools import (HostLayout, PageMover, formats_of, host_memory_available, "
        "propose_page_counts); assert 'torch' not in sys.modules; from unified_tree.controllers.pools import PagePair; "
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "needed",
    [
        "pools import HostPool",
        "pools.words import torch_dtype",
        "transfer_engines import cuda_lanes",
        "host.tensor_pools import tensor_tiers",
    ],
)
def test_without_torch_the_extra_is_named(needed: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; from unified_tree.controllers.{needed}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "need torch: pip install 'unified-tree[tensors]'" in done.stderr.splitlines()[-1]


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
