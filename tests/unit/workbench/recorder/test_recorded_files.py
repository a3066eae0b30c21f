"""A recording's hashes, files and bounds, and the cost of a full disk."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from full_disk import FullDisk
from hypothesis import given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, token_bytes
from unified_tree.controllers.workbench.recorder.recorder import QUEUE_FULL, UNREADABLE, Recorder, UnrecordedError
from unified_tree.controllers.workbench.recorder.trace_writer import (
    DISK_FAILED,
    TOO_LONG,
    RecordedRequest,
    TraceFiles,
    TraceWriter,
)
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.terms.errors import ConfigurationError


def request(tokens: list[int], **given: Any) -> RecordedRequest:
    return RecordedRequest(**{"time_ms": 0, "tokens": token_bytes(tokens), "prompt_tokens": len(tokens), **given})


def lines(directory: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted(directory.glob("requests-*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


TOKENS = st.lists(st.integers(0, (1 << 63) - 1), max_size=40)


@given(TOKENS, TOKENS, st.integers(1, 9), st.text(max_size=3))
def test_equal_ids_are_equal_prefixes(first: list[int], second: list[int], block: int, namespace: str) -> None:
    hasher = BlockHasher(block)
    ids, others = (hasher.ids(token_bytes(tokens), namespace) for tokens in (first, second))
    shared = sum(first[: (i + 1) * block] == second[: (i + 1) * block] for i in range(min(len(ids), len(others))))
    assert len(ids) == len(first) // block
    assert ids[:shared] == others[:shared]
    assert not set(ids[shared:]) & set(others[shared:])
    assert all(0 <= each < 1 << 63 for each in ids)


@given(TOKENS, st.lists(st.integers(0, 40), max_size=4), st.integers(1, 9))
def test_a_prompt_in_pieces_has_the_same_ids(tokens: list[int], cuts: list[int], block: int) -> None:
    hasher = BlockHasher(block)
    chain, ids = hasher.begin(), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
        chain, more = hasher.extend(chain, token_bytes(tokens[begin:end]))
        ids += more
    assert ids == hasher.ids(token_bytes(tokens))


def test_the_salt_the_namespace_and_the_place_change_all_ids() -> None:
    tokens = token_bytes([1, 2, 1, 2])
    variants = [
        BlockHasher(2).ids(tokens),
        BlockHasher(2, b"salt").ids(tokens),
        BlockHasher(2, b"salz").ids(tokens),
        BlockHasher(2, b"x" * 100).ids(tokens),
        BlockHasher(2).ids(tokens, "tenant"),
        BlockHasher(2).ids(tokens, "\ud800"),
    ]
    assert len({each for ids in variants for each in ids}) == 12
    assert BlockHasher(2, b"salt").ids(tokens) == variants[1]


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, 1 << 21, "64"])
def test_a_block_size_that_is_none_is_refused(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="block_tokens"):
        BlockHasher(bad)


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path / "traces", file_bytes=100, total_bytes=300)
    writer = TraceWriter(BlockHasher(64), files)
    sizes = []
    for at in range(50):
        writer.write(request([at], time_ms=at))
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "traces").glob("*.jsonl")))
    assert max(sizes) <= 300
    assert all(path.stat().st_size <= 100 for path in (tmp_path / "traces").glob("*.jsonl"))
    kept = [line["timestamp"] for line in lines(tmp_path / "traces")]
    assert kept == list(range(kept[0], 50)) and kept[0] > 0
    writer.close()
    assert len(read_trace(tmp_path / "traces", TraceOptions()).requests) == len(kept)


def test_a_later_recording_begins_a_new_file_and_keeps_the_bound(tmp_path: Path) -> None:
    for _ in range(5):
        writer = TraceWriter(BlockHasher(), TraceFiles(tmp_path, file_bytes=200, total_bytes=400))
        writer.write(request([1]))
        writer.write(request([2]))
        writer.close()
    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert names[-1] == "requests-000005.jsonl" and len(names) < 5
    assert sum((tmp_path / name).stat().st_size for name in names) <= 400


def test_what_is_not_of_a_recording_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 1000)
    (tmp_path / "target").write_bytes(b"x" * 1000)
    (tmp_path / "requests-000001.jsonl").symlink_to(tmp_path / "target")
    (tmp_path / "requests-000002.jsonl").mkdir()
    writer = TraceWriter(BlockHasher(), TraceFiles(tmp_path, file_bytes=100, total_bytes=200), retry_s=0)
    for at in range(9):
        writer.write(request([at]))
    assert (tmp_path / "target").stat().st_size == 1000 == (tmp_path / "notes.txt").stat().st_size
    assert writer.lost[DISK_FAILED] == 9, "a name that is taken is not written through"


def test_a_folder_has_one_recorder(tmp_path: Path) -> None:
    first = TraceFiles(tmp_path)
    first.open()
    with pytest.raises(BlockingIOError, match="another recorder"):
        TraceFiles(tmp_path).open()
    first.close()
    again = TraceFiles(tmp_path)
    again.open()
    again.close()


@pytest.mark.parametrize("bounds", [(0, 10), (10, 19), (True, 10), (1.5, 10)])
def test_bounds_that_do_not_fit_are_refused(tmp_path: Path, bounds: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigurationError):
        TraceFiles(tmp_path, file_bytes=bounds[0], total_bytes=bounds[1])


@given(room=st.integers(0, 400), more=st.integers(0, 400))
def test_a_full_disk_leaves_whole_lines_and_a_count(tmp_path_factory: pytest.TempPathFactory, room: int, more: int) -> None:
    directory = tmp_path_factory.mktemp("full")
    disk, now = FullDisk(room), [0.0]
    files = TraceFiles(directory, file_bytes=250, total_bytes=10_000, disk=disk)
    writer = TraceWriter(BlockHasher(64), files, retry_s=10, time_s=lambda: now[0])
    for at in range(6):
        writer.write(request([at], time_ms=at))
    disk.room = more
    now[0] = 11.0
    for at in range(6, 9):
        writer.write(request([at], time_ms=at))
    disk.room, now[0] = 10_000, 22.0
    writer.write(request([9], time_ms=9))
    written = lines(directory)
    assert len(written) == writer.recorded and writer.recorded + writer.lost.total() == 10
    assert set(writer.lost) <= {DISK_FAILED}
    assert sum(line.get("lost_before", 0) for line in written) == writer.lost.total()
    assert written[-1]["timestamp"] == 9
    if writer.lost:
        assert f"lost {writer.lost.total()} (the disk failed: {writer.lost.total()})" in writer.summary()
    writer.close()


def test_a_disk_that_failed_is_left_alone_for_a_while(tmp_path: Path) -> None:
    class Counting(FullDisk):
        calls = 0

        def create(self, path: Path) -> int:
            self.calls += 1
            return super().create(path)

    disk, now = Counting(0), [0.0]
    writer = TraceWriter(BlockHasher(), TraceFiles(tmp_path, disk=disk), retry_s=10, time_s=lambda: now[0])
    for at in range(100):
        now[0] = at / 10
        writer.write(request([1]))
    assert disk.calls == 1 and writer.lost[DISK_FAILED] == 100
    assert not list(tmp_path.glob("*.jsonl")), "no empty files are left"


def test_a_request_that_no_reader_takes_is_counted(tmp_path: Path) -> None:
    writer = TraceWriter(BlockHasher(1), TraceFiles(tmp_path, file_bytes=1000, total_bytes=2000))
    writer.write(request([1], prompt_tokens=1 << 27))
    writer.write(request([]))
    writer.write(request(list(range(100))))
    assert writer.lost == {TOO_LONG: 3}
    writer.close()


def test_a_recorded_request_is_a_line_without_its_tokens(tmp_path: Path) -> None:
    writer = TraceWriter(BlockHasher(2), TraceFiles(tmp_path))
    writer.write(request([1, 2, 3], time_ms=17, output_tokens=4, cached_tokens=2, answer=token_bytes([4, 5, 6])))
    [line] = lines(tmp_path)
    whole = BlockHasher(2).ids(token_bytes([1, 2, 3, 4, 5, 6]))
    assert line == {
        "timestamp": 17,
        "input_length": 3,
        "output_length": 4,
        "hash_ids": whole[:1],
        "block_size": 2,
        "output_hash_ids": whole[1:],
        "cached_tokens": 2,
    }
    writer.close()


def held_recorder(directory: Path, **given: Any) -> tuple[Recorder, threading.Event]:
    """A recorder whose thread is busy until the event."""
    recorder = Recorder(TraceWriter(BlockHasher(2), TraceFiles(directory)), **given)
    may_go, is_busy = threading.Event(), threading.Event()

    def busy() -> list[RecordedRequest]:
        is_busy.set()
        may_go.wait(30)
        return []

    assert recorder.offer(busy, 0)
    assert is_busy.wait(30)
    return recorder, may_go


def test_a_full_queue_drops_and_counts_and_does_not_wait(tmp_path: Path) -> None:
    recorder, may_go = held_recorder(tmp_path, queue_bytes=512 + 2 * (512 + 16))
    taken = [recorder.record(request([1, 2], time_ms=at)) for at in range(5)]
    assert taken == [True, True, False, False, False]
    may_go.set()
    recorder.settle()
    assert recorder.record(request([3, 4], time_ms=5))
    recorder.close()
    assert [line["timestamp"] for line in lines(tmp_path)] == [0, 1, 5]
    assert recorder.summary().endswith(f"recorded 3 requests in {tmp_path}; lost 3 ({QUEUE_FULL}: 3)")
    assert sum(line.get("lost_before", 0) for line in lines(tmp_path)) == 3


def test_what_comes_after_the_end_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(TraceWriter(BlockHasher(), TraceFiles(tmp_path)))
    recorder.close()
    assert not recorder.record(request([1]))
    recorder.close()


def test_a_request_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    recorder = Recorder(TraceWriter(BlockHasher(), TraceFiles(tmp_path)))

    def broken() -> list[RecordedRequest]:
        raise ZeroDivisionError

    def unrecorded() -> list[RecordedRequest]:
        raise UnrecordedError("no prompt")

    for read in (broken, unrecorded):
        recorder.offer(read, 0)
    recorder.record(request([1]))
    recorder.close()
    assert recorder.summary().endswith(f"lost 2 ({UNREADABLE}: 1, no prompt: 1)")
    assert len(lines(tmp_path)) == 1


def test_a_disk_that_never_answers_does_not_hold_the_end(tmp_path: Path) -> None:
    recorder, may_go = held_recorder(tmp_path)
    recorder.close(0.0)
    may_go.set()
    recorder.close()
