"""USRBIO, as far as its double goes: completions in any order, short, failed, late or never."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import hf3fs_service
import pytest
import retry_clock
from hf3fs_pages import opened
from hf3fs_service import MetadataService
from numbered_pages import SIZE, empty, filled, got, keys, put, until_put, value
from usrbio_double import Request, UsrbioDouble
from waiting import PATIENCE_S

from unified_tree.controllers.storage import Outcome
from unified_tree.controllers.storage.hf3fs import Hf3fsStorage, hf3fs_storage, usrbio_file
from unified_tree.controllers.storage.hf3fs.range_file import Ending, FileRange, PosixFile
from unified_tree.controllers.storage.hf3fs.usrbio_file import UsrbioFile
from unified_tree.terms.errors import StorageError

hf3fs_service.skip_unless_it_runs()
ENTRIES = 4


@pytest.fixture(autouse=True)
def _stopped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_clock.stop(monkeypatch)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MetadataService]:
    with MetadataService(tmp_path / "state") as running:
        yield running


@pytest.fixture
def usrbio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsrbioDouble]:
    with UsrbioDouble(tmp_path, seed=5) as double:
        for module in (hf3fs_storage, usrbio_file):
            monkeypatch.setattr(module, "time", double.clock)
        yield double


@pytest.fixture
def engine(service: MetadataService, usrbio: UsrbioDouble, tmp_path: Path) -> Iterator[Hf3fsStorage]:
    made = opened(service, tmp_path, usrbio=usrbio, io="usrbio", ring_entries=ENTRIES)
    yield made
    made.close()
    assert not usrbio.registered, "descriptors are deregistered"
    assert usrbio.shared and usrbio.shared.isdisjoint(os.listdir("/dev/shm")), "no shared memory is left"


def test_more_pages_than_entries_in_any_order(engine: Hf3fsStorage) -> None:
    for start in range(0, 30, 10):
        assert put(engine, *range(start, start + 10)) == [Outcome.DONE] * 10
    assert got(engine, *range(30)) == [Outcome.DONE] * 30
    assert got(engine, *reversed(range(30))) == [Outcome.DONE] * 30


def test_short_and_failed_requests_fail_their_pages_and_no_others(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    count = 0

    def fate(request: Request) -> int:
        nonlocal count
        count += 1
        return {1: request.memory.nbytes - 1, 2: -errno.EIO, 3: -errno.ENOSPC}.get(count % 5, request.memory.nbytes)

    usrbio.fate = fate
    written = put(engine, *range(10))
    assert written.count(Outcome.FAILED) == 6 and written.count(Outcome.DONE) == 4
    done = [number for number in range(10) if written[number] is Outcome.DONE]
    usrbio.fate = lambda request: request.memory.nbytes
    assert got(engine, *range(10)).count(Outcome.DONE) == 4 and got(engine, *done) == [Outcome.DONE] * 4
    usrbio.fate = lambda request: request.memory.nbytes - 1
    assert got(engine, done[0]) == [Outcome.FAILED]
    usrbio.fate = lambda request: request.memory.nbytes
    assert not engine.stats().is_degraded
    assert put(engine, done[0]) == [Outcome.DONE], "what could not be read can be put again"
    assert got(engine, *done) == [Outcome.DONE] * 4


def test_late_completions_land_in_nobodys_page(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    put(engine, 1, 2, 3)
    usrbio.fate = lambda request: None if request.is_read else request.memory.nbytes
    pages = empty(3)
    assert engine.get("full", keys(1, 2, 3), pages) == [Outcome.FAILED] * 3
    assert engine.stats().is_degraded and got(engine, 1) == [Outcome.MISSING]
    usrbio.fate = lambda request: request.memory.nbytes
    for page in pages:
        page[:] = bytes(SIZE)
    usrbio.let_go()
    retry_clock.let_pass(0.15)
    assert got(engine, 3, 1, 2) == [Outcome.DONE] * 3, "late completions are told from new ones"
    assert all(page == bytes(SIZE) for page in pages)


def test_a_late_read_does_not_land_in_the_slot_of_another(usrbio: UsrbioDouble, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(value(1) + value(2))
    file = UsrbioFile(usrbio, os.open(path, os.O_RDWR), str(tmp_path), ENTRIES, SIZE, 1.0)
    late, page = empty(2)
    now = usrbio.clock.monotonic
    usrbio.fate = lambda _: None
    assert file.read([FileRange(0, late)], now() + 30) == [Ending.UNKNOWN]
    usrbio.fate = lambda request: request.memory.nbytes
    usrbio.before_answers = usrbio.let_go
    assert file.read([FileRange(SIZE, page)], now() + 30) == [Ending.DONE]
    assert page == value(2) and late == bytes(SIZE)
    assert file.read([FileRange(0, late)] * 9, now() + 30) == [Ending.DONE] * 9, "the slot is free again"
    assert file.read([FileRange(0, late)], now() - 1) == [Ending.UNTRIED]
    assert file.read([FileRange(3 * SIZE, page)], now() + 30) == [Ending.FAILED] and file.is_lost
    file.close()
    file.close()
    assert file.read([FileRange(0, late)], now() + 1) == [Ending.UNTRIED]


def test_a_write_that_comes_late_lands_in_a_page_that_nobody_has(
    service: MetadataService, engine: Hf3fsStorage, usrbio: UsrbioDouble
) -> None:
    usrbio.fate = lambda request: request.memory.nbytes if request.is_read else None
    assert put(engine, 1, 2) == [Outcome.FAILED] * 2
    assert service.stats()["ranks"]["r0"]["full"]["aside"] == 2
    usrbio.fate = lambda request: request.memory.nbytes
    until_put(engine, 1)
    usrbio.let_go()
    assert got(engine, 1) == [Outcome.DONE]
    service.let_pass()
    assert not service.stats()["ranks"]["r0"]["full"]["aside"]


def test_requests_that_never_end_take_their_slots_and_the_rest_goes_on(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    put(engine, *range(10))
    stuck = 0

    def fate(request: Request) -> int | None:
        nonlocal stuck
        stuck += 1
        return None if stuck <= ENTRIES - 1 else request.memory.nbytes

    usrbio.fate = fate
    outcomes = got(engine, *range(10))
    assert outcomes.count(Outcome.FAILED) == ENTRIES - 1, "the others went through what was left"
    retry_clock.let_pass(0.15)
    assert got(engine, *range(10)) == [Outcome.DONE] * 10, "by one slot"
    usrbio.fate = lambda _: None
    assert got(engine, *range(10)) == [Outcome.FAILED] * 10, "no slot is left"
    assert got(engine, 1) == [Outcome.MISSING]
    usrbio.fate = lambda request: request.memory.nbytes
    usrbio.let_go()
    retry_clock.let_pass(0.15)
    assert got(engine, *range(10)) == [Outcome.DONE] * 10, "and nothing was forgotten"


def test_who_finds_the_ring_taken_loses_nothing(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    put(engine, *range(6))
    usrbio.is_frozen = True
    threads = [threading.Thread(target=got, args=(engine, number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usrbio.is_frozen = False
    until_put(engine, 6)
    assert got(engine, *range(7)) == [Outcome.DONE] * 7


def test_a_frozen_and_a_dead_daemon(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    put(engine, 1)
    usrbio.is_frozen = True
    assert got(engine, 1) == [Outcome.FAILED] and got(engine, 1) == [Outcome.MISSING]
    usrbio.is_frozen = False
    until_put(engine, 2)
    usrbio.dead = errno.ENOTCONN
    assert got(engine, 1) == [Outcome.FAILED] and got(engine, 1) == [Outcome.MISSING]
    assert not engine.exists("full", keys(1)).any()
    retry_clock.let_pass(0.15)
    assert got(engine, 1) == [Outcome.MISSING], "it cannot be opened again yet"
    usrbio.dead = 0
    until_put(engine, 3)
    assert got(engine, 1, 2, 3) == [Outcome.DONE] * 3


def test_threads_share_the_rings(engine: Hf3fsStorage, usrbio: UsrbioDouble) -> None:
    chance = random.Random(4)
    usrbio.fate = lambda request: request.memory.nbytes if chance.random() < 0.9 else chance.choice((0, 100, -errno.EIO))
    wrong: list[int] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(60):
            numbers = choose.sample(range(40), 6)
            if choose.random() < 0.5:
                engine.put("full", keys(*numbers), filled(*numbers))
                continue
            pages = empty(6)
            for number, page, outcome in zip(numbers, pages, engine.get("full", keys(*numbers), pages), strict=True):
                if outcome is Outcome.DONE and page != value(number):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_auto_takes_usrbio_on_a_mount_of_3fs_and_posix_elsewhere(service: MetadataService, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with UsrbioDouble(elsewhere, seed=1) as usrbio:
        engine = opened(service, tmp_path, usrbio=usrbio, io="auto")
        assert isinstance(engine._access.rank.file, PosixFile) and put(engine, 1) == got(engine, 1) == [Outcome.DONE]
        engine.close()
        with pytest.raises(StorageError, match="not on a mount of 3FS"):
            opened(service, tmp_path, usrbio=usrbio, io="usrbio")
    engine = opened(service, tmp_path, io="auto")
    assert got(engine, 1) == [Outcome.DONE]
    engine.close()


def test_a_daemon_that_takes_no_rings_leaves_nothing_behind(
    service: MetadataService, usrbio: UsrbioDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    usrbio.dead = errno.ENOMEM
    with pytest.raises(StorageError, match="cannot be used"):
        opened(service, tmp_path, usrbio=usrbio, io="usrbio")
    usrbio.dead = 0
    monkeypatch.setattr(usrbio, "make_ioring", lambda *_, **__: os.open("/nowhere/at/all", 0))
    with pytest.raises(StorageError, match="cannot be used"):
        opened(service, tmp_path, usrbio=usrbio, io="usrbio")
    assert usrbio.shared and usrbio.shared.isdisjoint(os.listdir("/dev/shm")) and not usrbio.registered
    assert len(os.listdir("/proc/self/fd")) <= descriptors
