"""What each answer of Mooncake's client becomes, against a client that answers as it is told. No server."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import pytest
from waiting import PATIENCE_S

from unified_tree.controllers.storage import Outcome, StorageRegistry, StoredPool
from unified_tree.controllers.storage.mooncake import MooncakeSettings, MooncakeStorage, mooncake_storage
from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeClient
from unified_tree.terms.errors import ConfigurationError, StorageError

SIZE = 128
POOL = StoredPool(name="full", format_digest=sha256(b"full").digest(), value_bytes=SIZE)
SETTINGS = MooncakeSettings(master="127.0.0.1:1", bounce_bytes=2 * SIZE, batch_bytes=2 * SIZE, retry_pause_s=1000)
KEYS = [sha256(bytes([index])).digest() for index in range(5)]
NAMES = [f"ut-{POOL.format_digest[:8].hex()}-{key.hex()}" for key in KEYS]


class ScriptedClient(MooncakeClient):
    """Answers by name, 1 or 0 or a size where nothing else is said; remembers its calls."""

    def __init__(self) -> None:
        self.there: dict[str, int] = {}
        self.puts: dict[str, int] = {}
        self.gets: dict[str, list[int]] = {}
        self.sizes: dict[str, int] = {}
        self.removes: dict[str, int] = {}
        self.calls: list[tuple[str, Any]] = []
        self.reachable = True

    def is_reachable(self) -> bool:
        return self.reachable

    def register(self, address: int, size_bytes: int) -> None:
        self.calls.append(("register", (address > 0, size_bytes)))

    def unregister(self, address: int) -> None:
        self.calls.append(("unregister", address > 0))

    def exist(self, keys: Sequence[str]) -> list[int]:
        self.calls.append(("exist", list(keys)))
        return [self.there.get(key, 0) for key in keys]

    def put_from(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        self.calls.append(("put", list(keys)))
        assert len(keys) == len(addresses) and size_bytes == SIZE
        return [self.puts.get(key, 0) for key in keys]

    def get_into(self, keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        self.calls.append(("get", list(keys)))
        assert len(keys) == len(addresses) and size_bytes == SIZE
        return [self.gets[key].pop(0) if self.gets.get(key) else SIZE for key in keys]

    def size_bytes(self, key: str) -> int:
        return self.sizes[key]

    def remove(self, keys: Sequence[str]) -> list[int]:
        self.calls.append(("remove", list(keys)))
        return [self.removes.get(key, 0) for key in keys]

    def remove_matching(self, pattern: str) -> int:
        self.calls.append(("remove matching", pattern))
        return self.removes.get(pattern, 3)

    def close(self) -> None:
        self.calls.append(("close", None))

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.calls if name == kind]


def made() -> tuple[MooncakeStorage, ScriptedClient]:
    client = ScriptedClient()
    return MooncakeStorage([POOL], SETTINGS, client), client


def pages(count: int = 5) -> list[memoryview]:
    return [memoryview(bytearray(SIZE)) for _ in range(count)]


def test_puts_by_code() -> None:
    engine, client = made()
    client.there = {NAMES[1]: 1}
    client.puts = {NAMES[0]: 0, NAMES[2]: -200, NAMES[3]: -800, NAMES[4]: -705}
    assert engine.put("full", KEYS, pages()) == [
        Outcome.DONE,
        Outcome.PRESENT,
        Outcome.DROPPED,
        Outcome.FAILED,
        Outcome.PRESENT,
    ]
    assert client.of("put") == [[NAMES[0], NAMES[2]], [NAMES[3], NAMES[4]]], "what is there is not sent"
    assert not engine.stats().is_degraded


def test_gets_by_code() -> None:
    engine, client = made()
    client.gets = {NAMES[1]: [-704], NAMES[2]: [-703], NAMES[3]: [-800], NAMES[4]: [-12345]}
    assert engine.get("full", KEYS, pages()) == [
        Outcome.DONE,
        Outcome.MISSING,
        Outcome.MISSING,
        Outcome.FAILED,
        Outcome.FAILED,
    ]
    assert not client.of("remove")


def test_a_lease_that_ran_out_is_one_more_read_of_that_page_alone() -> None:
    engine, client = made()
    client.gets = {NAMES[0]: [-707], NAMES[1]: [-707, -707]}
    assert engine.get("full", KEYS[:3], pages(3)) == [Outcome.DONE, Outcome.FAILED, Outcome.DONE]
    assert client.of("get") == [NAMES[:2], NAMES[:1], NAMES[1:2], NAMES[2:3]]


def test_a_value_of_another_length_is_removed_and_missing() -> None:
    engine, client = made()
    client.gets = {NAMES[0]: [SIZE - 1], NAMES[1]: [-600], NAMES[2]: [-600], NAMES[3]: [-600], NAMES[4]: [0]}
    client.sizes = {NAMES[1]: SIZE + 1, NAMES[2]: SIZE, NAMES[3]: -704}
    assert engine.get("full", KEYS, pages()) == [
        Outcome.MISSING,
        Outcome.MISSING,
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.MISSING,
    ]
    assert client.of("remove") == [[NAMES[0]], [NAMES[1]], [NAMES[4]]]


@pytest.mark.parametrize("code", [-900, -901])
def test_when_the_master_is_lost_nothing_more_is_tried(code: int) -> None:
    engine, client = made()
    client.gets = {NAMES[1]: [code]}
    assert engine.get("full", KEYS, pages()) == [Outcome.DONE] + [Outcome.FAILED] * 4
    assert client.of("get") == [NAMES[:2]], "of three batches the first"
    assert engine.stats().is_degraded
    client.calls.clear()
    assert engine.get("full", KEYS, pages()) == [Outcome.MISSING] * 5
    assert engine.put("full", KEYS, pages()) == [Outcome.DROPPED] * 5
    assert not engine.exists("full", KEYS).any()
    for call in (engine.clear, lambda: engine.remove("full", KEYS)):
        with pytest.raises(StorageError, match="is away"):
            call()
    assert not client.calls


def test_who_waited_for_the_bounce_buffer_while_the_master_was_lost_does_not_try() -> None:
    engine, client = made()
    inside, go_on = threading.Event(), threading.Event()

    def lose(keys: Sequence[str], addresses: Sequence[int], size_bytes: int) -> list[int]:
        client.calls.append(("get", list(keys)))
        inside.set()
        assert len(addresses) == 1 and size_bytes == SIZE and go_on.wait(PATIENCE_S)
        return [-900] * len(keys)

    client.get_into = lose  # type: ignore[method-assign]
    outcomes: list[Outcome] = []

    def ask(key: bytes) -> None:
        outcomes.extend(engine.get("full", [key], pages(1)))

    threads = [threading.Thread(target=ask, args=(key,)) for key in KEYS]
    for thread in threads:
        thread.start()
    assert inside.wait(PATIENCE_S)
    deadline = time.monotonic() + 60
    while engine._gate._calls < len(KEYS):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 5 and set(outcomes) <= {Outcome.FAILED, Outcome.MISSING}
    assert len(client.of("get")) == 1


@pytest.mark.parametrize("code", [-900, -901])
def test_a_query_or_a_put_that_loses_the_master_says_so(code: int) -> None:
    engine, client = made()
    client.there = {NAMES[0]: code, NAMES[1]: code}
    with pytest.raises(StorageError, match=f"127.0.0.1:1 does not answer, error {code}"):
        engine.exists("full", KEYS[:2])
    engine, client = made()
    client.there = {NAMES[0]: code, NAMES[1]: code}
    assert engine.put("full", KEYS[:2], pages(2)) == [Outcome.FAILED] * 2
    assert not client.of("put") and engine.stats().is_degraded


def test_a_client_that_lost_its_connection_is_not_called() -> None:
    engine, client = made()
    client.calls.clear()
    client.reachable = False
    assert engine.get("full", KEYS, pages()) == [Outcome.MISSING] * 5
    assert engine.stats().is_degraded and not client.calls


def test_a_query_that_fails_for_one_key_does_not_find_it() -> None:
    engine, client = made()
    client.there = {NAMES[0]: 1, NAMES[1]: -1, NAMES[2]: -1000}
    assert engine.exists("full", KEYS).tolist() == [True, False, False, False, False]


def test_removals_that_fail_are_errors_but_for_what_is_not_there_or_being_put() -> None:
    engine, client = made()
    client.removes = {NAMES[0]: -704, NAMES[1]: -703}
    engine.remove("full", KEYS[:2])
    client.removes = {NAMES[0]: -704, NAMES[1]: -800}
    with pytest.raises(StorageError, match=r"were not removed, errors \[-800\]"):
        engine.remove("full", KEYS[:2])
    pattern = f"^ut-{POOL.format_digest[:8].hex()}-"
    engine.clear()
    client.removes = {pattern: -800}
    with pytest.raises(StorageError, match="error -800"):
        engine.clear()
    assert client.of("remove matching") == [pattern, pattern]


def test_closing_forgets_memory_before_the_client() -> None:
    engine, client = made()
    engine.register([memoryview(bytearray(1000))])
    engine.close()
    engine.close()
    assert [name for name, _ in client.calls] == ["register", "register", "unregister", "unregister", "close"]


def test_a_client_that_refuses_the_bounce_buffer_is_closed() -> None:
    client = ScriptedClient()

    def refuse(address: int, size_bytes: int) -> None:
        raise StorageError(f"{size_bytes} at {address} refused")

    client.register = refuse  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="refused"):
        MooncakeStorage([POOL], SETTINGS, client)
    assert client.of("close") == [None]


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'unified-tree\[mooncake\]'"):
        StorageRegistry().open("mooncake", [POOL], master="127.0.0.1:1")


def test_time_limits_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    for name in SETTINGS.client_environment:
        monkeypatch.setenv(name, "7")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "123")
    with pytest.raises(ConfigurationError):
        MooncakeClient(SETTINGS)
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "123"
    assert os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] == "10", "the rest is set, and always before the client is imported"


def test_a_failed_setup_is_an_error_and_the_client_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Store:
        def setup(self, *_: object) -> int:
            calls.append("setup")
            return -1

        def __getattr__(self, name: str) -> Callable[..., None]:
            raise AssertionError(f"{name} after a failed setup would kill the process")

    monkeypatch.setattr(mooncake_storage, "_store_type", lambda: Store)
    monkeypatch.setattr(mooncake_storage, "check_listens", lambda *_: None)
    for name in SETTINGS.client_environment:
        monkeypatch.setenv(name, "7")
    with pytest.raises(StorageError, match="does not take this client, error -1"):
        MooncakeStorage([POOL], SETTINGS)
    assert calls == ["setup"]
