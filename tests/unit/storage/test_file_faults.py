"""Disks that are full, broken, taken away or damaged: misses and one warning, never a wrong byte, never another error."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_pages import Clock, blanks, body, keys, page, pages, pool
from waiting import PATIENCE_S, PROGRAM_S

from unified_tree.controllers.storage import CheckedStorage, FileStorage, Outcome
from unified_tree.terms.errors import ConfigurationError, StorageError

FULL = pool()
BODY_BYTES = 4160 - 64
DONE, MISSING, DROPPED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.DROPPED, Outcome.FAILED
NUMBERS = list(range(20))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[FileStorage]:
    made = FileStorage([FULL], tmp_path, 1 << 20, clock_ns=clock)
    yield made
    made.close()


def failing(code: int) -> Any:
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def files(path: Path, kind: str = "*") -> list[Path]:
    return sorted(path.glob(f"*.v2.{kind}"))


@pytest.mark.parametrize("call", ["pwrite", "pwritev"])
@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (errno.ENOSPC, DROPPED),
        (errno.EDQUOT, DROPPED),
        (errno.EFBIG, DROPPED),
        (errno.EIO, FAILED),
        (errno.EACCES, FAILED),
        (errno.EROFS, FAILED),
        (errno.ESTALE, FAILED),
    ],
)
def test_what_cannot_be_written_is_said_once(
    engine: FileStorage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    code: int,
    outcome: Outcome,
) -> None:
    old = list(range(100, 110))
    engine.put("full", keys(old), pages(old))
    assert not engine.stats().is_degraded
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, call, failing(code))
        for _ in range(3):
            assert engine.put("full", keys(NUMBERS), pages(NUMBERS)) == [outcome] * 20
        assert not engine.exists("full", keys(NUMBERS)).any()
        assert engine.get("full", keys(old), blanks(10)).count(DONE) >= 9
        assert engine.stats().is_degraded
        assert engine.stats().pools["full"].puts == {DONE: 10, outcome: 60}
    assert len(caplog.records) == 1
    assert "cannot write" in caplog.text and os.strerror(code) in caplog.text
    clock.pass_s(11)
    assert engine.put("full", keys(NUMBERS), pages(NUMBERS)) == [DONE] * 20, "and it works again"
    assert not engine.stats().is_degraded


@pytest.mark.parametrize("call", ["pread", "preadv"])
def test_what_cannot_be_read_is_said_once(
    engine: FileStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    engine.put("full", keys(NUMBERS), pages(NUMBERS))
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, call, failing(errno.EIO))
        for _ in range(3):
            assert engine.get("full", keys(NUMBERS), blanks(20)) == [FAILED] * 20
        assert engine.exists("full", keys(NUMBERS)).any() == (call == "preadv")
        assert engine.stats().is_degraded
    assert len(caplog.records) == 1
    assert engine.get("full", keys(NUMBERS), blanks(20)) == [DONE] * 20
    assert not engine.stats().is_degraded


def test_removing_that_fails_is_told(engine: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.put("full", keys([1]), pages([1]))
    monkeypatch.setattr(os, "pwrite", failing(errno.EIO))
    monkeypatch.setattr(os, "ftruncate", failing(errno.EIO))
    with pytest.raises(StorageError, match="could not be removed"):
        engine.remove("full", keys([1]))
    with pytest.raises(StorageError, match="could not be cleared"):
        engine.clear()


def test_a_disk_that_fills_up_halfway_through_a_page(engine: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", lambda descriptor, buffers, at: real(descriptor, [buffers[0][:2000]], at))
        assert engine.put("full", keys(NUMBERS), pages(NUMBERS)) == [DROPPED] * 20
    assert engine.get("full", keys(NUMBERS), blanks(20)) == [MISSING] * 20


@pytest.mark.parametrize("can_overwrite", [True, False])
def test_on_a_full_disk_old_values_give_their_room_to_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_overwrite: bool
) -> None:
    clock = Clock()
    engine = FileStorage([FULL], tmp_path, 8192 + 32 * 8256, clock_ns=clock)
    engine.put("full", keys(NUMBERS), pages(NUMBERS))
    size, real = files(tmp_path, "pages")[0].stat().st_size, os.pwritev

    def no_room(descriptor: int, buffers: Any, at: int) -> int:
        if at >= size or not can_overwrite:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, buffers, at)

    later = list(range(100, 120))
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", no_room)
        outcomes = []
        for number in later:
            clock.pass_s(0.01)
            outcomes += engine.put("full", keys([number]), pages([number]))
    assert outcomes == [DROPPED] + [DONE if can_overwrite else DROPPED] * 19
    left = 1 if can_overwrite else 19
    assert engine.exists("full", keys(NUMBERS)).sum() == left, "what cannot be replaced is not lost by trying again and again"
    clock.pass_s(11)
    assert DONE in engine.put("full", keys(later), pages(later))
    assert engine.exists("full", keys(later)).all()
    engine.close()


def test_clearing_a_store_on_a_full_disk_makes_it_take_values_again(
    engine: FileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put("full", keys([1]), pages([1]))
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", failing(errno.ENOSPC))
        for number in NUMBERS[2:]:
            assert engine.put("full", keys([number]), pages([number])) == [DROPPED]
    assert engine.put("full", keys([2]), pages([2])) == [DROPPED], "it does not try at present"
    engine.clear()
    assert engine.put("full", keys(NUMBERS), pages(NUMBERS)) == [DONE] * 20


def test_a_file_size_limit_of_the_process(tmp_path: Path) -> None:
    code = f"""
