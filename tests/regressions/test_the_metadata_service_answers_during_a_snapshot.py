"""The metadata service of 3FS wrote snapshots in its event loop: two million keys took 1.8 s, and clients give up after 2.0."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator
from hashlib import sha256
from pathlib import Path

import hf3fs_service

hf3fs_service.skip_unless_it_runs()

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402

from unified_tree.controllers.storage.hf3fs.metadata.metadata_service import application  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.rank_record import Shape  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.state_directory import StateDirectory  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata_wire import (  # noqa: E402
    NOWHERE,
    PRESENT,
    WRITTEN,
    pack_request,
    unpack_answer,
)

SHAPES = {"full": Shape("f", 512, 200)}
KEYS = [sha256(bytes([number])).digest() for number in range(150)]


def made(path: Path, kind: type[MetadataState] = MetadataState) -> MetadataState:
    numbers = itertools.count(1)
    directory = StateDirectory(path, journal_bytes=1)
    return kind(directory, lease_s=30.0, aside_s=0.0, draw=lambda: next(numbers), clock=lambda: 1000.0, step_pages=8)


def put(state: MetadataState, epoch: int, *keys: bytes) -> None:
    lease, _ = state.reserve("r", epoch, "full", keys, [])
    assert set(state.confirm("r", epoch, "full", lease, keys, bytes([WRITTEN] * len(keys)), [])) == {PRESENT}


def test_a_step_copies_few_pages_however_many_there_are_and_all_is_kept_though_it_is_killed_after_any(tmp_path: Path) -> None:
    state = made(tmp_path / "0")
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    steps = 0
    for last in itertools.count():
        path = tmp_path / str(last)
        state = made(path) if last else state
        epoch = state.open("r", SHAPES, 0, may_replace=True)
        put(state, epoch, *KEYS[:100])
        held, call = dict.fromkeys(KEYS[:100]), None
        for number, call in enumerate(itertools.islice(state.snapshot(), last)):
            call()
            put(state, epoch, KEYS[100 + number])
            state.delete("r", epoch, "full", [KEYS[3 * number], KEYS[99 - number]], [])
            held[KEYS[100 + number]] = None
            for key in (KEYS[3 * number], KEYS[99 - number]):
                held.pop(key, None)
            steps = max(steps, number + 1)
        state.abandon()  # as a kill leaves it
        again = made(path)
        assert {key for key, _ in again.tables("r")["full"].items()} == set(held), f"killed after step {last}"
        again.check()
        again.abandon()
        if last > steps:
            break
    assert steps == 3 + -(-100 // 8), "the files, the head, each part and the end"


class HeldState(MetadataState):
    """A snapshot's first call does not return before it may."""

    begun, may_go_on = threading.Event(), threading.Event()

    def snapshot(self, *, is_clean: bool = False) -> Generator[Callable[[], None], None, None]:
        calls = super().snapshot(is_clean=is_clean)
        try:
            yield next(calls)
            yield next(calls)
            if self.stats()["ranks"]:
                yield self._hold
            yield from calls
        finally:
            calls.close()

    def _hold(self) -> None:
        self.begun.set()
        assert self.may_go_on.wait(60)


def test_requests_are_answered_while_a_snapshot_waits_for_the_disk(tmp_path: Path) -> None:
    state = made(tmp_path / "state", HeldState)
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[10:60])
    state.delete("r", epoch, "full", KEYS[10:60], [])
    assert state.is_snapshot_due

    async def scenario() -> None:
        async with TestClient(TestServer(application(state))) as client:
            await asyncio.to_thread(HeldState.begun.wait, 60)
            where = f"?rank=r&epoch={epoch}&namespace=full"
            async with client.post(f"/v1/reserve{where}", data=pack_request(KEYS[:2])) as answer:
                lease, pages = unpack_answer(await answer.read(), 2)
            async with client.post(
                f"/v1/confirm{where}&lease={lease}", data=pack_request(KEYS[:2], flags=bytes([WRITTEN] * 2))
            ) as answer:
                assert unpack_answer(await answer.read(), 2)[1] == [PRESENT, PRESENT]
            async with client.post(f"/v1/lookup{where}", data=pack_request(KEYS[:3])) as answer:
                assert unpack_answer(await answer.read(), 3)[1] == [*pages, NOWHERE]
            assert not HeldState.may_go_on.is_set(), "all of that while the snapshot was under way"
            HeldState.may_go_on.set()

    asyncio.run(scenario())
    state.close()
    again = made(tmp_path / "state")
    assert {key for key, _ in again.tables("r")["full"].items()} == set(KEYS[:2])
    again.close()
