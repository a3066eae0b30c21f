"""A cache records what it serves, and its trace replayed has the same hits."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from full_disk import FullDisk
from kinds import FULL
from replay_rows import invoke

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.adapters.sglang.settings import Settings
from unified_tree.controllers.counters.observers import AdmittedRequest, open_observers
from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, token_bytes
from unified_tree.controllers.workbench.recorder.cache_recorder import CacheRecorder, open_recorder
from unified_tree.controllers.workbench.recorder.recorder import Recorder
from unified_tree.controllers.workbench.recorder.trace_writer import Disk, TraceFiles, TraceWriter
from unified_tree.terms.errors import ConfigurationError

PAGE = 4


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1000
        return self.now_ms


def recording(directory: Path, disk: Disk | None = None, **given: Any) -> CacheRecorder:
    writer = TraceWriter(BlockHasher(PAGE), TraceFiles(directory, disk=disk))
    return CacheRecorder(Recorder(writer), time_ms=Clock(), **given)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def serve(cache: PrefixCache, prompt: Sequence[int], answer: Sequence[int] = (), namespace: str = "") -> int:
    """Serve a request; its cached tokens."""
    lease = cache.acquire(Key(array("q", prompt), namespace, copy=False))
    whole = [*prompt, *answer]
    cache.allocate(lease, len(whole))
    cache.commit(lease, whole)
    cached = lease.cached_tokens
    cache.release(lease)
    return cached


def test_a_lease_is_recorded_with_its_answer_and_what_it_hit(tmp_path: Path) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    cache.observers.add(recording(tmp_path))
    prompt, answer = list(range(10)), list(range(100, 107))
    assert serve(cache, prompt, answer) == 0
    assert serve(cache, [*prompt, *answer, 7, 7, 7, 7, 7, 7]) == 16
    cache.close()
    first, second = lines(tmp_path)
    hasher = BlockHasher(PAGE)
    whole = hasher.ids(token_bytes([*prompt, *answer, 7, 7, 7, 7, 7, 7]))
    assert (first["input_length"], first["output_length"], first["cached_tokens"]) == (10, 7, 0)
    assert first["hash_ids"] + first["output_hash_ids"] == whole[:4]
    assert (second["input_length"], second["output_length"], second["cached_tokens"]) == (23, 0, 16)
    assert second["hash_ids"] == whole
    assert second["timestamp"] - first["timestamp"] == 1000


def test_the_replay_of_a_recording_has_the_hits_of_the_cache(tmp_path: Path) -> None:
    """Known by hand: 8 of 12 tokens, then 0 in another namespace, then 12 of 13, then 11 // 4 * 4 of an exact repeat."""
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    cache.observers.add(recording(tmp_path / "traces"))
    one = list(range(12))
    asked = [(one, ""), ([*one[:8], 50, 51, 52, 53], ""), (one, "tenant"), ([*one, 1], ""), (one, "")]
    hits = [serve(cache, prompt, namespace=namespace) for prompt, namespace in asked]
    cache.close()
    assert hits == [0, 8, 0, 12, 8] == [line["cached_tokens"] for line in lines(tmp_path / "traces")]
    out = tmp_path / "rows.json"
    options = ["--model", "llama-3.1-8b", "--page-size", PAGE, "--device-gib", 1, "--policy", "lru", "--jobs", 1]
    result = invoke("replay", tmp_path / "traces", *options, "--json", out)
    assert result.exit_code == 0, result.output
    row = next(row for row in json.loads(out.read_text()) if row["policy"] == "lru")
    assert (row["requests"], row["prompt_tokens"], row["hit_tokens"]) == (5, 61, 28)


def test_a_caller_that_changes_its_tokens_changes_no_recording(tmp_path: Path) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    cache.observers.add(recording(tmp_path))
    tokens = array("q", range(8))
    lease = cache.acquire(Key(tokens, copy=False))
    cache.allocate(lease, 8)
    cache.commit(lease, tokens)
    cache.release(lease)
    tokens[0] = 99
    cache.close()
    assert lines(tmp_path)[0]["hash_ids"] == BlockHasher(PAGE).ids(token_bytes(range(8)))


