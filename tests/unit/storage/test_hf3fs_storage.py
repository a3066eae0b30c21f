"""The 3FS engine over files and a real FUSE mount, with a real metadata service: absent, killed, frozen, full, and lied to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import bind_mount
import hf3fs_service
import pytest
import retry_clock
from hf3fs_pages import BRIEF_S, CAPACITY_BYTES, brief_answers, brief_moves, opened, settings
from hf3fs_service import LEASE_S, SETTINGS, MetadataService
from numbered_pages import FULL, MAMBA, SIZE, check_threads, empty, got, keys, put
from waiting import wait_until

from unified_tree.controllers.storage import Outcome, StorageRegistry, StoredPool
from unified_tree.controllers.storage.hf3fs import Hf3fsStorage, hf3fs_storage
from unified_tree.controllers.storage.hf3fs.file_layout import layout_within
from unified_tree.controllers.storage.hf3fs.range_file import Ending, FileRange
from unified_tree.terms.errors import ConfigurationError, StorageError

hf3fs_service.skip_unless_it_runs()
PAGES = layout_within(CAPACITY_BYTES, [FULL, MAMBA]).regions["full"].page_count


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MetadataService]:
    with MetadataService(tmp_path / "state") as running:
        yield running


@pytest.fixture
def stopped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two calls of a test no pause before a retry is over."""
    retry_clock.stop(monkeypatch)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[bind_mount.BindMount]:
    bind_mount.skip_unless_it_runs()
    with bind_mount.BindMount(tmp_path) as made:
        yield made


def until(condition: Callable[[], bool], what: str) -> None:
    def holds() -> bool:
        retry_clock.let_pass(0.05)
        return condition()

    wait_until(holds, what)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return sum(thread.name.startswith("hf3fs") for thread in threading.enumerate())


def test_the_registry_opens_it_with_settings_of_a_file(service: MetadataService, tmp_path: Path) -> None:
    file = tmp_path / "engines.yaml"
    given = SETTINGS | {"metadata": service.url, "directory": str(tmp_path), "rank": "r0"}
    file.write_text("hf3fs:\n" + "".join(f"  {name}: {value}\n" for name, value in given.items()))
    with pytest.raises(ConfigurationError, match="capacity_bytes is missing"):
        StorageRegistry().open("hf3fs", [FULL], config_file=file)
    engine = StorageRegistry().open("hf3fs", [FULL], config_file=file, capacity_bytes=CAPACITY_BYTES)
    assert engine.capabilities.shared_between_hosts and engine.capabilities.survives_restart
    engine.close()
    with pytest.raises(ConfigurationError, match=r"full: its share .* give more capacity_bytes"):
        Hf3fsStorage([FULL, MAMBA], settings(service, tmp_path, capacity_bytes=6000))


def test_engines_of_one_rank_share_pages_and_other_ranks_do_not(service: MetadataService, tmp_path: Path) -> None:
    first, second, other = opened(service, tmp_path), opened(service, tmp_path), opened(service, tmp_path, rank="r1")
    assert put(first, 1, 2) == [Outcome.DONE] * 2
    assert got(second, 1, 2) == [Outcome.DONE] * 2
    assert put(second, 1) == [Outcome.PRESENT]
    assert got(other, 1) == [Outcome.MISSING]
    assert first.exists("mamba", keys(1)).tolist() == [False], "namespaces do not share keys"
    for engine in (first, second, other):
        engine.close()
    assert sorted(path.name for path in tmp_path.glob("*.pages")) == ["r0.pages", "r1.pages"]


def test_the_file_has_its_size_from_the_start_and_keeps_it(service: MetadataService, tmp_path: Path) -> None:
    engine = opened(service, tmp_path)
    file = tmp_path / "r0.pages"
    before = file.stat()
    assert before.st_size <= CAPACITY_BYTES and before.st_blocks * 512 >= before.st_size, "its room is reserved"
    for start in range(0, 200, 20):
        put(engine, *range(start, start + 20))
    assert file.stat().st_size == before.st_size
    engine.close()


