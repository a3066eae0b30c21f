"""The metadata service's state on disk: what a kill, a power failure and a full disk leave of it."""

from __future__ import annotations

import itertools
import math
import sqlite3
import threading
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from killed_service import DATABASE, LOG, laid_out, left_behind
from waiting import PATIENCE_S

from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.page_table import HeldKeys, RefusedError, Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase
from unified_tree.controllers.storage.hf3fs.metadata_wire import NOWHERE, PRESENT, WRITTEN
from unified_tree.terms.errors import ConfigurationError, StorageError

SHAPES = {"full": Shape("f", 512, 40)}
KEYS = [sha256(bytes([number])).digest() for number in range(60)]


def made(path: Path, log_bytes: int = 64 << 20, commit_wait_s: float = PATIENCE_S) -> MetadataState:
    numbers = itertools.count(1)
    database = StateDatabase(path, log_bytes=log_bytes, commit_wait_s=commit_wait_s)
    return MetadataState(database, lease_s=1.0, aside_s=0.0, draw=lambda: next(numbers), clock=lambda: 1000.0)


def put(state: MetadataState, epoch: int, *keys: bytes, rank: str = "r") -> None:
    lease, _ = state.reserve(rank, epoch, "full", keys, [])
    assert set(state.confirm(rank, epoch, "full", lease, keys, bytes([WRITTEN] * len(keys)), [])) == {PRESENT}


def held(state: MetadataState, rank: str = "r") -> list[bytes]:
    return [key for key, _ in state.tables(rank)["full"].items()]


def test_a_rank_that_is_opened_anew_is_another_one_after_a_kill_too(tmp_path: Path) -> None:
    state = made(tmp_path / "state")
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:30])
    other = {"full": Shape("g", 1024, 5), "swa": Shape("s", 512, 5), "a": Shape("a", 512, 2)}
    epoch = state.open("r", other, 0, may_replace=True)
    put(state, epoch, *KEYS[40:45])
    second = state.open("s", SHAPES, 0, may_replace=True)
    put(state, second, *KEYS[:3], rank="s")
    again = made(laid_out(left_behind(tmp_path / "state"), tmp_path / "killed"))
    assert held(again) == KEYS[40:45] and held(again, "s") == KEYS[:3]
    assert list(again.tables("r")) == list(other), "in the order of the file"
    assert again.open("r", other, epoch, may_replace=False) == epoch
    again.close()
    state.close()


def test_order_of_use_is_kept_and_after_a_kill_that_of_writing(tmp_path: Path) -> None:
    state = made(tmp_path / "state")
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:40])
    state.lookup("r", epoch, "full", KEYS[10:15], [])
    state.delete("r", epoch, "full", KEYS[20:25], [])
    before = held(state)
    assert before == [*KEYS[:10], *KEYS[15:20], *KEYS[25:40], *KEYS[10:15]]
    killed = made(laid_out(left_behind(tmp_path / "state"), tmp_path / "killed"))
    assert held(killed) == [*KEYS[:20], *KEYS[25:40]]
    killed.close()
    state.close()
    state = made(tmp_path / "state")
    assert held(state) == before
    put(state, epoch, KEYS[50])
    killed = made(laid_out(left_behind(tmp_path / "state"), tmp_path / "killed again"))
    assert held(killed) == [*before, KEYS[50]], "what is written later is younger"
    killed.close()
    state.close()