def test_a_full_disk_costs_the_recording_and_no_request(tmp_path: Path) -> None:
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    recorder = recording(tmp_path, FullDisk())
    cache.observers.add(recorder)
    for at in range(5):
        serve(cache, range(at, at + 8))
    assert cache.observers.all == (recorder,) and not cache.stats().drops
    cache.close()
    assert recorder.summary().endswith("lost 5 (the disk failed: 5)")
    assert not lines(tmp_path)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_folder_that_cannot_be_written_costs_the_recording(tmp_path: Path, is_taken: bool) -> None:
    owner = TraceFiles(tmp_path / "traces")
    if is_taken:
        owner.open()
    else:
        (tmp_path / "traces").write_text("a file")
    cache = PrefixCache([FULL], PAGE, {"full": 64})
    cache.observers.add(recording(tmp_path / "traces"))
    assert serve(cache, range(8)) == 0
    cache.close()
    owner.close()


def test_a_request_of_an_engine_is_recorded_when_it_ends(tmp_path: Path) -> None:
    recorder = recording(tmp_path)
    first, second, third = (AdmittedRequest(9, 4, 0, []) for _ in range(3))
    recorder.acquired(first, Key(list(range(9))))
    recorder.acquired(second, Key(list(range(9)), bigram=True))
    recorder.acquired(third, Key(list(range(5))))
    recorder.finished(second, [])
    recorder.finished(first, array("q", [1, 2, 3]))
    recorder.finished(first, [1])
    recorder.finished(third, [1, 2, 3])
    recorder.closed()
    ids = BlockHasher(PAGE).ids(token_bytes(range(9)))
    two, one, cut = lines(tmp_path)
    assert (two["hash_ids"], two["input_length"], two["output_length"]) == (ids, 9, 0), "pairs are hashed as tokens"
    assert (one["hash_ids"], one["input_length"], one["output_length"], len(one["output_hash_ids"])) == (ids, 9, 3, 1)
    assert (cut["hash_ids"], cut["input_length"], cut["output_length"]) == (ids[:1], 9, 3)
    assert "output_hash_ids" not in cut, "of a prompt that is known in part, what follows is not"


def test_open_requests_are_bounded_and_recorded_without_an_answer(tmp_path: Path) -> None:
    recorder = recording(tmp_path, open_bytes=2 * 8 * PAGE)
    requests = [AdmittedRequest(PAGE, 0, 0, []) for _ in range(4)]
    for request in requests:
        recorder.acquired(request, Key(list(range(PAGE))))
    for request in reversed(requests):
        recorder.finished(request, [1])
    recorder.closed()
    assert [line["output_length"] for line in lines(tmp_path)] == [0, 0, 1, 1]


def test_sglang_opens_a_recorder_by_its_name(tmp_path: Path) -> None:
    factory = "unified_tree.controllers.workbench.recorder.cache_recorder:open_recorder"
    settings = Settings.of({"observers": {factory: {"directory": str(tmp_path), "block_tokens": 2}}})
    assert settings.misses.memory_bytes(is_told=True)
    [observer] = open_observers(settings.observers)
    observer.acquired(request := AdmittedRequest(2, 0, 0, []), Key([1, 2]))
    observer.finished(request, [])
    observer.closed()
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"observers": ["record"]}, "observers must name each"),
        ({"observers": {"record": "traces"}}, "observers must name each"),
        ({"observers": {"record": {}}, "misses": {"memory_mib": 0}}, "memory_mib"),
    ],
)
def test_observers_that_do_not_fit_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Settings.of(given)


@pytest.mark.parametrize(
    "given", [{}, {"directory": ""}, {"directory": 3}, {"directory": "a", "salt": 1}, {"directory": "a", "unknown": 1}]
)
def test_settings_of_a_recorder_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    factory = f"{open_recorder.__module__}:{open_recorder.__name__}"
    with pytest.raises(ConfigurationError):
        open_observers(Settings.of({"observers": {factory: given}}).observers)
