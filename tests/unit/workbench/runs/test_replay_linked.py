"""Replays with a prefix linker: what it gives back, that a later replay finds it, every byte of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmcache_server
import pytest
from replay_rows import invoke as run
from replay_rows import rows_of, without_wall_clock

from unified_tree.controllers.prefix_linker import LinkedPool, MemoryLinker, PrefixLinker, Span
from unified_tree.controllers.workbench.server.server_settings import LinkerSettings
from unified_tree.terms.errors import ConfigurationError

pytestmark = lmcache_server.QUIET

SMALL = ["replay", "--requests", "40", "--device-gib", "2", "--concurrency", "8", "--jobs", "1", "--policy", "lru", "--certify"]
LLAMA = ["--model", "llama-3.1-8b"]
CHUNK = 256
FIELDS = {"hit_rate_storage", "prefetched_gib", "persisted_gib", "waited_for_storage", "storage_errors", "lookups"}


def replayed(tmp_path: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    return rows_of(tmp_path / "rows.json", *SMALL, *arguments)


def check_warm_restart(tmp_path: Path, *arguments: object, has_windows: bool = False) -> dict[str, Any]:
    """A second replay on the same peer hits more than the first, by what the peer had, and every byte is right."""
    cold, warm = (
        replayed(tmp_path, *arguments, "--verify"),
        replayed(tmp_path, *arguments, "--verify"),
    )
    if has_windows:
        assert "lookups" not in cold["path-only lru"], "its windows and states have no end"
        assert warm["lru"]["path_only_hit_rate"] is None, "it is not linked, so it is cold"
    for name in ("lru", "clairvoyant"):
        assert cold[name]["persisted_gib"] > 0, name
        assert warm[name]["hit_tokens_storage"] > cold[name]["hit_tokens_storage"], name
        assert warm[name]["hit_tokens"] > cold[name]["hit_tokens"], name
        assert warm[name]["prefetched_gib"] > 0, name
        assert warm[name]["persisted_gib"] < cold[name]["persisted_gib"] / 2, "what is there is not stored again"
        for row in (cold[name], warm[name]):
            assert row["wrong_bytes"] == row["storage_errors"] == 0 < row["checked_bytes"], name
            assert row["hit_tokens"] == sum(row[f"hit_tokens_{tier}"] for tier in ("device", "host", "storage"))
    assert "unbounded" not in warm, "it would begin with nothing where others are warm"
    return cold["lru"]


class KeptLinkers:
    """In place of a peer: linkers whose prefixes go on from one replay to the next, if their formats are the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[MemoryLinker] = MemoryLinker) -> None:
        self.chunks: dict[str, Any] = {}
        monkeypatch.setattr(LinkerSettings, "prepare", lambda *_: None)
        monkeypatch.setattr(LinkerSettings, "open", lambda _, pools, model: self.open(kind, pools, model))

    def open(self, kind: type[MemoryLinker], pools: Sequence[LinkedPool], model: str) -> PrefixLinker:
        linker = kind(pools, CHUNK, 1 << 20)
        linker._chunks = self.chunks.setdefault(model, linker._chunks)
        return linker


def test_what_is_linked_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptLinkers(monkeypatch)
    check_warm_restart(tmp_path, *LLAMA, "--storage", "lmcache")


@pytest.mark.parametrize(("model", "device_gib"), [("gpt-oss-20b", 0.8), ("qwen3-next-80b-a3b", 2), ("deepseek-v4-flash", 1)])
def test_windows_and_states_are_linked_too(
    model: str, device_gib: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptLinkers(monkeypatch)
    given = ("--model", model, "--device-gib", device_gib, "--requests", 60)
    check_warm_restart(tmp_path, *given, "--storage", "lmcache", has_windows=True)


def test_beside_a_host_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptLinkers(monkeypatch)
    arguments = (*LLAMA, "--storage", "lmcache", "--host-gib", 4)
    check_warm_restart(tmp_path, *arguments)
    row = replayed(tmp_path, *arguments, "--storage-gb-per-s", 3)["lru"]
    assert row["hit_tokens_host"] > 0
    assert row["hit_rate"] == pytest.approx(sum(row[f"hit_rate_{tier}"] for tier in ("device", "host", "storage")))


def test_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    KeptLinkers(monkeypatch)
    given = ("--storage", "lmcache:127.0.0.1:5555", "--storage-gb-per-s", 3, "--storage-latency-us", 50)
    result = run(*SMALL, *LLAMA, *given, "--prefetch", "wait_complete")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 120 for line in result.stdout.splitlines())
    for words in ("modelled at 3 GB/s each way and 50 µs a call; prefetch wait_complete", "What did the storage find"):
        assert words in " ".join(result.stdout.split())


def test_the_same_again_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for _ in range(2):
        KeptLinkers(monkeypatch)
        row = replayed(tmp_path, *LLAMA, "--storage", "lmcache")["lru"]
        rows.append(without_wall_clock(row))
    assert rows[0] == rows[1]


def test_a_slow_peer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptLinkers(monkeypatch)
    replayed(tmp_path, *LLAMA, "--storage", "lmcache", "--verify")
    slow = replayed(tmp_path, *LLAMA, "--storage", "lmcache", "--storage-gb-per-s", 0.5, "--verify")["lru"]
    assert slow["late_retrieves"] > 0
    assert slow["wrong_bytes"] == 0
    assert slow["fetch_wait_s_mean"] <= 1.1, "the patience is one second"


