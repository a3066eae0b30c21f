"""How a bucket of a table takes a new value: the spare entry, one write of the index a put, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import random
import struct
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from stored_pages import Clock, blanks, body, keys, page, pages, pool

from unified_tree.controllers.storage import CheckedStorage, FileStorage, Outcome
from unified_tree.controllers.storage.file import python_scan
from unified_tree.controllers.storage.file.table_entry import EMPTIED, ENTRY_BYTES, entry
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, TableShape

FULL = pool()
DONE, MISSING, CORRUPT, DROPPED = Outcome.DONE, Outcome.MISSING, Outcome.CORRUPT, Outcome.DROPPED
WAYS = 32
CAPACITY = 8192 + WAYS * 8256
"""One bucket."""
SCANS = [python_scan]
with suppress(ImportError):
    SCANS.append(import_module("unified_tree.controllers.storage.file.bucket_scan"))


class Killed(BaseException):
    """What a process does not survive."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(tmp_path: Path, clock: Clock, **options: Any) -> FileStorage:
    return FileStorage([FULL], tmp_path, CAPACITY, clock_ns=clock, **options)


def filled(engine: FileStorage, clock: Clock, count: int) -> None:
    """Values 0, 1, ..., each younger than the one before."""
    for number in range(count):
        clock.pass_s(1)
        assert engine.put("full", keys([number]), pages([number])) == [DONE]
    clock.pass_s(1)


def held(engine: FileStorage, count: int = 100) -> list[int]:
    return [number for number, found in enumerate(engine.exists("full", keys(range(count)))) if found]


def entries(tmp_path: Path) -> list[bytes]:
    [path] = tmp_path.glob("*.index")
    index = path.read_bytes()[HEADER_BYTES:].ljust(WAYS * ENTRY_BYTES, b"\0")
    return [index[at : at + ENTRY_BYTES] for at in range(0, len(index), ENTRY_BYTES)]


def dying(*_: object) -> int:
    raise Killed


