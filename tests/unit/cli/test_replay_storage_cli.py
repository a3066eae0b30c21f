"""The command line with a store: every engine, a second run that finds what the first stored, and input that is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import mooncake_server
import pytest
import redis_server
from replay_rows import invoke as run
from replay_rows import rows_of

SMALL = ["replay", "--requests", "40", "--device-gib", "1", "--concurrency", "8", "--jobs", "1", "--policy", "lru", "--certify"]
HOST = ["--host-gib", "2"]
FIELDS = {
    "hit_rate_storage",
    "prefetched_gib",
    "persisted_gib",
    "persisted_boundaries",
    "prefetches",
    "waited_for_storage",
    "storage_errors",
}


def replayed(tmp_path: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    return rows_of(tmp_path / "rows.json", *SMALL, *HOST, *arguments)


def check_warm_restart(tmp_path: Path, *arguments: object) -> None:
    """A second replay on the same store hits more than the first, by what the store had."""
    cold, warm = (
        replayed(tmp_path, *arguments),
        replayed(tmp_path, *arguments),
    )
    for name in ("lru", "clairvoyant", "path-only lru", "path-only clairvoyant"):
        assert cold[name]["persisted_gib"] > 0, name
        assert warm[name]["hit_tokens_storage"] > cold[name]["hit_tokens_storage"], name
        assert warm[name]["hit_tokens"] > cold[name]["hit_tokens"], name
        assert warm[name]["storage_errors"] == warm[name]["quarantined_pages"] == 0, name
    for row in (*cold.values(), *warm.values()):
        assert row["hit_tokens"] <= row["ceiling_tokens"] < row["prompt_tokens"]
        assert row["optimum_low_tokens"] is row["optimum_high_tokens"] is None, "nothing bounds what a store has"
    assert "unbounded" not in warm, "it would begin with nothing where others are warm"


def test_a_second_run_on_a_directory_is_warm_and_the_report_says_so(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    spec = f"file:{tmp_path / 'store'}"
    check_warm_restart(tmp_path, "--storage", spec, "--storage-gib", 20, "--verify")
    result = run(*SMALL, *HOST, "--storage", spec, "--storage-gb-per-s", 3, "--storage-latency-us", 50, "--csv", table)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if str(tmp_path) not in line)
    for words in ("20 GiB (pages: ", "; modelled at 3 GB/s", "What did the storage find", "prefetch timeout"):
        assert words in result.stdout
    with table.open(newline="") as stream:
        row = next(csv.DictReader(stream))
    assert row.keys() >= FIELDS
    assert float(row["hit_rate"]) == pytest.approx(sum(float(row[f"hit_rate_{n}"]) for n in ("device", "host", "storage")))
    assert int(row["hit_tokens"]) == sum(int(row[f"hit_tokens_{name}"]) for name in ("device", "host", "storage"))


def test_memory_forgets_with_the_replay(tmp_path: Path) -> None:
    cold, again = (
        replayed(tmp_path, "--storage", "memory"),
        replayed(tmp_path, "--storage", "memory"),
    )
    assert cold["lru"]["hit_tokens_storage"] == again["lru"]["hit_tokens_storage"]
    assert cold["lru"]["persisted_gib"] > 0


def test_redis_over_tcp_and_over_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_server.skip_unless_it_runs()
    for name, seconds in redis_server.PATIENT.items():
        monkeypatch.setenv(f"unified_tree__redis__{name}", str(seconds))
    with redis_server.Redis(tmp_path / "tcp") as server:
        check_warm_restart(tmp_path, "--storage", f"redis:{server.address}", "--verify")
    with redis_server.Redis(tmp_path / "s", over="unix") as server:
        check_warm_restart(tmp_path, "--storage", f"redis:{server.address.removeprefix('unix:')}", "--verify")


def test_mooncake(tmp_path: Path) -> None:
    mooncake_server.skip_unless_it_runs()
    with mooncake_server.Mooncake(segment_bytes=256 << 20) as server:
        check_warm_restart(tmp_path, "--storage", f"mooncake:{server.master}", "--verify")
