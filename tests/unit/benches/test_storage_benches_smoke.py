"""The benches of storage engines run on their real servers, and what they read is what they stored."""

from __future__ import annotations

import json
from pathlib import Path

import hf3fs_service
import lmcache_server
import mooncake_server
import pytest
import redis_server

from benches.engines import main as engines_main
from benches.lmcache import main as lmcache_main
from benches.storage_hf3fs import main as hf3fs_main
from benches.storage_mooncake import main as mooncake_main
from benches.storage_redis import main as redis_main


def test_the_mooncake_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mooncake_server.skip_unless_it_runs()
    assert mooncake_main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["contestant"] for row in rows] == ["bare client", "engine", "engine, checksum on"] * 2
    assert all(row["right"] and row["put_gib_per_s"] > 0 and row["get_ratio"] > 0 for row in rows)
    assert "of bare" in capsys.readouterr().out


def test_the_redis_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    redis_server.skip_unless_it_runs()
    pytest.importorskip("redis", reason="redis-py is the rival: pip install redis hiredis")
    assert redis_main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["contestant"] for row in rows] == ["redis-py", "engine", "engine, checksum on"] * 4
    assert [row["over"] for row in rows] == ["tcp"] * 6 + ["unix"] * 6
    assert all(row["right"] and row["put_gib_per_s"] > 0 and row["get_ratio"] > 0 for row in rows)
    assert "of bare" in capsys.readouterr().out


def test_the_bench_of_all_engines_runs(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the 3FS engine's service: pip install 'unified-tree[hf3fs]'")
    assert engines_main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {"memory", "file", "hf3fs, posix"} <= {row["contestant"] for row in rows}
    assert all(row["right"] for row in rows)


@lmcache_server.QUIET
def test_the_lmcache_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lmcache_server.skip_unless_it_runs()
    assert lmcache_main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["linker"] for row in rows] == ["daemon", "in process"]
    assert all(row["right"] and row["store_gib_per_s"] > 0 and row["lookup_us_per_key"] > 0 for row in rows)
    assert "retrieve GiB/s" in capsys.readouterr().out


def test_the_3fs_bench_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf3fs_service.skip_unless_it_runs()
    assert hf3fs_main(["--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["contestant"] for row in rows] == ["bare file", "engine", "engine, checksum on"] * 2 + ["lookup"] * 2
    assert all(row["right"] for row in rows) and all(row["put_gib_per_s"] > 0 for row in rows if "put_gib_per_s" in row)
    assert "lookup" in capsys.readouterr().out