def test_a_log_that_ends_early_anywhere_leaves_the_changes_up_to_some_moment(tmp_path: Path) -> None:
    """A kill in the middle of a commit, and a power failure that took the log's end."""
    state = made(tmp_path / "state")
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    moments = {len(left_behind(tmp_path / "state")[LOG]): held(state)}
    for number in range(0, 40, 8):
        put(state, epoch, *KEYS[number : number + 8])
        moments[len(left_behind(tmp_path / "state")[LOG])] = held(state)
        state.delete("r", epoch, "full", KEYS[number : number + 3], [])
        moments[len(left_behind(tmp_path / "state")[LOG])] = held(state)
    files = left_behind(tmp_path / "state")
    state.close()
    first, *_, last = moments
    assert last == len(files[LOG])
    cuts = {end + off for end in moments for off in (-1, 0, 1, 24)} | set(range(first, last, 3001))
    for cut in sorted(cut for cut in cuts if first <= cut <= last):
        again = made(laid_out({**files, LOG: files[LOG][:cut]}, tmp_path / str(cut)))
        assert held(again) == moments[max(end for end in moments if end <= cut)], f"cut after {cut} bytes"
        again.close()


def test_what_the_disk_did_not_take_is_refused_and_written_before_the_next_change(tmp_path: Path) -> None:
    state = made(tmp_path / "state", commit_wait_s=0.1)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:40])
    with closing(sqlite3.connect(tmp_path / "state" / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # so that no commit succeeds
        with pytest.raises(RefusedError, match="cannot be written") as refused:
            state.reserve("r", epoch, "full", [KEYS[50]], [])
        assert refused.value.status == 503 and state.stats()["is_behind"]
        with pytest.raises(RefusedError, match="changes are refused"):
            state.delete("r", epoch, "full", KEYS[5:6], [])
        with pytest.raises(RefusedError, match="changes are refused"):
            state.open("s", SHAPES, 0, may_replace=True)
        assert state.lookup("r", epoch, "full", [KEYS[0], KEYS[1]], []) == [NOWHERE, 1]
        other.execute("ROLLBACK")
    state.delete("r", epoch, "full", KEYS[5:6], [])
    assert not state.stats()["is_behind"]
    again = made(laid_out(left_behind(tmp_path / "state"), tmp_path / "killed"))
    assert held(again) == [*KEYS[1:5], *KEYS[6:40]], "without the page that the refused writer was to have"
    again.close()
    state.lookup("r", epoch, "full", KEYS[1:3], [])
    lease, _ = state.reserve("r", epoch, "full", [KEYS[55]], [])
    with closing(sqlite3.connect(tmp_path / "state" / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RefusedError, match="changes are refused"):
            state.confirm("r", epoch, "full", lease, [KEYS[55]], bytes([WRITTEN]), [])
        other.execute("ROLLBACK")
    before = held(state)
    state.close()
    again = made(tmp_path / "state")
    assert held(again) == before and before[-3:] == [*KEYS[1:3], KEYS[55]], "what was left to write is written at the end"
    again.close()


def test_changes_and_checkpoints_at_once_lose_nothing(tmp_path: Path) -> None:
    state = made(tmp_path / "state", log_bytes=1)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    ended, failures = threading.Event(), []

    def checkpoints() -> None:
        while not ended.is_set():
            try:
                state.checkpoint()
            except StorageError as error:
                failures.append(error)

    thread = threading.Thread(target=checkpoints)
    thread.start()
    try:
        for number in range(200):
            key = sha256(str(number).encode()).digest()
            put(state, epoch, key)
            if number % 3 == 0:
                state.delete("r", epoch, "full", [key], [])
    finally:
        ended.set()
        thread.join()
    assert not failures
    again = made(laid_out(left_behind(tmp_path / "state"), tmp_path / "killed"))
    assert held(again) == held(state)
    again.close()
    state.close()


def test_a_log_that_a_checkpoint_does_not_finish_is_begun_anew_when_it_is_long(tmp_path: Path) -> None:
    state = made(tmp_path, log_bytes=1)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None, check_same_thread=False)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM page").fetchall()
        put(state, epoch, *KEYS[:30])  # which the reader does not see, so it cannot be moved
        timer = threading.Timer(0.2, reader.execute, ["ROLLBACK"])
        timer.start()
        state.checkpoint()
        timer.join()
    size = len(left_behind(tmp_path)[LOG])
    put(state, epoch, KEYS[50])
    assert len(left_behind(tmp_path)[LOG]) == size, "the log goes on at its beginning"
    state.close()


def test_other_files_are_left_as_they_are(tmp_path: Path) -> None:
    others = {"journal.1": b"a diary", "metadata.old": b"x", "metadata.sqlite": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "metadata.new").write_bytes(b"of a service that was killed when it was made")
    state = made(tmp_path)
    put(state, state.open("r", SHAPES, 0, may_replace=True), *KEYS[:5])
    state.checkpoint()
    state.close()
    state = made(tmp_path)
    assert held(state) == KEYS[:5]
    state.close()
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert {path.name for path in tmp_path.iterdir()} == {*others, "lock", DATABASE}
    assert (tmp_path / DATABASE).stat().st_mode & 0o777 == 0o600


def test_a_state_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"UT3FSmd\x03" + bytes(100))
    with pytest.raises(StorageError, match=f"{DATABASE} cannot be read: file is not a database; move it away"):
        made(tmp_path)
    (tmp_path / DATABASE).unlink()
    made(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
        other.execute("PRAGMA user_version = 5")
    with pytest.raises(StorageError, match="it is of version 5, not 4; move it away"):
        made(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
        other.execute("PRAGMA user_version = 4")
    made(tmp_path).close()


def test_a_database_that_was_moved_away_without_its_log_leaves_nothing(tmp_path: Path) -> None:
    state = made(tmp_path / "state")
    put(state, state.open("r", SHAPES, 0, may_replace=True), *KEYS[:30])
    files = left_behind(tmp_path / "state")
    state.close()
    state = made(laid_out({LOG: files[LOG]}, tmp_path / "moved"))
    assert not state.stats()["ranks"]
    put(state, state.open("r", SHAPES, 0, may_replace=True), KEYS[50])
    assert held(state) == [KEYS[50]]
    state.close()


def test_a_file_that_may_be_somebodys_makes_no_rank(tmp_path: Path) -> None:
    state = made(tmp_path)
    with pytest.raises(RefusedError, match="holds something that is not ours"):
        state.open("r", SHAPES, -1, may_replace=True)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    assert state.open("r", SHAPES, -1, may_replace=True) == epoch, "it is known, and its file was cut off"
    state.close()


@pytest.mark.parametrize("given", [{"lease_s": math.nan}, {"lease_s": True}, {"aside_s": math.inf}])
def test_times_that_cannot_be(given: dict[str, Any], tmp_path: Path) -> None:
    good: dict[str, Any] = {"lease_s": 1.0, "aside_s": 0.0, "draw": lambda: 7}
    with (
        closing(StateDatabase(tmp_path)) as database,
        pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be"),
    ):
        MetadataState(database, **good | given)


@pytest.mark.parametrize("given", [{"log_bytes": 0}, {"log_bytes": True}, {"sync": "no"}, {"commit_wait_s": math.inf}])
def test_options_that_cannot_be(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be"):
        StateDatabase(tmp_path, **given)


def test_held_keys_are_a_dictionary_in_order_of_use() -> None:
    keys = HeldKeys(((KEYS[page], page) for page in (2, 0)), room=3)
    assert list(keys.items()) == [(KEYS[2], 2), (KEYS[0], 0)] and keys.oldest() == (KEYS[2], 2)
    keys.use([2, 2])
    keys.add(KEYS[9], 1)
    assert keys.find([KEYS[9], KEYS[1], KEYS[2]]) == [1, NOWHERE, 2]
    assert [page for _, page in keys.items()] == [0, 2, 1]
    assert keys.remove(KEYS[2]) == 2 and keys.remove(KEYS[2]) == NOWHERE and len(keys) == 2
    keys.grow()
    keys.add(KEYS[2], 3)
    assert [page for _, page in keys.items()] == [0, 1, 3] and keys.room == 4 and KEYS[2] in keys and KEYS[5] not in keys
