"""The metadata service's state on disk while snapshots are taken: what a kill, a power failure and a full disk leave of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from unified_tree.controllers.storage.hf3fs.metadata.held_keys import HeldKeys
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.rank_record import RefusedError, Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_directory import StateDirectory
from unified_tree.controllers.storage.hf3fs.metadata_wire import NOWHERE, PRESENT, WRITTEN
from unified_tree.errors import ConfigurationError, StorageError

SHAPES = {"full": Shape("f", 512, 40)}
KEYS = [sha256(bytes([number])).digest() for number in range(60)]


def made(path: Path, journal_bytes: int = 16 << 20, clock: Callable[[], float] = lambda: 1000.0) -> MetadataState:
    numbers = itertools.count(1)
    directory = StateDirectory(path, journal_bytes=journal_bytes)
    return MetadataState(directory, lease_s=1.0, aside_s=0.0, draw=lambda: next(numbers), clock=clock, step_pages=4)


def put(state: MetadataState, epoch: int, *keys: bytes, rank: str = "r") -> None:
    lease, _ = state.reserve(rank, epoch, "full", keys, [])
    assert set(state.confirm(rank, epoch, "full", lease, keys, bytes([WRITTEN] * len(keys)), [])) == {PRESENT}


def held(state: MetadataState, rank: str = "r") -> list[bytes]:
    return [key for key, _ in state.tables(rank)["full"].items()]


def is_due(state: MetadataState) -> bool:
    return state.is_snapshot_due


def begun(state: MetadataState, steps: int) -> None:
    """A snapshot that goes so far and no further: the process is killed."""
    calls = state.snapshot()
    for call in itertools.islice(calls, steps):
        call()
    next(calls)


def test_a_rank_that_is_opened_anew_while_a_snapshot_is_taken(tmp_path: Path) -> None:
    for steps in range(1, 11):
        path = tmp_path / str(steps)
        state = made(path)
        epoch = state.open("r", SHAPES, 0, may_replace=True)
        put(state, epoch, *KEYS[:30])
        begun(state, steps)
        other = {"full": Shape("g", 1024, 5), "swa": Shape("s", 512, 5)}
        epoch = state.open("r", other, 0, may_replace=True)
        put(state, epoch, *KEYS[40:45])
        second = state.open("s", SHAPES, 0, may_replace=True)
        put(state, second, *KEYS[:3], rank="s")
        state.abandon()
        again = made(path)
        assert held(again) == KEYS[40:45] and held(again, "s") == KEYS[:3]
        assert again.open("r", other, epoch, may_replace=False) == epoch
        again.close()


def test_order_of_use_is_kept(tmp_path: Path) -> None:
    state = made(tmp_path)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:40])
    state.lookup("r", epoch, "full", KEYS[10:15], [])
    state.delete("r", epoch, "full", KEYS[20:25], [])
    before = held(state)
    assert before == [*KEYS[:10], *KEYS[15:20], *KEYS[25:40], *KEYS[10:15]]
    state.close()
    assert held(made(tmp_path)) == before


def test_a_power_failure_that_took_the_end_of_a_journal_takes_what_followed_too(tmp_path: Path) -> None:
    state = made(tmp_path)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:5])
    [journal] = tmp_path.glob("journal.*")
    short = journal.stat().st_size
    put(state, epoch, *KEYS[5:10])
    begun(state, 2)
    put(state, epoch, *KEYS[10:15])
    state.abandon()
    assert len(list(tmp_path.glob("journal.*"))) == 2
    with journal.open("r+b") as file:
        file.truncate(short)
    state = made(tmp_path)
    assert held(state) == KEYS[:5], "the changes up to some moment, and none from after it"
    state.close()


def test_what_followed_is_there_where_nothing_was_lost(tmp_path: Path) -> None:
    now = [1000.0]
    state = made(tmp_path, clock=lambda: now[0])
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:10])
    for number in range(10, 30, 5):
        begun(state, number // 5)
        put(state, epoch, *KEYS[number : number + 5])
        state.abandon()
        state = made(tmp_path, clock=lambda: now[0])
        assert held(state) == KEYS[: number + 5]
        now[0] += 10.0  # after the time in which no page is handed out


def test_a_snapshot_that_fails_leaves_everything_and_is_not_tried_at_once(tmp_path: Path) -> None:
    state = made(tmp_path, journal_bytes=1000)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    for _ in range(40):
        put(state, epoch, *KEYS[:5])
        state.delete("r", epoch, "full", KEYS[:5], [])
    assert is_due(state)
    for failing in range(1, 4):
        with closing(state.snapshot()) as calls:
            for call in itertools.islice(calls, failing):
                call()
            assert not is_due(state), "one at a time"
        assert not is_due(state), "the disk is full, as it was a moment ago"
        for number in range(40):
            put(state, epoch, KEYS[number % 5])
            state.delete("r", epoch, "full", [KEYS[number % 5]], [])
        assert is_due(state)
    put(state, epoch, *KEYS[:7])
    with closing(state.snapshot()) as calls:
        for call in calls:
            call()
    assert not is_due(state) and len(list(tmp_path.glob("journal.*"))) == 1
    state.abandon()
    assert held(made(tmp_path)) == KEYS[:7]


def test_files_that_are_not_the_services_are_neither_removed_nor_written_over(tmp_path: Path) -> None:
    others = {
        "journal.txt": b"a diary",
        "journal.0": b"a diary",
        "journal.007": b"",
        "journal.9": b"a diary",
        "metadata.old": b"x",
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    state = made(tmp_path)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:5])
    for _ in range(3):
        with closing(state.snapshot()) as calls:
            for call in calls:
                call()
    state.close()
    state = made(tmp_path)
    assert held(state) == KEYS[:5]
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert len(list(tmp_path.glob("journal.*"))) == 5
    following = (
        tmp_path / f"journal.{1 + max(int(path.suffix[1:]) for path in tmp_path.glob('journal.*') if path.suffix != '.txt')}"
    )
    following.write_bytes(b"a diary that came later")
    with pytest.raises(FileExistsError, match="no journal of this service"), closing(state.snapshot()) as calls:
        next(calls)()
    put(state, state.open("r", SHAPES, epoch, may_replace=False), KEYS[7])
    assert following.read_bytes() == b"a diary that came later"
    state.close()


def test_a_state_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_bytes(b"UT3FSmd\x02" + bytes(100))
    with pytest.raises(StorageError, match="no snapshot of this version of the service; move it away"):
        made(tmp_path)


def test_a_file_that_may_be_somebodys_makes_no_rank() -> None:
    state = MetadataState(None, lease_s=1.0, aside_s=0.0, draw=lambda: 7)
    with pytest.raises(RefusedError, match="holds something that is not ours"):
        state.open("r", SHAPES, -1, may_replace=True)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    assert state.open("r", SHAPES, -1, may_replace=True) == epoch, "it is known, and its file was cut off"


@pytest.mark.parametrize("given", [{"lease_s": math.nan}, {"lease_s": True}, {"aside_s": math.inf}, {"step_pages": 0}])
def test_times_and_steps_that_cannot_be(given: dict[str, Any]) -> None:
    good: dict[str, Any] = {"lease_s": 1.0, "aside_s": 0.0, "draw": lambda: 7}
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be"):
        MetadataState(None, **good | given)


@pytest.mark.parametrize("given", [{"journal_bytes": 0}, {"flush_bytes": -1}, {"journal_bytes": True}, {"sync": "no"}])
def test_sizes_that_cannot_be(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} must be"):
        StateDirectory(tmp_path, **given)


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
    copied, used = keys.copied(0, 4)
    assert copied[:32] == KEYS[0] and copied[96:] == KEYS[2] and used[16:24] == bytes(8), "page 2 is nobody's"
