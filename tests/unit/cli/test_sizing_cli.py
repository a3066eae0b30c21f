"""The command `unified-tree size`."""

from __future__ import annotations

import json
from pathlib import Path

from replay_rows import invoke as run

SMALL = ["size", "--requests", "200", "--device-gib", "4", "--jobs", "1"]


def test_it_prints_tables_and_writes_json_and_a_plot(tmp_path: Path) -> None:
    files = [tmp_path / "sizes.json", tmp_path / "sizes.png"]
    result = run(*SMALL, "--host-gib", "8", "--storage-gib", "32", "--check", "--json", files[0], "--plot", files[1])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "Best split: --pages full=" in result.stdout
    assert "Replayed, the best split" in result.stdout
    sizes = json.loads(files[0].read_text())
    assert sizes["policy"] == "lru"
    assert sizes["sample"]["share"] == 1.0
    kinds = [(curve["tier"], curve["component"], curve["split"]) for curve in sizes["curves"]]
    pools = [(tier, name, None) for tier in ("device", "host") for name in ("full", "swa")]
    assert set(kinds) == {("device", None, "proposed"), ("device", None, "best"), *pools} | {
        (tier, None, "proposed") for tier in ("host", "storage")
    }
    for point in (sizes["present"], sizes["recommended"]):
        assert abs(point["hit_rate"] - point["replayed_hit_rate"]) < 0.02
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_a_sample_says_how_much_it_looked_at() -> None:
    result = run(*SMALL, "--sample", "30", "--model", "qwen3-next-80b-a3b", "--device-gib", 8)
    assert result.exit_code == 0, result.output
    assert "root subtrees" in result.stdout