import resource
from stored_pages import Clock, blanks, keys, pages, pool
from unified_tree.controllers.storage import FileStorage, Outcome
engine = FileStorage([pool()], {str(tmp_path)!r}, 1 << 22)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
outcomes = engine.put("full", keys(range(100)), pages(range(100)))
assert 0 < outcomes.count(Outcome.DONE) < 100 and set(outcomes) == {{Outcome.DONE, Outcome.DROPPED}}, outcomes
into = blanks(100)
for number, outcome in enumerate(engine.get("full", keys(range(100)), into)):
    assert (outcome is Outcome.DONE) <= (into[number] == pages([number])[0])
"""
    where = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        timeout=PROGRAM_S,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": where},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot write") == 1


def test_places_where_no_store_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "made").mkdir()
    digest = FULL.format_digest.hex()
    odd: list[Callable[[Path], object]] = [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("../file"),
    ]
    for number, make in enumerate(odd):
        where = tmp_path / f"odd {number}"
        where.mkdir()
        make(where / f"{digest}.v2.index")
        with pytest.raises(StorageError, match=f"{where} cannot be opened.*give a directory"):
            FileStorage([FULL], where, 1 << 20)
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere"), tmp_path / ("x" * 300)):
        with pytest.raises(StorageError, match=r"cannot be opened.*give a directory"):
            FileStorage([FULL], path, 1 << 20)
    assert (tmp_path / "file").read_text() == "x"


def test_permission_that_is_denied_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(StorageError, match="Permission denied"):
        FileStorage([FULL], tmp_path, 1 << 20)


def test_a_failed_opening_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "utime", failing(errno.EIO))
    with pytest.raises(StorageError):
        FileStorage([FULL], tmp_path, 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", ["index", "pages"])
@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.99])
def test_files_that_are_cut_off(tmp_path: Path, engine: FileStorage, kind: str, share: float) -> None:
    engine.put("full", keys(NUMBERS), pages(NUMBERS))
    [path] = files(tmp_path, kind)
    os.truncate(path, int(path.stat().st_size * share))
    into = blanks(20)
    outcomes = engine.get("full", keys(NUMBERS), into)
    assert set(outcomes) <= {DONE, MISSING} and MISSING in outcomes
    assert all(got == body(number) for number, got in enumerate(into) if outcomes[number] is DONE)
    engine.remove("full", [key for key, outcome in zip(keys(NUMBERS), outcomes, strict=True) if outcome is MISSING])
    assert DROPPED not in engine.put("full", keys(NUMBERS), pages(NUMBERS))
    assert engine.get("full", keys(NUMBERS), into) == [DONE] * 20
    assert into == pages(NUMBERS)


def test_a_directory_that_is_deleted_under_it(tmp_path: Path) -> None:
    engine = FileStorage([FULL], tmp_path / "store", 1 << 20)
    engine.put("full", keys([1]), pages([1]))
    shutil.rmtree(tmp_path / "store")
    assert engine.get("full", keys([1]), blanks(1)) == [DONE]
    assert engine.put("full", keys([2]), pages([2])) == [DONE]
    fresh = FileStorage([FULL], tmp_path / "store", 1 << 20)
    assert not fresh.exists("full", keys([1, 2])).any()
    engine.close()
    fresh.close()


def test_a_writer_that_does_not_let_go_costs_pages_and_one_wait(
    tmp_path: Path, engine: FileStorage, caplog: pytest.LogCaptureFixture
) -> None:
    engine.put("full", keys([1]), pages([1]))
    with files(tmp_path, "pages")[0].open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for number in (2, 3, 4):
            assert engine.put("full", keys([number]), pages([number])) == [DROPPED]
        with pytest.raises(StorageError, match="could not be removed"):
            engine.remove("full", keys([1]))
        assert engine.get("full", keys([1]), blanks(1)) == [DONE], "readers do not wait"
    assert len(caplog.records) == 1
    assert engine.put("full", keys([2]), pages([2])) == [DONE]


def test_a_closed_engine_waits_for_its_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FileStorage([FULL], tmp_path, 1 << 20)
    engine.put("full", keys([1]), pages([1]))
    inside, go_on, real = threading.Event(), threading.Event(), os.preadv

    def slow(*arguments: Any) -> int:
        inside.set()
        go_on.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    outcomes: list[Outcome] = []
    reader = threading.Thread(target=lambda: outcomes.extend(engine.get("full", keys([1]), blanks(1))))
    reader.start()
    inside.wait(PATIENCE_S)
    closer = threading.Thread(target=engine.close)
    closer.start()
    go_on.set()
    reader.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    assert outcomes == [DONE]


def flip(path: Path, choose: random.Random) -> None:
    """One bit, anywhere in a file."""
    at = choose.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(at)
        [value] = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1 << choose.randrange(8)]))


def damage(path: Path, choose: random.Random) -> None:
    """One bit; sometimes a block of noise, another place's block, or the end of the file cut off."""
    kind, size = choose.random(), path.stat().st_size
    if kind < 0.9 or size < 2 * 4096:
        return flip(path, choose)
    if kind > 0.99:
        return os.truncate(path, choose.randrange(1, size))
    with path.open("r+b") as file:
        file.seek(choose.randrange(size - 4096))
        block = file.read(4096) if kind < 0.95 else choose.randbytes(4096)
        file.seek(choose.randrange(size - 4096))
        file.write(block)
    return None


