"""SiMM, of which there is only a double: each answer of its client, and what becomes of a store that is not well."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numbered_pages import FULL, MAMBA, SIZE, empty, filled, keys, value
from simm_double import Aborted, SimmModule, SimmServer, State

from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.storage import Outcome, StorageRegistry
from unified_tree.controllers.storage.simm import SimmSettings, SimmStorage
from unified_tree.controllers.storage.simm.simm_storage import SimmClient, near_devices
from unified_tree.terms.errors import ConfigurationError, StorageError


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICL_NET_DEVICES", "none")


@pytest.fixture
def server() -> Iterator[SimmServer]:
    with SimmServer() as running:
        yield running


@pytest.fixture
def module(server: SimmServer) -> SimmModule:
    return SimmModule(server)


def made(server: SimmServer, module: SimmModule, **other: Any) -> SimmStorage:
    given: dict[str, Any] = {"request_timeout_ms": 50, "retry_pause_s": 1000, "bounce_bytes": 2 * SIZE, "batch_bytes": 2 * SIZE}
    settings = SimmSettings(manager_address=server.address, **(given | other))
    return SimmStorage([FULL, MAMBA], settings, SimmClient(settings, module))


@pytest.fixture
def engine(server: SimmServer, module: SimmModule) -> Iterator[SimmStorage]:
    engine = made(server, module)
    yield engine
    engine.close()
    assert not module.regions, "memory that is still registered"


def name(number: int) -> str:
    return f"ut-{FULL.format_digest[:8].hex()}-{keys(number)[0].hex()}"


def test_pages_in_registered_memory_are_not_copied(engine: SimmStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    from unified_tree.controllers.storage import registered_storage

    def copied(*_: object) -> None:
        raise AssertionError("a page was copied")

    monkeypatch.setattr(registered_storage, "copy_pages", copied)
    memory = memoryview(bytearray(2 * SIZE))
    engine.register([memory])
    assert engine.put("full", keys(1), [memory[:SIZE]]) == engine.get("full", keys(1), [memory[SIZE:]]) == [Outcome.DONE]
    assert engine.capabilities.zero_copy
    assert engine.capabilities.layouts == {HostLayout.PAGE_FIRST, HostLayout.PAGE_FIRST_DIRECT}


def test_what_is_there_is_not_sent_again(engine: SimmStorage, server: SimmServer) -> None:
    engine.put("full", keys(1), filled(1))
    server.calls.clear()
    assert engine.put("full", keys(1, 2), filled(5, 2)) == [Outcome.PRESENT, Outcome.DONE]
    assert server.calls == [("mexists", 2), ("mput", 1)]
    assert server.values[name(1)] == value(1), "SiMM would replace it"


def test_a_miss_is_told_from_a_failed_read(engine: SimmStorage, server: SimmServer) -> None:
    engine.put("full", keys(1, 2), filled(1, 2))
    server.values[name(2)] = bytes(2 * SIZE)  # for which the page is too short
    assert engine.get("full", keys(1, 2, 3), empty(3)) == [Outcome.DONE, Outcome.FAILED, Outcome.MISSING]
    server.says_yes = True
    assert engine.get("full", keys(3), empty(1)) == [Outcome.FAILED]


def test_what_was_evicted_after_the_question_is_missing(
    engine: SimmStorage, server: SimmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put("full", keys(1), filled(1))
    answers = [[True], [False]]
    monkeypatch.setattr(engine._client, "exist", lambda _: answers.pop(0))
    server.values.clear()
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]


def test_a_value_of_another_length_is_removed_and_missing(engine: SimmStorage, server: SimmServer) -> None:
    server.values[name(1)] = bytes(SIZE - 1)
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
    assert not server.values
    assert engine.put("full", keys(1), filled(1)) == [Outcome.DONE]


@pytest.mark.parametrize("state", [State.KILLED, State.FROZEN])
def test_a_store_that_is_lost_is_not_waited_for_twice(
    server: SimmServer, engine: SimmStorage, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    engine.put("full", keys(1, 2, 3, 4, 5), filled(1, 2, 3, 4, 5))
    server.state = state
    monkeypatch.setattr(engine._client, "exist", lambda names: [True] * len(names))  # it was there a moment ago
    assert engine.get("full", keys(1, 2, 3, 4, 5), empty(5)) == [Outcome.FAILED] * 5
    assert [call for call in server.calls if call[0] == "mget"] == [("mget", 2)], "of three batches the first"
    assert engine.stats().is_degraded
    server.calls.clear()
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
    assert engine.put("full", keys(6), filled(6)) == [Outcome.DROPPED]
    assert not engine.exists("full", keys(1)).any()
    for call in (engine.clear, lambda: engine.remove("full", keys(1))):
        with pytest.raises(StorageError, match="is away"):
            call()
    assert not server.calls


def test_a_put_finds_out_that_the_store_is_lost(server: SimmServer, engine: SimmStorage) -> None:
    server.kill()
    assert not engine.exists("full", keys(1)).any()
    assert not engine.stats().is_degraded, "the client says no, not that nobody was asked"
    assert engine.put("full", keys(1, 2, 3), filled(1, 2, 3)) == [Outcome.FAILED] * 3
    assert engine.stats().is_degraded


def test_a_restarted_store_is_used_again(server: SimmServer, module: SimmModule) -> None:
    engine = made(server, module, retry_pause_s=1e-6)
    engine.put("full", keys(1), filled(1))
    server.kill()
    assert engine.put("full", keys(2), filled(2)) == [Outcome.FAILED]
    with pytest.raises(StorageError, match="was not removed, error -2301"):
        engine.remove("full", keys(1))
    server.restart()
    assert engine.put("full", keys(3), filled(3)) == [Outcome.DONE]
    assert not engine.stats().is_degraded
    assert engine.exists("full", keys(1, 3)).tolist() == [False, True]
    engine.close()


def test_a_query_says_that_a_store_is_back(server: SimmServer, module: SimmModule) -> None:
    """Though what it asks for is not there: no is what a store that is away says, too, but its read is answered."""
    engine = made(server, module, retry_pause_s=1e-6)
    engine.put("full", keys(1), filled(1))
    for found in (1, 9):
        server.state = State.KILLED
        assert engine.put("full", keys(2), filled(2)) == [Outcome.FAILED]
        for state in (State.KILLED, State.FROZEN):
            server.state = state
            assert not engine.exists("full", keys(1)).any()
            assert engine.stats().is_degraded
        server.restart()
        assert engine.exists("full", keys(found)).all() == (found == 1)
        assert not engine.stats().is_degraded
    engine.close()


def test_puts_that_fail(server: SimmServer, engine: SimmStorage) -> None:
    for code in (-2100, -1000):
        server.put_code = code
        assert engine.put("full", keys(1), filled(1)) == [Outcome.FAILED]
        assert not engine.stats().is_degraded


def test_a_full_store_forgets_the_oldest(module: SimmModule, server: SimmServer) -> None:
    server.capacity_bytes = 3 * SIZE
    engine = made(server, module)
    assert engine.put("full", keys(*range(10)), filled(*range(10))) == [Outcome.DONE] * 10
    assert engine.exists("full", keys(*range(10))).tolist() == [False] * 7 + [True] * 3
    engine.clear()
    assert not server.values, "also where most of it was gone before"
    engine.close()


def test_clearing_leaves_the_values_of_others(server: SimmServer, module: SimmModule) -> None:
    ours, others = made(server, module), made(server, module, key_prefix="others")
    for engine in (ours, others):
        engine.put("full", keys(1), filled(1))
    ours.clear()
    assert others.exists("full", keys(1)).all() and not ours.exists("full", keys(1)).any()
    ours.close()
    others.close()


def test_clearing_does_not_ask_for_what_was_removed(server: SimmServer, engine: SimmStorage) -> None:
    engine.put("full", keys(1, 2), filled(1, 2))
    engine.remove("full", keys(1))
    server.calls.clear()
    engine.clear()
    engine.clear()
    assert server.calls == [("delete", 1)]


def test_without_a_manager_the_client_is_not_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    settings = SimmSettings(manager_address=address)
    with pytest.raises(StorageError, match=rf"no manager at {address} .*check manager_address, that cluster_manager runs"):
        SimmClient(settings, SimmModule(None))
    with pytest.raises(Aborted):
        SimmModule(None).Store()


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, server: SimmServer) -> None:
    monkeypatch.setitem(sys.modules, "simm", None)
    with pytest.raises(ConfigurationError, match=r"github.com/scitix/SiMM .* brings another package"):
        StorageRegistry().open("simm", [FULL], manager_address=server.address)


def test_the_client_is_told_by_flags_and_the_environment(
    server: SimmServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = SimmModule(server)
    package, kv = ModuleType("simm"), module
    monkeypatch.setitem(sys.modules, "simm", package)
    monkeypatch.setitem(sys.modules, "simm.kv", kv)
    monkeypatch.delenv("SICL_NET_DEVICES")
    file = tmp_path / "storage.json"
    file.write_text('{"simm": {"manager_address": "nowhere:1", "devices": "mlx5_0,mlx5_1", "log_file": "client.log"}}')
    engine = StorageRegistry().open("simm", [FULL], manager_address=server.address, config_file=file)
    assert os.environ["SICL_NET_DEVICES"] == "mlx5_0,mlx5_1"
    host, port = server.address.split(":")
    assert module.flags == {
        "cm_primary_node_ip": host,
        "cm_primary_node_port": port,
        "clnt_thread_pool_size": "10",
        "clnt_sync_req_timeout_ms": "1000",
        "clnt_log_file": "client.log",
    }
    engine.close()
    monkeypatch.setenv("SICL_NET_DEVICES", "an operator's")
    SimmClient(SimmSettings(manager_address=server.address, devices="mlx5_0"), module)
    assert os.environ["SICL_NET_DEVICES"] == "an operator's"


def test_flags_that_a_client_does_not_know(server: SimmServer) -> None:
    with pytest.raises(ConfigurationError, match="no flag cm_primary_node_port"):
        SimmClient(SimmSettings(manager_address=server.address), SimmModule(server, ["cm_primary_node_port"]))
    unknown = ["clnt_sync_req_timeout_ms", "clnt_thread_pool_size"]
    SimmClient(SimmSettings(manager_address=server.address), SimmModule(server, unknown))
    with pytest.raises(ConfigurationError, match="no flag clnt_sync_req_timeout_ms"):
        SimmClient(SimmSettings(manager_address=server.address, request_timeout_ms=1), SimmModule(server, unknown))


def test_memory_that_is_refused(server: SimmServer, module: SimmModule) -> None:
    module.refuses_memory = True
    with pytest.raises(StorageError, match=r"cannot be registered: check `ulimit -l` and the RDMA devices"):
        made(server, module)


def test_values_too_large_are_refused_at_once(server: SimmServer, module: SimmModule) -> None:
    settings = SimmSettings(manager_address=server.address, largest_value_bytes=SIZE - 1)
    with pytest.raises(ConfigurationError, match=f"full: its values are {SIZE} bytes, the engine's largest {SIZE - 1}"):
        SimmStorage([FULL, MAMBA], settings, SimmClient(settings, module))


def machine(sysfs: Path, nodes: dict[str, str], devices: dict[str, int]) -> Path:
    for node, processors in nodes.items():
        (sysfs / "devices/system/node" / node).mkdir(parents=True)
        (sysfs / "devices/system/node" / node / "cpulist").write_text(f"{processors}\n")
    for device, node_number in devices.items():
        (sysfs / "class/infiniband" / device / "device").mkdir(parents=True)
        (sysfs / "class/infiniband" / device / "device/numa_node").write_text(f"{node_number}\n")
    return sysfs


def test_devices_beside_the_processors(tmp_path: Path) -> None:
    sysfs = machine(
        tmp_path, {"node0": "0-3,8", "node1": "4-7", "node2": ""}, {"mlx5_1": 0, "mlx5_0": 0, "mlx5_2": 1, "mlx5_9": 2}
    )
    assert near_devices(sysfs, frozenset({8})) == ("mlx5_0", "mlx5_1")
    assert near_devices(sysfs, frozenset({4})) == ("mlx5_2",)
    assert near_devices(sysfs, frozenset({3, 4})) == ("mlx5_0", "mlx5_1", "mlx5_2")
    assert near_devices(sysfs, frozenset({99})) == ()


def test_devices_without_numa_and_no_devices(tmp_path: Path) -> None:
    assert near_devices(machine(tmp_path / "flat", {"node0": "0-1"}, {"mlx5_0": -1}), frozenset({0})) == ("mlx5_0",)
    assert near_devices(tmp_path / "none", frozenset({0})) == ()