def noting(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """A list to which every call of these functions of `os` adds its name."""
    calls: list[str] = []

    def note(name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        return call

    for name in names:
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    return calls


def test_a_full_bucket_keeps_one_entry_empty(tmp_path: Path, clock: Clock) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, 70)
    assert held(engine) == list(range(70 - WAYS + 1, 70)), "the least recently used went, one for each"
    assert entries(tmp_path).count(EMPTIED) == 1
    engine.close()


def test_a_put_writes_the_index_once(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, 40)
    calls = noting(monkeypatch, "pread", "pwrite", "preadv", "pwritev")
    for number in range(40, 80):
        calls.clear()
        assert engine.put("full", keys([number]), pages([number])) == [DONE]
        assert calls == ["pread", "pwritev", "pwrite"]
    calls.clear()
    store = CheckedStorage(engine)
    assert store.put("full", keys([99]), [page(99)]) == [DONE]
    calls.clear()
    assert store.get("full", keys([99]), blanks(1)) == [DONE]
    assert calls == ["pread", "preadv"], "a page whose seal is right needs no second look"
    calls.clear()
    assert engine.get("full", keys([99]), blanks(1)) == [DONE]
    assert calls == ["pread", "preadv", "pread"]
    engine.close()


@pytest.mark.parametrize("call", ["pwritev", "pwrite"])
@pytest.mark.parametrize("count", [3, 31, 40])
def test_who_is_killed_in_a_put_loses_nothing_else(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, count)
    before = held(engine)
    with monkeypatch.context() as fatal:
        fatal.setattr(os, call, dying)
        for number in range(50, 60):
            with pytest.raises(Killed):
                engine.put("full", keys([number]), pages([number]))
    after = opened(tmp_path, clock)
    assert held(after) == before
    into = blanks(len(before))
    assert after.get("full", keys(before), into) == [DONE] * len(before)
    assert into == pages(before)
    after.close()
    engine.close()


def test_a_value_is_there_before_its_entry(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every write of the index by a put, all that it says is true."""
    engine, reader = opened(tmp_path, clock), opened(tmp_path, clock)
    real, looks = os.pwrite, [False]

    def looked(*arguments: Any) -> int:
        written = real(*arguments)
        if looks[-1]:  # the reader notes what it used: that is no put, and looking at it would look without end
            return written
        looks.append(True)
        into = blanks(80)
        for number, outcome in enumerate(reader.get("full", keys(range(80)), into)):
            assert outcome is MISSING or into[number] == body(number)
        looks.append(False)
        return written

    monkeypatch.setattr(os, "pwrite", looked)
    filled(engine, clock, 40)
    assert engine.put("full", keys(range(40, 70)), pages(range(40, 70))) == [DONE] * 30
    assert looks.count(True) >= 70
    assert len(held(engine)) == WAYS - 1, "also of a batch whose keys have one bucket"
    engine.close()
    reader.close()


def test_a_write_that_stops_between_two_entries_leaves_a_bucket_that_can_be_used(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, 40)
    real, choose = os.pwrite, random.Random(1)

    def torn(descriptor: int, made: bytes, at: int) -> int:
        cut = ENTRY_BYTES * choose.randrange(len(made) // ENTRY_BYTES + 1)
        if choose.random() < 0.5:
            real(descriptor, made[:cut], at)
        else:
            real(descriptor, made[cut:], at + cut)
        raise Killed

    for number in range(40, 80):
        before = held(engine)
        clock.pass_s(0.1)
        with monkeypatch.context() as fatal:
            fatal.setattr(os, "pwrite", torn)
            with pytest.raises(Killed):
                engine.put("full", keys([number]), pages([number]))
        into = blanks(80)
        outcomes = engine.get("full", keys(range(80)), into)
        assert all(into[at] == body(at) for at in range(80) if outcomes[at] is DONE)
        assert len(set(before) - set(held(engine))) <= 1
    assert engine.put("full", keys([99]), pages([99])) == [DONE]
    engine.close()


def test_a_use_written_down_during_a_put_harms_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reader = opened(tmp_path, clock), opened(tmp_path, clock)
    filled(engine, clock, 40)
    real = os.pwritev

    def touched(*arguments: Any) -> int:
        assert reader.get("full", keys(held(reader)), blanks(WAYS - 1)) == [DONE] * (WAYS - 1)
        return real(*arguments)

    for number in range(40, 60):
        clock.pass_s(2)
        with monkeypatch.context() as at_once:
            at_once.setattr(os, "pwritev", touched)
            assert engine.put("full", keys([number]), pages([number])) == [DONE]
        assert len(held(engine)) == WAYS - 1
        assert number in held(engine)
    engine.close()
    reader.close()


def test_a_use_written_into_an_emptied_entry_goes_in_time(tmp_path: Path, clock: Clock) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, 40)
    [path] = tmp_path.glob("*.index")
    way = entries(tmp_path).index(EMPTIED)
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + way * ENTRY_BYTES + 48)
        file.write(clock().to_bytes(8, "little"))
    for number in range(40, 80):
        clock.pass_s(1)
        assert engine.put("full", keys([number]), pages([number])) == [DONE]
    assert held(engine) == list(range(80 - WAYS + 1, 80))
    engine.close()


def test_a_table_without_an_empty_entry_gets_one(tmp_path: Path, clock: Clock) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, WAYS - 1)
    [path] = tmp_path.glob("*.index")
    way = entries(tmp_path).index(bytes(ENTRY_BYTES))
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + way * ENTRY_BYTES)
        file.write(entry(keys([99])[0], 1, way, clock()))
    clock.pass_s(1)
    assert engine.put("full", keys([50]), pages([50])) == [DONE]
    assert entries(tmp_path).count(EMPTIED) == 1
    assert held(engine) == [*range(2, WAYS - 1), 50, 99], "two went"
    engine.close()


def test_on_a_full_disk_a_full_bucket_goes_on_as_before(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(tmp_path, clock)
    filled(engine, clock, 40)
    [path] = tmp_path.glob("*.pages")
    size, real = path.stat().st_size, os.pwritev

    def no_room(descriptor: int, buffers: Any, at: int) -> int:
        if at >= size:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, buffers, at)

    monkeypatch.setattr(os, "pwritev", no_room)
    assert engine.put("full", keys(range(40, 60)), pages(range(40, 60))) == [DONE] * 20
    assert len(held(engine)) == WAYS - 1
    monkeypatch.setattr(os, "pwritev", lambda *_: no_room(0, (), size))
    assert engine.put("full", keys(range(60, 80)), pages(range(60, 80))) == [DROPPED] * 20
    assert len(held(engine)) == WAYS - 1, "nothing is lost to values that cannot be written"
    engine.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_page_that_is_replaced_while_it_is_verified_is_a_miss_and_a_bad_one_corrupt(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    engine = opened(tmp_path, clock)
    store = CheckedStorage(engine)
    assert store.put("full", keys([1]), [page(1)]) == [DONE]
    real = os.preadv

    def spoiled(descriptor: int, buffers: Any, at: int) -> int:
        read = real(descriptor, buffers, at)
        buffers[0][7] ^= 1
        monkeypatch.undo()
        if again:
            engine.remove("full", keys([1]))
        return read

    monkeypatch.setattr(os, "preadv", spoiled)
    assert store.get("full", keys([1]), blanks(1)) == [MISSING if again else CORRUPT]
    assert store.quarantined == ({} if again else {"full": 1})
    engine.close()


def test_flushes_come_between_the_value_and_its_entry(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(tmp_path, clock, sync=True)
    filled(engine, clock, 40)
    calls = noting(monkeypatch, "pwrite", "pwritev", "fdatasync")
    engine.put("full", keys([50]), pages([50]))
    assert calls == ["pwritev", "fdatasync", "pwrite", "fdatasync"]
    engine.close()


def test_tables_of_the_first_version_are_left_over_and_go_when_room_is_needed(tmp_path: Path, clock: Clock) -> None:
    old = [tmp_path / f"{FULL.format_digest.hex()}.v1.{kind}" for kind in ("index", "pages")]
    for path in old:
        path.write_bytes(b"UTtable\x01".ljust(40000, b"x"))
    engine = FileStorage([FULL], tmp_path, 3 * CAPACITY, shares=2)
    assert held(engine) == []
    assert all(path.exists() for path in old), "they fit"
    engine.close()
    last = opened(tmp_path, clock)
    last.put("full", keys(range(200)), pages(range(200)))
    assert not any(path.exists() for path in old)
    last.close()


def test_values_lie_where_the_kernel_can_copy_them_in_one_piece() -> None:
    def stride(value_bytes: int, slots: int = 1) -> int:
        return TableShape(ways=1, buckets=slots, value_bytes=value_bytes).stride_bytes

    sizes = {1: 4096, 4096: 4096, 4160: 8192, (64 << 10) + 64: 128 << 10, (256 << 10) + 64: 512 << 10}
    assert {size: stride(size) for size in sizes} == sizes
    assert stride((2 << 20) + 64) == (2 << 20) + (256 << 10)
    assert stride((64 << 10) + 64, 1 << 30) == 69632, "no file is too long for ext4"
    assert TableShape(ways=1, buckets=1, value_bytes=(64 << 10) + 64).disk_bytes == 4096 + 4096 + 69632


def looked(bucket: bytes, now: int) -> tuple[int, int, int, int]:
    """`scan`, told again."""
    words = [struct.unpack_from("<8Q", bucket, at) for at in range(0, len(bucket), ENTRY_BYTES)]
    kinds = [0 if word[5] or word[6] else 2 if word[7] else 1 for word in words]
    others = [(word[6] if word[6] <= now else 0, way) for way, word in enumerate(words) if not kinds[way]]
    kind = max(kinds)
    return kind, kinds.index(kind) if kind else -1, len(kinds) - kinds.count(0), min(others)[1] if others else -1


def some_entry(choose: random.Random, way: int) -> bytes:
    """In use, used in a time to come, without a last use, or empty."""
    last_use = choose.choice([choose.randrange(1, 500)] * 4 + [0, choose.randrange(2**64)])
    return choose.choice([entry(choose.randbytes(32), 1, way, last_use)] * 5 + [EMPTIED, bytes(ENTRY_BYTES)])


@pytest.mark.parametrize("module", SCANS, ids=lambda module: str(module.__name__).rsplit(".", 1)[1])
def test_looking_through_buckets(module: Any) -> None:
    choose = random.Random(1)
    for turn in range(3000):
        ways = choose.choice([1, 2, 3, 8, 32, 63])
        made = [some_entry(choose, way) for way in range(ways)]
        if turn % 2:  # as nearly always: one is empty
            made = [entry(bytes([way]) * 32, 1, way, choose.randrange(1, 500)) for way in range(ways)]
            made[choose.randrange(ways)] = EMPTIED
        bucket, names = b"".join(made), [found[:32] for found in made]
        assert module.scan(bucket, 499) == looked(bucket, 499)
        assert [module.find(bucket, name) for name in names] == [names.index(name) for name in names]
        assert module.find(bucket, choose.randbytes(32)) == -1
    inside = choose.randbytes(32)
    assert module.find(b"x" * 20 + inside + b"x" * 12 + b"y" * 64, inside) == -1, "not at the beginning of an entry"
    assert module.find(b"x" * 20 + inside + b"x" * 12 + inside + b"y" * 32, inside) == 1


@pytest.mark.skipif(len(SCANS) < 2, reason="not compiled")
def test_what_the_compiled_scan_refuses() -> None:
    found: Any = SCANS[1]
    wrong: list[Any] = [(bytes(63), bytes(32)), (bytes(64), bytes(31)), (bytearray(64), bytes(32)), (bytes(64),)]
    for arguments in wrong:
        with pytest.raises(ValueError, match="needs a bucket"):
            found.find(*arguments)
    wrong = [(bytes(65), 1), (bytes(64),), (bytearray(64), 1)]
    for arguments in wrong:
        with pytest.raises(ValueError, match="needs a bucket"):
            found.scan(*arguments)
    with pytest.raises(OverflowError):
        found.scan(bytes(64), -1)


def test_holes_between_values_take_no_room(tmp_path: Path) -> None:
    size = (64 << 10) + 64
    capacity = 8192 + 40 * (69632 + 64)
    engine = FileStorage([pool(size)], tmp_path, capacity)
    for number in range(100):
        assert engine.put("full", keys([number]), [page(number, size)]) == [DONE]
    map_bytes = 4096  # in which ext4 notes where pieces of the file are
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) <= capacity + map_bytes
    assert len(held(engine)) >= 38
    into = blanks(1, size)
    assert engine.get("full", keys([99]), into) == [DONE]
    assert into == [page(99, size)]
    engine.close()
