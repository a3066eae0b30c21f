"""What a directory of tables keeps, for how long, and what it never grows beyond."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stored_pages import Clock, blanks, body, keys, page, pages, pool
from waiting import PROGRAM_S

from unified_tree.controllers.storage import FileLimits, FileStorage, Outcome, StorageRegistry, StoredPool
from unified_tree.controllers.storage.file.table_index import shapes_within
from unified_tree.terms.errors import ConfigurationError, StorageError

FULL = pool()
SLOT_BYTES = 8192 + 64
DONE, MISSING, PRESENT = Outcome.DONE, Outcome.MISSING, Outcome.PRESENT


def room(slots: int) -> int:
    """A capacity for so many values."""
    return 8192 + slots * SLOT_BYTES


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("slots", [1, 2, 5, 31, 32, 33, 100])
def test_it_never_grows_beyond_its_capacity(tmp_path: Path, slots: int) -> None:
    engine = FileStorage([FULL], tmp_path, room(slots))
    for number in range(3 * slots + 3):
        assert engine.put("full", keys([number]), pages([number])) == [DONE]
        assert engine.exists("full", keys([number])).all(), "what was put last is there"
    assert disk_bytes(tmp_path) <= room(slots)
    held = int(engine.exists("full", keys(range(3 * slots + 3))).sum())
    assert (slots + 1) // 2 <= held <= slots
    engine.close()


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    clock = Clock()
    engine = FileStorage([FULL], tmp_path, room(3), clock_ns=clock)
    for number in range(3):
        engine.put("full", keys([number]), pages([number]))
        clock.pass_s(2)
    assert engine.get("full", keys([0]), blanks(1)) == [DONE]
    clock.pass_s(2)
    assert engine.put("full", keys([1]), pages([1])) == [PRESENT], "which is a use as well"
    clock.pass_s(2)
    engine.put("full", keys([3]), pages([3]))
    assert engine.exists("full", keys(range(4))).tolist() == [True, True, False, True]
    engine.close()


def test_a_use_within_a_second_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = FileStorage([FULL], tmp_path, room(3), clock_ns=clock)
    engine.put("full", keys([1]), pages([1]))
    written: list[int] = []
    real = os.pwrite

    def counted(descriptor: int, made: bytes, at: int) -> int:
        written.append(at)
        return real(descriptor, made, at)

    monkeypatch.setattr(os, "pwrite", counted)
    for _ in range(30):
        clock.pass_s(0.1)
        assert engine.get("full", keys([1]), blanks(1)) == [DONE]
    assert 2 <= len(written) <= 3
    engine.close()


def test_a_clock_that_was_set_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    clock.pass_s(10**8)
    engine = FileStorage([FULL], tmp_path, room(4), clock_ns=clock)
    engine.put("full", keys(range(4)), pages(range(4)))
    clock.pass_s(-(10**8))
    for number in range(4, 8):
        engine.put("full", keys([number]), pages([number]))
        clock.pass_s(1)
    assert engine.exists("full", keys(range(8))).tolist() == [False] * 4 + [True] * 4
    engine.close()


def test_a_value_that_is_replaced_while_it_is_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = FileStorage([FULL], tmp_path, room(1)), FileStorage([FULL], tmp_path, room(1))
    writer.put("full", keys([1]), pages([1]))
    real = os.preadv

    def other(*arguments: Any) -> int:
        monkeypatch.undo()
        writer.put("full", keys([2]), pages([2]))
        return real(*arguments)

    def same(*arguments: Any) -> int:
        monkeypatch.undo()
        read = real(*arguments)
        writer.put("full", keys([1]), pages([1]))
        writer.put("full", keys([2]), pages([2]))
        return read

    monkeypatch.setattr(os, "preadv", other)
    assert reader.get("full", keys([1]), blanks(1)) == [MISSING]
    monkeypatch.setattr(os, "preadv", same)
    assert reader.get("full", keys([2]), blanks(1)) == [MISSING], "the same value again, but it was another in between"
    assert reader.get("full", keys([2]), blanks(1)) == [DONE]
    reader.close()
    writer.close()


def test_pages_are_read_and_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FileStorage([FULL], tmp_path, room(3))
    given: list[object] = []

    def noting(real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, buffers: Sequence[memoryview], at: int) -> int:
            given.append(buffers[0].obj)
            return real(descriptor, buffers, at)

        return call

    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    source, target = page(1), blanks(1)[0]
    engine.put("full", keys([1]), [source])
    engine.get("full", keys([1]), [target])
    assert [id(one) for one in given] == [id(source.obj), id(target.obj)]
    assert engine.capabilities.zero_copy
    engine.close()


def test_names_are_digests_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    strange = StoredPool(name="../../etc/passwd\n", format_digest=bytes(range(32)), value_bytes=100)
    engine = FileStorage([strange], tmp_path / "made", 1 << 20)
    engine.put(strange.name, [b"../" * 10 + b"\0\0"], [memoryview(bytearray(100))])
    digest = bytes(range(32)).hex()
    assert sorted(file.name for file in tmp_path.rglob("*")) == [f"{digest}.v2.index", f"{digest}.v2.pages", "lock", "made"]
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "made").iterdir()} == {0o600}
    engine.close()


def test_a_directory_with_a_million_places_opens_at_once_and_stays_sparse(tmp_path: Path) -> None:
    engine = FileStorage([FULL], tmp_path, room(1 << 20))
    engine.put("full", keys(range(10)), pages(range(10)))
    engine.close()
    again = FileStorage([FULL], tmp_path, room(1 << 20))
    assert again.get("full", keys(range(10)), blanks(10)) == [DONE] * 10
    assert disk_bytes(tmp_path) < 1 << 20
    again.close()


@pytest.mark.parametrize("sizes", [(320, 400, 320), (320, 1000, 320), (320, 319, 320), (1000, 64, 31), (40, 4000, 40)])
def test_another_capacity_keeps_what_fits(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    for number, slots in enumerate(sizes):
        engine = FileStorage([FULL], tmp_path, room(slots))
        into = blanks(10)
        if number:
            assert engine.get("full", keys(range(10)), into) == [DONE] * 10
            assert [bytes(page) for page in into] == [bytes(body(n)) for n in range(10)]
        assert engine.stats().freed_bytes == 0
        engine.put("full", keys(range(10)), pages(range(10)))
        engine.put("full", keys(range(10 + slots, 10 + 3 * slots)), pages(range(10 + slots, 10 + 3 * slots)))
        engine.get("full", keys(range(10)), blanks(10))
        assert disk_bytes(tmp_path) <= room(slots) + 4096 * (slots // 340)  # ext4 notes where the pieces of a file are
        engine.remove("full", keys(range(10, 10 + 3 * slots)))
        engine.put("full", keys(range(10)), pages(range(10)))
        engine.close()


def test_a_smaller_capacity_keeps_what_was_used_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    engine = FileStorage([FULL], tmp_path, room(320), clock_ns=clock, limits=FileLimits(refresh_s=0))
    for number in range(200):
        clock.now_ns += 1
        engine.put("full", keys([number]), pages([number]))
    for number in range(10):
        clock.now_ns += 1
        engine.get("full", keys([number]), blanks(1))
    engine.close()
    smaller = FileStorage([FULL], tmp_path, room(32), clock_ns=clock)
    found = smaller.exists("full", keys(range(200)))
    assert found[:10].all() and found[-20:].all() and found.sum() == 31
    assert smaller.stats().freed_bytes > 0
    assert "31 values moved and 168 were given up, the oldest" in caplog.text
    assert disk_bytes(tmp_path) <= room(32)
    smaller.close()
    limited = FileStorage([FULL], tmp_path, room(320), limits=FileLimits(move_bytes=5 * 8192))
    assert limited.exists("full", keys(range(10))).sum() == 5
    limited.close()


def test_what_a_killed_process_moved_is_forgotten(tmp_path: Path) -> None:
    engine = FileStorage([FULL], tmp_path, room(40))
    engine.put("full", keys(range(5)), pages(range(5)))
    engine.close()
    for path in list(tmp_path.glob("*.v2.*")):
        path.with_name(f"{path.name}.new").write_bytes(b"half")
    again = FileStorage([FULL], tmp_path, room(40))
    assert again.exists("full", keys(range(5))).all()
    assert not list(tmp_path.glob("*.new"))
    again.close()


def test_a_table_in_use_is_not_made_smaller(tmp_path: Path) -> None:
    engine = FileStorage([FULL], tmp_path, room(320))
    engine.put("full", keys([1]), pages([1]))
    with pytest.raises(ConfigurationError, match=r"uses .* 320 values, .* for 64 only; give both the same"):
        FileStorage([FULL], tmp_path, room(64))
    larger = FileStorage([FULL], tmp_path, room(3200))
    assert larger.get("full", keys([1]), blanks(1)) == [DONE], "which goes on with what there is"
    larger.close()
    engine.close()
    FileStorage([FULL], tmp_path, room(64)).close()


def test_other_pools_tables_go_when_the_bound_is_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, older = pool(name="old"), pool(name="older")
    for other in (older, old):
        engine = FileStorage([other], tmp_path, room(40), shares=2)
        engine.put(other.name, keys(range(16)), pages(range(16)))
        engine.close()
        os.utime(next(tmp_path.glob(f"{other.format_digest.hex()}*.index")), (other is old, other is old))
        os.utime(next(tmp_path.glob(f"{other.format_digest.hex()}*.pages")), (other is old, other is old))
    (tmp_path / "notes.txt").write_text("not a table")
    new = FileStorage([FULL], tmp_path, room(40))

    def names() -> list[str]:
        found = {file.name[:64] for file in tmp_path.glob("*.v2.*")}
        return [other.name for other in (older, old, FULL) if other.format_digest.hex() in found]

    assert names() == ["older", "old", "full"], "what is used counts, and it fits"
    for upto, left in ((4, ["older", "old", "full"]), (18, ["old", "full"]), (40, ["full"])):
        for number in range(upto):
            new.put("full", keys([number]), pages([number]))
        assert names() == left, "the one that was unused for longest goes first, when its room is needed"
        assert disk_bytes(tmp_path) - 4096 <= room(40), "but for the notes"
    assert caplog.text.count("unused for longest, is deleted") == 2
    assert new.stats().freed_bytes > 0
    assert (tmp_path / "notes.txt").exists()
    new.close()


def test_files_that_only_bear_the_name_of_a_table_are_left_alone(tmp_path: Path) -> None:
    index, pages_only = tmp_path / f"{'a' * 64}.v2.index", tmp_path / f"{'b' * 64}.v1.pages"
    index.write_bytes(b"somebody's notes" * 24_000)
    FileStorage([FULL], tmp_path, 2 * room(40), shares=2).close()
    with pytest.raises(ConfigurationError, match="more than the capacity"):
        FileStorage([FULL], tmp_path, room(40))
    assert index.read_bytes() == b"somebody's notes" * 24_000
    index.rename(pages_only)
    with pytest.raises(ConfigurationError, match="more than the capacity"):
        FileStorage([FULL], tmp_path, room(40))
    assert pages_only.exists() and not pages_only.with_suffix(".index").exists(), "without an index nothing shows whose it is"


def test_other_pools_that_are_in_use_are_left_alone(tmp_path: Path) -> None:
    ranks = [pool(name=f"rank {rank}") for rank in range(3)]
    engines = [FileStorage([rank], tmp_path, 3 * room(40), shares=3) for rank in ranks]
    for engine, rank in zip(engines, ranks, strict=True):
        engine.put(rank.name, keys(range(200)), pages(range(200)))
    assert disk_bytes(tmp_path) <= 3 * room(40)
    with pytest.raises(ConfigurationError, match="give a directory to each, or say by `shares`"):
        FileStorage([FULL], tmp_path, 3 * room(40))
    assert all(engine.exists(rank.name, keys([199])).all() for engine, rank in zip(engines, ranks, strict=True))
    for engine in engines:
        engine.close()


def test_how_a_capacity_is_divided() -> None:
    sizes = {"full": 1 << 18, "mamba": 1 << 24, "records": 200}
    pools = {name: pool(size, name) for name, size in sizes.items()}
    bound, shapes = shapes_within(1 << 40, 1, pools)
    assert bound == 1 << 40
    assert sum(shape.disk_bytes for shape in shapes.values()) <= 1 << 40
    assert shapes["full"].disk_bytes / shapes["mamba"].disk_bytes == pytest.approx(1, rel=0.01)
    assert shapes["full"].slots < shapes["records"].slots < 5 * shapes["full"].slots
    exact = {"full": 1 << 30, "mamba": 1 << 35, "records": 1 << 20}
    bound, shapes = shapes_within(exact, 2, pools)
    assert bound == sum(exact.values())
    for name, shape in shapes.items():
        assert 0.9 * exact[name] / 2 < shape.disk_bytes <= exact[name] / 2, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity_bytes": 0}, "capacity_bytes must be a positive number"),
        ({"capacity_bytes": -1}, "capacity_bytes must be a positive number"),
        ({"capacity_bytes": True}, "capacity_bytes must be a positive number"),
        ({"capacity_bytes": 1e9}, "capacity_bytes must be a positive number"),
        ({"capacity_bytes": 1 << 70}, "capacity_bytes must be a positive number"),
        ({"capacity_bytes": 16447}, "full: of the capacity its share is 16447 bytes, one value needs 16448"),
        ({"capacity_bytes": {"fool": 1 << 20}}, "capacity_bytes must name the pools"),
        ({"capacity_bytes": {"full": "1G"}}, r"capacity_bytes\['full'\] must be"),
        ({"capacity_bytes": room(3), "shares": 4}, "full: of the capacity its share"),
        ({"capacity_bytes": 1 << 20, "shares": 0}, "shares must be"),
        ({"capacity_bytes": 1 << 20, "sync": "no"}, "sync must be True or False"),
        ({"capacity_bytes": 1 << 20, "clock_ns": 5}, "clock_ns must be a function"),
        ({"capacity_bytes": 1 << 20, "limits": {"bytes_per_lock": 1}}, "limits must be FileLimits"),
        ({"capacity_bytes": 1 << 20, "directory": ""}, "directory must be a path"),
        ({"capacity_bytes": 1 << 20, "directory": b"bytes"}, "directory must be a path"),
        ({"capacity_bytes": 1 << 20, "directory": "a\0b"}, "directory must be a path"),
        ({"capacity_bytes": 1 << 20, "directory": None}, "directory must be a path"),
        ({"capacity_bytes": 1 << 20, "colour": "red"}, "cannot be opened with"),
        ({}, "cannot be opened with"),
    ],
)
def test_options_that_are_none(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StorageRegistry().open("file", [FULL], **{"directory": tmp_path / "new", **options})
    assert not list(tmp_path.iterdir())


def test_a_capacity_beyond_any_disk_is_only_a_bound(tmp_path: Path) -> None:
    engine = FileStorage([FULL], tmp_path, (1 << 62) - 1)
    outcomes = engine.put("full", keys(range(20)), pages(range(20)))
    assert set(outcomes) <= {DONE, Outcome.DROPPED, Outcome.FAILED}
    into = blanks(20)
    for number, got, outcome in zip(range(20), into, engine.get("full", keys(range(20)), into), strict=True):
        assert outcome is (DONE if outcomes[number] is DONE else MISSING)
        assert outcome is MISSING or got == body(number)
    engine.close()


def test_a_fork_must_open_it_anew(tmp_path: Path) -> None:
    code = f"""
import os, sys
from stored_pages import Clock, blanks, key, keys, pages, pool
from unified_tree.controllers.storage import FileStorage
from unified_tree.terms.errors import StorageError
engine = FileStorage([pool()], {str(tmp_path)!r}, 1 << 20)
engine.put("full", keys([1]), pages([1]))
if not os.fork():
    assert engine.exists("full", keys([1])).all()
    for call in (engine.clear, lambda: engine.put("full", keys([2]), pages([2])), lambda: engine.remove("full", keys([1]))):
        try:
            call()
        except StorageError as error:
            assert "open it anew" in str(error)
        else:
            os._exit(1)
    own = FileStorage([pool()], {str(tmp_path)!r}, 1 << 20)
    own.put("full", keys([2]), pages([2]))
    os._exit(0)
assert os.wait()[1] == 0
assert engine.exists("full", keys([1, 2])).all()
"""
    where = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROGRAM_S, env={**os.environ, "PYTHONPATH": where})


def test_the_directory_is_not_opened_while_another_process_opens_it(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=r"another process has been opening it for 0\.05 s"):
            FileStorage([FULL], tmp_path, 1 << 20, limits=FileLimits(open_wait_s=0.05))
    FileStorage([FULL], tmp_path, 1 << 20).close()