def spoiled(tmp_path: Path, seed: int, rounds: int) -> Counter[str]:
    """Damage a store again and again, use it, and compare every byte that it hands out."""
    choose, counts = random.Random(seed), Counter[str]()
    bodies = {number: body(number, BODY_BYTES) for number in range(60)}
    store = CheckedStorage(FileStorage([FULL], tmp_path, 8192 + 40 * 8256))
    for turn in range(rounds):
        numbers = choose.sample(range(60), 10)
        for number, outcome in zip(numbers, store.put("full", keys(numbers), pages(numbers)), strict=True):
            counts[f"put {outcome.value}"] += number >= 0
        for _ in range(choose.randrange(1, 10)):
            counts["flips"] += 1
            damage(choose.choice(files(tmp_path)), choose)
        into = blanks(60)
        for number, outcome in enumerate(store.get("full", keys(range(60)), into)):
            counts[outcome.value] += 1
            counts["wrong"] += outcome is DONE and into[number][:BODY_BYTES] != bodies[number]
        store.exists("full", keys(range(60)))
        if turn % 5 == 0:
            store.engine.close()
            store = CheckedStorage(FileStorage([FULL], tmp_path, 8192 + 40 * 8256))
        assert store.errors == (0, None)
        assert len(list(tmp_path.iterdir())) == 3
        assert sum(file.stat().st_blocks * 512 for file in files(tmp_path)) <= 8192 + 40 * 8256
    store.engine.close()
    return counts


def test_flipped_bits_never_become_wrong_bytes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    counts = spoiled(tmp_path, 1, 600)
    print(dict(counts))
    record_property("operations", counts["flips"])
    assert counts["wrong"] == 0
    assert counts["flips"] > 2000
    assert min(counts["done"], counts["corrupt"], counts["missing"]) > 100


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_flipped_bits(tmp_path: Path, seed: int) -> None:
    counts = spoiled(tmp_path, seed, 4000)
    print(dict(counts))
    assert counts["wrong"] == 0


def test_entries_that_changed_places_are_no_entries(tmp_path: Path, engine: FileStorage) -> None:
    engine.put("full", keys(NUMBERS), pages(NUMBERS))
    [path] = files(tmp_path, "index")
    index = bytearray(path.read_bytes())
    used = [at for at in range(4096, len(index), 64) if any(index[at : at + 64])]
    assert len(used) == 20
    moved = {one: bytes(index[other : other + 64]) for one, other in zip(used, used[1:] + used[:1], strict=True)}
    for at, found in moved.items():
        index[at : at + 64] = found
    path.write_bytes(index)
    assert engine.get("full", keys(NUMBERS), blanks(20)) == [MISSING] * 20
    assert engine.put("full", keys(NUMBERS), pages(NUMBERS)) == [DONE] * 20


def test_a_damaged_header_in_use_is_an_error_that_says_what_to_do(tmp_path: Path, engine: FileStorage) -> None:
    with files(tmp_path, "index")[0].open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(StorageError, match="made anew when the processes that use it have ended"):
        FileStorage([FULL], tmp_path, 1 << 20)
    with pytest.raises(ConfigurationError):
        FileStorage([FULL], tmp_path, 1)
    engine.put("full", keys([1]), [page(1)])
    assert engine.get("full", keys([1]), blanks(1)) == [DONE]
