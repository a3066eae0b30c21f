"""Mooncake, the real one: a master and peers on loopback, healthy and not."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import mooncake_server
import pytest
from mooncake_server import Mooncake
from numbered_pages import FULL, MAMBA, SIZE, check_killed_writers, check_threads, empty, filled, keys, until_put, value
from ports import free_port

from unified_tree.controllers.storage import CheckedStorage, Outcome, StoredPool, registered_storage
from unified_tree.controllers.storage.mooncake import MooncakeSettings, MooncakeStorage
from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeClient
from unified_tree.terms.errors import StorageError

mooncake_server.skip_unless_it_runs()


@pytest.fixture
def server() -> Iterator[Mooncake]:
    with Mooncake() as running:
        yield running


def settings(server: Mooncake, **other: Any) -> MooncakeSettings:
    return MooncakeSettings(master=server.master, **(mooncake_server.SETTINGS | other))


@pytest.fixture
def engine(server: Mooncake) -> Iterator[MooncakeStorage]:
    made = MooncakeStorage([FULL, MAMBA], settings(server))
    yield made
    made.close()


def test_registered_memory_and_other_memory_in_one_batch(engine: MooncakeStorage) -> None:
    pool = memoryview(bytearray(8 * SIZE))
    engine.register([pool[: 4 * SIZE], pool[2 * SIZE :], pool])
    inside = [pool[index * SIZE : (index + 1) * SIZE] for index in range(8)]
    for index, page in enumerate(inside[:4]):
        page[:] = value(index)
    numbers = [0, 1, 2, 3, 10, 11]
    assert engine.put("full", keys(*numbers), inside[:4] + filled(10, 11)) == [Outcome.DONE] * 6
    got = [inside[4], *empty(1), inside[5], *empty(1), inside[6], inside[7]]
    assert engine.get("full", keys(*numbers), got) == [Outcome.DONE] * 6
    assert [bytes(page) for page in got] == [value(number) for number in numbers]


def test_the_pages_of_a_host_pool_are_never_copied(engine: MooncakeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from unified_tree.controllers.pools import HostLayout, HostPool, PageFormat, Part

    page_format = PageFormat(
        component="full",
        layer_ids=(0, 1),
        parts=(Part("k", "float16", (8, 248)), Part("v", "float16", (8, 248))),
        slots_per_page=8,
    )
    pool = HostPool(page_format, 6, HostLayout.PAGE_FIRST_DIRECT, reserve_bytes=0)
    stored = StoredPool(name="host", format_digest=sha256(b"host").digest(), value_bytes=pool.page_memory(0).nbytes)
    made = MooncakeStorage([stored], engine._settings)
    memory = memoryview(pool.memory.numpy().data)
    made.register([memory])
    memory[:] = random.Random(1).randbytes(memory.nbytes)

    def copying(*_: object) -> None:
        raise AssertionError("a page went by the bounce buffer")

    monkeypatch.setattr(registered_storage.BounceBuffer, "lent", copying)
    checked = CheckedStorage(made)
    assert checked.put("host", keys(0, 1, 2), [pool.page_memory(page) for page in range(3)]) == [Outcome.DONE] * 3
    assert checked.get("host", keys(2, 1, 0), [pool.page_memory(page) for page in (3, 4, 5)]) == [Outcome.DONE] * 3
    assert [pool.page_memory(page) for page in (3, 4, 5)] == [pool.page_memory(page) for page in (2, 1, 0)]
    made.close()


def test_a_store_without_a_master_is_refused_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(StorageError, match=f"no master at {address}"):
        MooncakeStorage([FULL], MooncakeSettings(master=address, **mooncake_server.SETTINGS))


def test_what_listens_but_is_no_master_is_refused(server: Mooncake) -> None:
    server.pause()
    try:
        with pytest.raises(StorageError, match="does not take this client"):
            MooncakeStorage([FULL], settings(server))
    finally:
        server.resume()
    MooncakeStorage([FULL], settings(server)).close()


def test_a_killed_master_is_a_store_where_nothing_is_until_it_is_back(server: Mooncake, engine: MooncakeStorage) -> None:
    assert engine.put("full", keys(1), filled(1)) == [Outcome.DONE]
    server.kill()
    assert engine.get("full", keys(1), empty(1)) in ([Outcome.FAILED], [Outcome.MISSING])
    assert engine.stats().is_degraded
    assert engine.get("full", keys(1), empty(1)) in ([Outcome.FAILED], [Outcome.MISSING])
    assert engine.put("full", keys(2), filled(2)) in ([Outcome.FAILED], [Outcome.DROPPED])
    with pytest.raises(StorageError, match=r"away|were not removed"):
        engine.remove("full", keys(1))
    server.start()
    until_put(engine, 3)
    assert not engine.stats().is_degraded
    assert engine.exists("full", keys(1, 3)).tolist() == [False, True], "a new master knows nothing of the old one's"
    pages = empty(1)
    assert engine.get("full", keys(3), pages) == [Outcome.DONE] and pages == filled(3)


def test_a_frozen_master_is_not_waited_for_twice(server: Mooncake) -> None:
    engine = MooncakeStorage([FULL], settings(server, retry_pause_s=2.0))
    assert engine.put("full", keys(1), filled(1)) == [Outcome.DONE]
    server.pause()
    try:
        with contextlib.suppress(StorageError):  # unless a heartbeat noticed first
            assert not engine.exists("full", keys(1)).any()
        assert not engine.exists("full", keys(1)).any()
        assert engine.stats().is_degraded
        assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
    finally:
        server.resume()
    until_put(engine, 2)
    pages = empty(1)
    assert engine.get("full", keys(1), pages) == [Outcome.DONE] and pages == filled(1)
    engine.close()


def test_a_store_without_any_memory_drops_everything() -> None:
    with Mooncake(segment_bytes=0) as server:
        engine = MooncakeStorage([FULL], settings(server))
        assert engine.put("full", keys(1), filled(1)) == [Outcome.DROPPED]
        assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
        assert not engine.stats().is_degraded
        engine.close()


def test_a_segment_of_ones_own_goes_with_the_process() -> None:
    with Mooncake(segment_bytes=0, client_ttl_s=1) as server:
        owner = MooncakeStorage([FULL], settings(server, segment_bytes=32 << 20))
        reader = MooncakeStorage([FULL], settings(server))
        assert not owner.capabilities.survives_restart and reader.capabilities.survives_restart
        assert owner.put("full", keys(1), filled(1)) == [Outcome.DONE]
        pages = empty(1)
        assert reader.get("full", keys(1), pages) == [Outcome.DONE] and pages == filled(1)
        owner.close()
        assert reader.get("full", keys(1), empty(1)) in ([Outcome.MISSING], [Outcome.FAILED])
        reader.close()


def test_a_frozen_peer_fails_its_pages_and_writes_none_later(server: Mooncake, engine: MooncakeStorage) -> None:
    pool = memoryview(bytearray(2 * SIZE))
    engine.register([pool])
    assert engine.put("full", keys(1, 2), filled(1, 2)) == [Outcome.DONE] * 2
    server.peers[0].pause()
    try:
        assert engine.get("full", keys(1, 2), [pool[:SIZE], pool[SIZE:]]) == [Outcome.FAILED] * 2
        pool[:] = bytes(2 * SIZE)
    finally:
        server.peers[0].resume()
    until_put(engine, 3)
    time.sleep(0.5)
    assert pool == bytes(2 * SIZE), "pages of a call that is over are somebody else's"


def test_a_killed_peer_takes_its_pages_along_and_no_others() -> None:
    with Mooncake(client_ttl_s=1) as server:
        engine = MooncakeStorage([FULL], settings(server))
        assert engine.put("full", keys(*range(8)), filled(*range(8))) == [Outcome.DONE] * 8
        server.peers[0].kill()
        outcomes = engine.get("full", keys(*range(8)), empty(8))
        assert set(outcomes) <= {Outcome.FAILED, Outcome.MISSING}
        server.peers.clear()
        server.add_peer(64 << 20)
        until_put(engine, 20)
        pages = empty(1)
        assert engine.get("full", keys(20), pages) == [Outcome.DONE] and pages == filled(20)
        engine.close()


def test_a_lease_that_is_too_short_fails_pages_and_never_gives_wrong_ones() -> None:
    with Mooncake(lease_ms=1) as server:
        engine = MooncakeStorage([FULL], settings(server))
        numbers = range(200)
        engine.put("full", keys(*numbers), filled(*numbers))
        pages = empty(len(numbers))
        outcomes = engine.get("full", keys(*numbers), pages)
        assert set(outcomes) <= {Outcome.DONE, Outcome.FAILED}
        assert all(
            page == value(number)
            for number, page, outcome in zip(numbers, pages, outcomes, strict=True)
            if outcome is Outcome.DONE
        )
        assert Outcome.DONE in outcomes, "a page alone is quick enough at some time"
        engine.close()


def test_clearing_takes_our_pools_and_nobody_elses(server: Mooncake, engine: MooncakeStorage) -> None:
    other_prefix = MooncakeStorage([FULL], settings(server, key_prefix="xut"))
    other_pools = MooncakeStorage([MAMBA], settings(server))
    assert engine.put("full", keys(1), filled(1)) == other_prefix.put("full", keys(1), filled(1)) == [Outcome.DONE]
    small = memoryview(bytearray(1088))
    assert other_pools.put("mamba", keys(1), [small]) == [Outcome.DONE]
    engine.exists("full", keys(1))  # which takes a lease
    alone = MooncakeStorage([FULL], settings(server))
    alone.clear()
    assert not engine.exists("full", keys(1)).any()
    assert other_prefix.exists("full", keys(1)).all()
    assert other_pools.exists("mamba", keys(1)).all(), "a pool that this engine was not made for"
    for made in (other_prefix, other_pools, alone):
        made.close()


@pytest.mark.parametrize("length", [SIZE - 1, SIZE + 1, 1])
def test_a_value_that_is_none_of_ours_is_missing_and_can_be_put_again(
    server: Mooncake, engine: MooncakeStorage, length: int
) -> None:
    engine.put("full", keys(1), filled(1))
    raw = MooncakeClient(settings(server))
    name = f"ut-{FULL.format_digest[:8].hex()}-{keys(1)[0].hex()}"
    assert raw.exist([name]) == [1], "the layout of the keys is what the documentation says"
    assert raw.remove([name]) == [0]
    assert raw._store.put(name, value(9, length)) == 0
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
    assert engine.put("full", keys(1), filled(1)) == [Outcome.DONE]
    pages = empty(1)
    assert engine.get("full", keys(1), pages) == [Outcome.DONE] and pages == filled(1)
    raw.close()


def test_a_writer_killed_at_any_moment_leaves_no_wrong_page(server: Mooncake, engine: MooncakeStorage) -> None:
    seen = check_killed_writers(engine, "mooncake", {"master": server.master}, 4)
    assert Outcome.CORRUPT not in seen


def test_threads_with_random_calls_over_a_restarting_master(server: Mooncake, engine: MooncakeStorage) -> None:
    pool = memoryview(bytearray(16 * SIZE))
    engine.register([pool])

    def own(seed: int) -> list[memoryview]:
        """Three registered pages and one that is not."""
        return [*(pool[(4 * seed + i) * SIZE : (4 * seed + i + 1) * SIZE] for i in range(3)), *empty(1)]

    def restart(go_on: Callable[[int], None]) -> None:
        go_on(20)
        server.kill()
        go_on(10)
        server.start()
        go_on(40)

    check_threads([engine], restart, own=own)
    until_put(engine, 99)