def test_a_full_rank_evicts_the_least_recently_used(service: MetadataService, tmp_path: Path) -> None:
    engine = opened(service, tmp_path)
    for number in range(PAGES):
        assert put(engine, number) == [Outcome.DONE]
    assert got(engine, 0) == [Outcome.DONE]
    assert put(engine, 100) == [Outcome.DONE]
    assert got(engine, 0, 1, 2, 100) == [Outcome.DONE, Outcome.MISSING, Outcome.DONE, Outcome.DONE]
    assert put(engine, *range(200, 200 + PAGES + 5)).count(Outcome.DONE) == PAGES, "no more than there are"
    stats = service.stats()["ranks"]["r0"]
    assert stats["full"]["held"] == stats["full"]["pages"] == PAGES and stats["full"]["evicted"] == 1 + PAGES
    assert stats["mamba"]["held"] == 0
    engine.close()


class StoppedClock:
    """The time of this process's engines, which a test moves."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def monotonic(self) -> float:
        return self.now_s


def test_what_is_read_is_not_recycled_and_what_is_read_too_late_is_no_hit(
    service: MetadataService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppedClock()
    monkeypatch.setattr(hf3fs_storage, "time", clock)
    reader, writer = opened(service, tmp_path), opened(service, tmp_path)
    put(writer, *range(PAGES))
    read = reader._access.rank.file.read
    met: list[list[Outcome]] = []

    def slowly(ranges: Sequence[FileRange]) -> list[Ending]:
        met.append(put(writer, *range(1000, 1000 + PAGES)))
        return read(ranges, time.monotonic() + 60)

    write = writer._access.rank.file.write
    file = type(reader._access.rank.file)
    monkeypatch.setattr(file, "write", lambda _, ranges, _deadline: write(ranges, time.monotonic() + 60))
    monkeypatch.setattr(file, "read", lambda _, ranges, _deadline: slowly(ranges))
    assert got(reader, 0, 1, 2) == [Outcome.DONE] * 3
    assert met[0].count(Outcome.DONE) == PAGES - 3, "three pages are being read"

    def beyond_the_lease(ranges: Sequence[FileRange]) -> list[Ending]:
        endings = read(ranges, time.monotonic() + 60)
        clock.now_s += LEASE_S + 1
        return endings

    monkeypatch.setattr(file, "read", lambda _, ranges, _deadline: beyond_the_lease(ranges))
    assert got(reader, 1000) == [Outcome.FAILED]
    reader.close()
    writer.close()


def test_a_writer_that_comes_too_late_is_not_believed(
    service: MetadataService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(service, tmp_path)
    write = engine._access.rank.file.write

    def slowly(ranges: Sequence[FileRange], deadline: float) -> list[Ending]:
        endings = write(ranges, deadline)
        service.let_pass(LEASE_S)
        return endings

    monkeypatch.setattr(type(engine._access.rank.file), "write", lambda _, ranges, deadline: slowly(ranges, deadline))
    assert put(engine, 1) == [Outcome.FAILED]
    monkeypatch.undo()
    assert got(engine, 1) == [Outcome.MISSING]
    assert service.stats()["ranks"]["r0"]["full"]["aside"] == 1, "it may still be writing"
    assert put(engine, 1) == [Outcome.DONE]
    service.let_pass()
    assert got(engine, 1) == [Outcome.DONE]
    assert service.stats()["ranks"]["r0"]["full"]["aside"] == 0, "the page never comes back"
    engine.close()


def test_without_a_service_or_a_directory_there_is_no_engine(service: MetadataService, tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(StorageError, match="cannot be opened"):
        opened(service, tmp_path / "nowhere")
    with pytest.raises(StorageError, match="nothing is mounted"):
        opened(service, tmp_path, mount=str(tmp_path))
    with pytest.raises(ConfigurationError, match="hf3fs_fuse cannot be imported"):
        opened(service, tmp_path, io="usrbio")
    with pytest.raises(ConfigurationError, match="io_timeout_s must be shorter"):
        opened(service, tmp_path, io_timeout_s=LEASE_S)
    service.pause()
    try:
        with pytest.raises(StorageError, match="does not answer"):
            opened(service, tmp_path, request_timeout_s=BRIEF_S)
    finally:
        service.resume()
    service.kill()
    with pytest.raises(StorageError, match="does not answer"):
        opened(service, tmp_path)
    until(lambda: threads() == 0 and descriptors() <= before, "descriptors or threads are left")


@pytest.mark.usefixtures("stopped_time")
def test_a_killed_service_is_a_store_where_nothing_is_and_it_comes_back_with_everything(
    service: MetadataService, tmp_path: Path
) -> None:
    engine = opened(service, tmp_path)
    put(engine, 1, 2)
    service.kill()
    with pytest.raises(StorageError, match="does not answer"):
        engine.exists("full", keys(1))
    assert not engine.exists("full", keys(1)).any()
    assert got(engine, 1) == [Outcome.MISSING] and put(engine, 3) == [Outcome.DROPPED]
    assert engine.stats().is_degraded
    with pytest.raises(StorageError, match="away"):
        engine.remove("full", keys(1))
    service.start()
    until(lambda: got(engine, 1, 2) == [Outcome.DONE] * 2, "the pages are not found again")
    assert put(engine, 3) == [Outcome.DROPPED], "who wrote before may still be at it"
    service.let_pass()
    assert put(engine, 3) == [Outcome.DONE]
    assert not engine.stats().is_degraded
    engine.close()


def test_a_service_that_ended_in_peace_takes_pages_at_once(service: MetadataService, tmp_path: Path) -> None:
    engine = opened(service, tmp_path)
    put(engine, 1)
    service.stop()
    service.start()
    assert put(engine, 2) == [Outcome.DONE] and got(engine, 1, 2) == [Outcome.DONE] * 2
    engine.close()


@pytest.mark.usefixtures("stopped_time")
def test_a_frozen_service_is_not_waited_for_twice(service: MetadataService, tmp_path: Path) -> None:
    engine = opened(service, tmp_path)
    put(engine, 1)
    service.pause()
    try:
        with brief_answers(engine):
            assert got(engine, 1) == [Outcome.FAILED]
        assert got(engine, 1) == [Outcome.MISSING]
        assert not engine.exists("full", keys(1)).any()
    finally:
        service.resume()
    engine.close()


def test_a_service_that_lost_everything_knows_nothing_and_goes_on(service: MetadataService, tmp_path: Path) -> None:
    engine = opened(service, tmp_path)
    put(engine, 1)
    service.kill()
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    service.start()
    assert got(engine, 1) == [Outcome.MISSING]
    assert put(engine, 2) == [Outcome.DROPPED], "the file is older than the service: somebody may be writing"
    service.let_pass()
    assert put(engine, 2) == [Outcome.DONE]
    assert got(engine, 1, 2) == [Outcome.MISSING, Outcome.DONE]
    engine.close()


@pytest.mark.parametrize("loss", ["deleted", "cut off", "replaced"])
def test_a_file_that_is_not_what_it_was_is_empty(service: MetadataService, tmp_path: Path, loss: str) -> None:
    engine, file = opened(service, tmp_path), tmp_path / "r0.pages"
    put(engine, 1)
    if loss == "cut off":
        os.truncate(file, 100)
        assert got(engine, 1) == [Outcome.FAILED]
        until(lambda: got(engine, 1) == [Outcome.MISSING], "it cannot be used any more")
        service.let_pass()  # that the reading is over is not known
        until(lambda: put(engine, 1) == [Outcome.DONE], "nothing can be put any more")
        assert got(engine, 1) == [Outcome.DONE]
    engine.close()
    if loss == "deleted":
        file.unlink()
    elif loss == "replaced":
        file.write_bytes(bytes(file.stat().st_size))
    again = opened(service, tmp_path)
    assert got(again, 1) == [Outcome.DONE if loss == "cut off" else Outcome.MISSING]
    assert put(again, 2) == [Outcome.DONE] and got(again, 2) == [Outcome.DONE]
    again.close()


def test_another_model_begins_the_rank_anew_and_the_old_one_sees_nothing_of_it(
    service: MetadataService, tmp_path: Path
) -> None:
    old = opened(service, tmp_path)
    put(old, 1)
    other = StoredPool(name="full", format_digest=sha256(b"other").digest(), value_bytes=2 * SIZE)
    new = Hf3fsStorage([other], settings(service, tmp_path))
    page = memoryview(bytearray(2 * SIZE))
    assert new.get("full", keys(1), [page]) == [Outcome.MISSING]
    assert new.put("full", keys(1), [page]) == [Outcome.DONE]
    assert got(old, 1) == [Outcome.FAILED] and got(old, 1) == [Outcome.MISSING] and old.stats().is_degraded
    assert new.get("full", keys(1), [page]) == [Outcome.DONE], "the old one does not take it back"
    old.close()
    new.close()


@pytest.mark.usefixtures("stopped_time")
def test_a_killed_mount_is_a_miss_until_it_is_back(service: MetadataService, mount: bind_mount.BindMount) -> None:
    engine = opened(service, mount.point, mount=str(mount.point))
    put(engine, 1, 2)
    drop_cache(mount)
    mount.kill()
    assert got(engine, 1) == [Outcome.FAILED]
    assert got(engine, 1) == [Outcome.MISSING] and put(engine, 3) == [Outcome.DROPPED]
    assert not engine.exists("full", keys(1)).any() and engine.stats().is_degraded
    mount.unmount()
    retry_clock.let_pass(0.3)
    assert got(engine, 1) == [Outcome.MISSING], "nothing is mounted"
    assert not list(mount.point.iterdir()), "and nothing is written where it should be"
    mount.start()
    until(lambda: got(engine, 1, 2) == [Outcome.DONE] * 2, "the pages are not found again")
    assert put(engine, 3) == [Outcome.DONE] and not engine.stats().is_degraded
    engine.close()


@pytest.mark.usefixtures("stopped_time")
def test_a_frozen_mount_costs_one_time_out_and_touches_no_page_later(
    service: MetadataService, mount: bind_mount.BindMount
) -> None:
    engine, writer = opened(service, mount.point, io_threads=2), opened(service, mount.point)
    put(engine, 1, 2, 3)
    drop_cache(mount)
    pages = empty(3)
    mount.pause()
    try:
        with brief_moves(engine, writer):
            assert engine.get("full", keys(1, 2, 3), pages) == [Outcome.FAILED] * 3
            assert put(writer, 10, 11) == [Outcome.FAILED] * 2
        assert got(engine, 1) == [Outcome.MISSING] and put(engine, 4) == [Outcome.DROPPED]
        for page in pages:
            page[:] = bytes(SIZE)
    finally:
        mount.resume()
    until(lambda: got(engine, 1, 2, 3) == [Outcome.DONE] * 3, "the pages are not found again")
    assert all(page == bytes(SIZE) for page in pages), "pages of a call that is over are somebody else's"
    until(lambda: put(engine, 10, 11) == [Outcome.DONE] * 2, "nothing can be put any more")
    assert got(engine, 10, 11) == [Outcome.DONE] * 2
    engine.close()
    writer.close()


def drop_cache(mount: bind_mount.BindMount) -> None:
    """So that the next read asks the daemon."""
    descriptor = os.open(mount.point / "r0.pages", os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_threads_with_random_calls_over_a_service_that_is_killed(service: MetadataService, tmp_path: Path) -> None:
    before = descriptors()
    engines = [opened(service, tmp_path), opened(service, tmp_path)]

    def kill_it(go_on: Callable[[int], None]) -> None:
        for _ in range(3):
            go_on(12)
            service.kill()
            go_on(4)
            service.start()
            service.let_pass()
        go_on(24)

    check_threads(engines, kill_it, numbers=60)
    assert service.stats()["ranks"]["r0"]["full"]["held"] > 0
    for engine in engines:
        engine.close()
    until(lambda: threads() == 0 and descriptors() <= before, "descriptors or threads are left")