class Careless(MemoryLinker):
    """Spoils one byte of each retrieve."""

    def retrieve(self, request: str, span: Span) -> None:
        super().retrieve(request, span)
        pool = next(iter(self._pools.values()))
        pool.tensors[0][int(span.pages[pool.name][-1]), 0, 0] ^= 1


def test_a_wrong_byte_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptLinkers(monkeypatch, Careless)
    out = tmp_path / "rows.json"
    result = run(*SMALL, *LLAMA, "--storage", "lmcache", "--verify", "--json", out)
    assert result.exit_code == 1
    row = json.loads(out.read_text())[0]
    assert row["wrong_bytes"] > 0


def test_a_daemon_stays_warm(tmp_path: Path) -> None:
    lmcache_server.skip_unless_it_runs()
    with lmcache_server.Lmcache(CHUNK) as server:
        cold = check_warm_restart(tmp_path, *LLAMA, "--storage", f"lmcache:{server.address}")
        row = rows_of(
            tmp_path / "rows.json", *SMALL, *LLAMA, "--storage", f"lmcache:daemon={server.address},answer_timeout_s=1.5"
        )["lru"]
        assert row["hit_tokens_storage"] == cold["hit_tokens_storage"], "pages without content are others"
        assert row["persisted_tokens"] == cold["persisted_tokens"]


def test_windows_in_a_daemon(tmp_path: Path) -> None:
    lmcache_server.skip_unless_it_runs()
    given = ("--model", "gpt-oss-20b", "--device-gib", 0.8, "--requests", 60, "--storage")
    with lmcache_server.Lmcache(CHUNK, options=["--separate-object-groups"]) as server:
        check_warm_restart(tmp_path, *given, f"lmcache:{server.address}", has_windows=True)
    with lmcache_server.Lmcache(CHUNK) as server:
        result = run(*SMALL, *given, f"lmcache:{server.address}")
        assert result.exit_code == 2
        assert "start it with --separate-object-groups" in result.stderr


def test_in_process_and_with_a_file(tmp_path: Path) -> None:
    lmcache_server.skip_unless_it_runs()
    given = "lmcache-in-process:chunk_tokens=256,memory_bytes=67108864"
    rows = replayed(tmp_path, *LLAMA, "--storage", given, "--verify", "--device-gib", 1.5, "--jobs", 2)
    assert rows["lru"]["hit_tokens_storage"] > 0
    assert rows["lru"]["wrong_bytes"] == 0 < rows["lru"]["checked_bytes"]
    engine = tmp_path / "engine.yaml"
    engine.write_text("chunk_size: 128\nlocal_cpu: true\nmax_local_cpu_size: 0.0625\n")
    again = replayed(tmp_path, *LLAMA, "--storage", f"lmcache-in-process:{engine}", "--requests", 15)
    assert again["lru"]["persisted_tokens"] > 0


REAL = [
    (["--storage", "lmcache:nonsense"], "daemon must be host:port"),
    (["--storage", "lmcache"], "daemon is missing"),
    (["--storage", "lmcache:127.0.0.1:1"], "no answer from 127.0.0.1:1"),
    (["--storage", "lmcache:daemon=127.0.0.1:1,chunk=3"], "unknown setting 'chunk'"),
    (["--storage", "lmcache:daemon=127.0.0.1:1,chunk"], "a=b,c=d"),
    (["--storage", "lmcache:127.0.0.1:1", "--storage-gib", "5"], "its own business"),
    (["--storage", "lmcache:127.0.0.1:1", "--storage-gb-per-s", "0"], "--storage-gb-per-s"),
    (["--storage", "lmcache-in-process:/proc/nothing.yaml"], "/proc/nothing.yaml cannot be used"),
    (["--storage", "lmcache-in-process:chunk_tokens=100"], "no multiple of the page size"),
    (["--storage", "lmcache-in-process:memory_bytes=some"], "memory_bytes in the explicit settings must be int"),
    (["--model", "qwen3-next-80b-a3b", "--storage", "lmcache-in-process"], "mamba: "),
    (["--model", "gpt-oss-20b", "--storage", "lmcache-in-process"], "swa: "),
]


@pytest.mark.parametrize(("arguments", "words"), REAL)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    lmcache_server.skip_unless_it_runs()
    result = run(*SMALL, *LLAMA, *arguments)
    assert result.exit_code == 2, result.output
    assert_one_error(result.stderr)
    assert words in result.stderr


def assert_one_error(stderr: str) -> None:
    """One line, and no traceback; LMCache says a line of its own when it is first imported."""
    assert len([line for line in stderr.splitlines() if line.startswith("error: ")]) == 1, stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("content", ["- a\n", "chunk_size: [\n", ""])
def test_a_file_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    lmcache_server.skip_unless_it_runs()
    path = tmp_path / "engine.yaml"
    path.write_text(content)
    result = run(*SMALL, *LLAMA, "--storage", f"lmcache-in-process:{path}")
    assert result.exit_code == 2, result.output
    assert_one_error(result.stderr)
    assert "engine.yaml" in result.stderr


def test_a_model_is_named_by_letters() -> None:
    assert LinkerSettings(name="lmcache", place="").options("a b/c" * 40)["model"] == ("replay-" + "a-b-c" * 40)[:64]
    assert LinkerSettings(name="lmcache", place="model=mine").options("other") == {"model": "mine"}
    with pytest.raises(ConfigurationError, match="a=b"):
        LinkerSettings(name="lmcache", place="a=b,c").options("model")
