"""The metadata service of 3FS wrote its state in its event loop: two million keys took 1.8 s, and clients give up after 2.0."""

from __future__ import annotations

import asyncio
import itertools
import threading
from hashlib import sha256
from pathlib import Path

import hf3fs_service
from killed_service import DATABASE, laid_out, left_behind

hf3fs_service.skip_unless_it_runs()

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402

from unified_tree.controllers.storage.hf3fs.metadata.metadata_service import application  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.page_table import Shape  # noqa: E402
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase  # noqa: E402
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
    return kind(StateDatabase(path), lease_s=30.0, aside_s=0.0, draw=lambda: next(numbers), clock=lambda: 1000.0)


def put(state: MetadataState, epoch: int, *keys: bytes) -> None:
    lease, _ = state.reserve("r", epoch, "full", keys, [])
    assert set(state.confirm("r", epoch, "full", lease, keys, bytes([WRITTEN] * len(keys)), [])) == {PRESENT}


def held(state: MetadataState) -> set[bytes]:
    return {key for key, _ in state.tables("r")["full"].items()}


def test_all_is_kept_though_the_service_is_killed_after_any_part_of_a_checkpoint(tmp_path: Path) -> None:
    state = made(tmp_path / "state")
    epoch = state.open("r", SHAPES, 0, may_replace=True)
    put(state, epoch, *KEYS[:100])
    before = left_behind(tmp_path / "state")
    state.checkpoint()
    moved = left_behind(tmp_path / "state")[DATABASE]
    put(state, epoch, KEYS[120])
    state.delete("r", epoch, "full", KEYS[30:60], [])
    kept = {*KEYS[:30], *KEYS[60:100], KEYS[120]}
    after = left_behind(tmp_path / "state")
    assert after[DATABASE] == moved, "changes go to the log"
    assert held(state) == kept
    state.close()
    for size in range(0, len(moved), 1024):
        files = {**before, DATABASE: moved[:size] + before[DATABASE][size:]}
        again = made(laid_out(files, tmp_path / str(size)))
        assert held(again) == set(KEYS[:100]), f"killed when {size} bytes were moved"
        again.close()
    again = made(laid_out(after, tmp_path / "all"))
    assert held(again) == kept
    again.check()
    again.close()


class HeldState(MetadataState):
    """A checkpoint does not return before it may."""

    begun, may_go_on = threading.Event(), threading.Event()

    def checkpoint(self) -> None:
        self.begun.set()
        assert self.may_go_on.wait(60)
        super().checkpoint()


def test_requests_are_answered_while_a_checkpoint_waits_for_the_disk(tmp_path: Path) -> None:
    state = made(tmp_path / "state", HeldState)
    epoch = state.open("r", SHAPES, 0, may_replace=True)

    async def scenario() -> None:
        async with TestClient(TestServer(application(state, checkpoint_s=0.01))) as client:
            assert await asyncio.to_thread(HeldState.begun.wait, 60)
            where = f"?rank=r&epoch={epoch}&namespace=full"
            async with client.post(f"/v1/reserve{where}", data=pack_request(KEYS[:2])) as answer:
                lease, pages = unpack_answer(await answer.read(), 2)
            async with client.post(
                f"/v1/confirm{where}&lease={lease}", data=pack_request(KEYS[:2], flags=bytes([WRITTEN] * 2))
            ) as answer:
                assert unpack_answer(await answer.read(), 2)[1] == [PRESENT, PRESENT]
            async with client.post(f"/v1/lookup{where}", data=pack_request(KEYS[:3])) as answer:
                assert unpack_answer(await answer.read(), 3)[1] == [*pages, NOWHERE]
            assert not HeldState.may_go_on.is_set(), "all of that while the checkpoint was under way"
            HeldState.may_go_on.set()

    asyncio.run(scenario())
    state.close()
    again = made(tmp_path / "state")
    assert held(again) == set(KEYS[:2])
    again.close()
