"""Redis, the real one: alone and as a cluster, healthy and not."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis_server
import retry_clock
from numbered_pages import (
    FULL,
    MAMBA,
    SIZE,
    check_killed_writers,
    check_threads,
    empty,
    filled,
    keys,
    put,
    until_put,
    value,
)
from ports import free_port
from redis.crc import key_slot as slot_of
from redis_server import BRIEF_S, PATIENT, Cluster, Redis, brief_answers
from waiting import wait_until

from unified_tree.controllers.storage import Outcome, StorageEngine, StoredPool
from unified_tree.controllers.storage.redis import RedisSettings, RedisStorage
from unified_tree.terms.errors import ConfigurationError, StorageError

redis_server.skip_unless_it_runs()


@pytest.fixture
def stopped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two calls of a test no pause before a retry is over."""
    retry_clock.stop(monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as running:
        yield running


def opened(address: str, **other: Any) -> RedisStorage:
    return RedisStorage([FULL, MAMBA], RedisSettings(address=address, **(PATIENT | {"retry_pause_s": 0.2} | other)))


@pytest.fixture
def engine(server: Redis) -> Iterator[RedisStorage]:
    made = opened(server.address)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        yield running


def name(number: int, pool: StoredPool = FULL) -> bytes:
    return f"ut:{pool.format_digest[:8].hex()}:{keys(number)[0].hex()}".encode()


def check_round_trip(engine: StorageEngine) -> None:
    assert put(engine, 1, 2, 3) == [Outcome.DONE] * 3
    pages = empty(3)
    assert engine.get("full", keys(3, 9, 1), pages) == [Outcome.DONE, Outcome.MISSING, Outcome.DONE]
    assert [pages[0], pages[2]] == filled(3, 1)


def test_a_password_a_user_and_a_database(tmp_path: Path) -> None:
    rules = ("--requirepass", "open sesame", "--user", "cache", "on", ">of cache", "~ut:*", "+@all")
    settings = RedisSettings(address="unix:unused", password="open sesame")
    with Redis(tmp_path, *rules, settings=settings) as server:
        for given in ({"password": "open sesame", "database": 3}, {"username": "cache", "password": "of cache", "database": 4}):
            engine = opened(server.address, **given)
            check_round_trip(engine)
            engine.close()
        with pytest.raises(StorageError, match="Authentication required"):
            opened(server.address)
        with pytest.raises(StorageError, match="invalid username-password pair") as caught:
            opened(server.address, password="guessed")
        assert "guessed" not in str(caught.value)
        assert "sesame" not in repr(settings)
        with pytest.raises(StorageError, match="DB index is out of range"):
            opened(server.address, password="open sesame", database=99)


def certificate(folder: Path, host: str) -> tuple[Path, Path]:
    cert, key = folder / f"{host}.crt", folder / f"{host}.key"
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    kind = "IP" if host[0].isdigit() else "DNS"
    request = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={host} -addext subjectAltName={kind}:{host}"
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *request.split(), *files], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("host", ["127.0.0.1", "elsewhere.example"])
def test_encrypted_and_verified(tmp_path: Path, host: str) -> None:
    cert, key = certificate(tmp_path, host)
    port = free_port()
    files = ["--tls-port", str(port), "--port", "0", "--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    address = f"127.0.0.1:{port}"
    how: dict[str, Any] = {"tls": True, "tls_ca_file": str(cert), "tls_cert_file": str(cert), "tls_key_file": str(key)}
    start = RedisSettings(address=address, tls_check_hostname=False, **how)
    with Redis(tmp_path / "server", *files, "--tls-ca-cert-file", str(cert), settings=start, address=address):
        if host == "127.0.0.1":
            engine = opened(address, **how)
            assert not engine.capabilities.zero_copy
            check_round_trip(engine)
            engine.close()
        else:
            with pytest.raises(StorageError, match="certificate verify failed"):
                opened(address, **how)
        with pytest.raises(StorageError, match="certificate verify failed"):
            opened(address, **(how | {"tls_ca_file": ""}))
        with pytest.raises(StorageError, match="no server lets us in"):
            opened(address)
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        opened(address, **(how | {"tls_ca_file": str(tmp_path / "nowhere.crt")}))


def test_a_batch_larger_than_a_pipeline(server: Redis) -> None:
    engine = opened(server.address, batch_bytes=3 * SIZE)
    numbers = range(20)
    assert put(engine, *numbers) == [Outcome.DONE] * 20
    pages = empty(20)
    assert engine.get("full", keys(*numbers), pages) == [Outcome.DONE] * 20
    assert pages == filled(*numbers)
    many = [*keys(*range(5000))]
    assert engine.exists("full", many).sum() == 20
    engine.close()


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_pages_larger_than_what_a_socket_takes_at_once(tmp_path: Path, over: str) -> None:
    huge = StoredPool(name="huge", format_digest=sha256(b"huge").digest(), value_bytes=24 << 20)
    with Redis(tmp_path, over=over) as server:
        engine = RedisStorage([huge], RedisSettings(address=server.address, **PATIENT))
        page = memoryview(bytearray(value(1, huge.value_bytes)))
        server.pause()  # so that nothing is taken until the sockets are full
        resumed = threading.Timer(0.3, server.resume)
        resumed.start()
        assert engine.put("huge", keys(1, 2), [page, page]) == [Outcome.DONE] * 2
        got = [memoryview(bytearray(huge.value_bytes)) for _ in range(2)]
        assert engine.get("huge", keys(1, 2), got) == [Outcome.DONE] * 2 and got == [page, page]
        resumed.join()
        engine.close()


def test_pages_of_other_items_and_read_only_pages(engine: RedisStorage) -> None:
    page = memoryview(bytearray(value(1))).cast("q", (SIZE // 8,))
    assert engine.put("full", keys(1), [page.toreadonly()]) == [Outcome.DONE]
    got = memoryview(bytearray(SIZE)).cast("q", (SIZE // 8,))
    assert engine.get("full", keys(1), [got]) == [Outcome.DONE]
    assert got == page


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    port = free_port()
    for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/nowhere"):
        with pytest.raises(StorageError, match="no server lets us in"):
            opened(address)


def test_a_server_that_accepts_and_says_nothing(server: Redis) -> None:
    server.pause()
    try:
        with pytest.raises(StorageError, match="no server lets us in"):
            opened(server.address, connect_timeout_s=BRIEF_S)
    finally:
        server.resume()


@pytest.mark.usefixtures("stopped_time")
def test_a_killed_server_is_a_store_where_nothing_is_until_it_is_back(server: Redis) -> None:
    engine = opened(server.address, retry_pause_s=2.0)
    put(engine, 1)
    server.stop()
    assert engine.get("full", keys(1), empty(1)) == [Outcome.FAILED]
    assert engine.stats().is_degraded
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING]
    assert put(engine, 1) == [Outcome.DROPPED]
    assert not engine.exists("full", keys(1)).any()
    with pytest.raises(StorageError, match="AWAY"):
        engine.remove("full", keys(1))
    with pytest.raises(StorageError, match=r"not everything was removed.*away"):
        engine.clear()
    server.start()
    until_put(engine, 2)
    assert not engine.stats().is_degraded
    assert engine.exists("full", keys(1, 2)).tolist() == [False, True]
    engine.close()


@pytest.mark.usefixtures("stopped_time")
def test_a_query_that_finds_the_server_gone_says_so(server: Redis) -> None:
    engine = opened(server.address, retry_pause_s=2.0)
    server.stop()
    with pytest.raises(StorageError, match=f"no server answers at {server.address}"):
        engine.exists("full", keys(1))
    assert not engine.exists("full", keys(1)).any()
    engine.close()


def test_a_restart_between_two_calls_is_not_noticed(server: Redis, engine: RedisStorage) -> None:
    put(engine, 1)
    server.stop()
    server.start()
    assert put(engine, 1) == [Outcome.DONE], "the old connection is seen to have ended before it is used"


@pytest.mark.usefixtures("stopped_time")
def test_a_frozen_server_is_waited_for_once(server: Redis) -> None:
    engine = opened(server.address)
    put(engine, 1)
    page = empty(1)
    server.pause()
    try:
        with brief_answers(engine):
            assert engine.get("full", keys(1), page) == [Outcome.FAILED]
        assert engine.get("full", keys(1), page) == [Outcome.MISSING]
        assert engine.stats().is_degraded
    finally:
        server.resume()
    until_put(engine, 2)
    assert page == empty(1), "what the server says later is said to nobody"
    assert engine.get("full", keys(1), page) == [Outcome.DONE] and page == filled(1)
    engine.close()


def test_a_server_that_evicts_takes_everything_and_forgets(server: Redis, engine: RedisStorage) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.ask("CONFIG", "SET", "maxmemory", "4mb")
    assert {put(engine, number)[0] for number in range(100)} == {Outcome.DONE}
    pages = empty(100)
    outcomes = engine.get("full", keys(*range(100)), pages)
    assert set(outcomes) == {Outcome.DONE, Outcome.MISSING}
    assert all(page == value(n) for n, page in enumerate(pages) if outcomes[n] is Outcome.DONE)


def test_pages_live_as_long_as_the_settings_say(server: Redis, engine: RedisStorage) -> None:
    limited = opened(server.address, ttl_s=1000)
    put(limited, 1)
    put(engine, 2)
    left = server.ask("TTL", name(1))
    assert isinstance(left, int) and 100 <= left <= 1000
    assert server.ask("TTL", name(2)) == -1
    limited.close()


@pytest.mark.parametrize("length", [0, 1, SIZE - 1, SIZE + 1, 3 << 20])
def test_a_value_that_is_none_of_ours_is_missing_and_can_be_put_again(server: Redis, engine: RedisStorage, length: int) -> None:
    put(engine, 1, 2)
    server.ask("SET", name(1), value(9, length))
    pages = empty(2)
    assert engine.get("full", keys(1, 2), pages) == [Outcome.MISSING, Outcome.DONE] and pages[1] == value(2)
    assert put(engine, 1) == [Outcome.DONE]
    assert engine.get("full", keys(1), pages[:1]) == [Outcome.DONE] and pages[0] == value(1)


def test_a_key_that_holds_a_list_is_missing_and_can_be_put_again(server: Redis, engine: RedisStorage) -> None:
    server.ask("LPUSH", name(1), "x")
    assert engine.get("full", keys(1, 2), empty(2)) == [Outcome.MISSING] * 2
    assert put(engine, 1) == [Outcome.DONE]


def test_clearing_takes_our_pools_and_nobody_elses(server: Redis, engine: RedisStorage) -> None:
    other_prefix = opened(server.address, key_prefix="xut")
    alone = RedisStorage([FULL], RedisSettings(address=server.address, **PATIENT))
    put(engine, *range(30))
    put(other_prefix, 1)
    assert engine.put("mamba", keys(1), [memoryview(bytearray(1088))]) == [Outcome.DONE]
    server.ask("SET", "ut", "somebody else's")
    alone.clear()
    assert not engine.exists("full", keys(*range(30))).any()
    assert other_prefix.exists("full", keys(1)).all()
    assert engine.exists("mamba", keys(1)).all()
    assert server.ask("GET", "ut") == b"somebody else's"
    for made in (other_prefix, alone):
        made.close()


def test_a_server_that_refuses_everything_is_quoted(server: Redis) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">p", "~ut:*", "+@all", "-set")
    engine = opened(server.address, username="reader", password="p")
    with pytest.raises(StorageError, match=r"refuses: .*permission"):
        put(engine, 1)
    assert engine.get("full", keys(1), empty(1)) == [Outcome.MISSING], "what it may do it does"
    assert not engine.stats().is_degraded
    engine.close()


def test_a_cluster_must_be_called_one_and_nothing_else(server: Redis, cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="belongs to a cluster; set cluster"):
        opened(cluster.servers[0].address)
    with pytest.raises(ConfigurationError, match="is no cluster; do not set cluster"):
        opened(server.address, cluster=True)


def test_a_cluster_serves_from_all_its_masters_and_finds_them_by_one(cluster: Cluster) -> None:
    engine = opened(cluster.servers[1].address, cluster=True)
    numbers = range(60)
    assert put(engine, *numbers) == [Outcome.DONE] * 60
    assert all(server.ask("DBSIZE") for server in cluster.servers)
    pages = empty(60)
    assert engine.get("full", keys(*numbers), pages) == [Outcome.DONE] * 60 and pages == filled(*numbers)
    engine.remove("full", keys(*range(30)))
    assert engine.exists("full", keys(*numbers)).sum() == 30
    engine.clear()
    assert [server.ask("DBSIZE") for server in cluster.servers] == [0, 0, 0]
    engine.close()


@pytest.mark.usefixtures("stopped_time")
def test_one_killed_master_takes_its_own_pages_along(cluster: Cluster) -> None:
    engine = opened(cluster.address, cluster=True, retry_pause_s=2.0)
    numbers = range(60)
    put(engine, *numbers)
    third = [number for number in numbers if slot_of(name(number)) * 3 // redis_server.SLOTS == 2]
    others = [number for number in numbers if number not in third]
    cluster.servers[2].stop()
    for outcome_of_third in (Outcome.FAILED, Outcome.MISSING):
        pages = empty(60)
        outcomes = engine.get("full", keys(*numbers), pages)
        assert {outcomes[number] for number in third} == {outcome_of_third}
        assert {outcomes[number] for number in others} == {Outcome.DONE}
        assert all(pages[number] == value(number) for number in others)
    assert engine.exists("full", keys(*numbers)).sum() == len(others)
    assert not engine.stats().is_degraded, "the rest serves"
    with pytest.raises(StorageError, match=cluster.servers[2].address):
        engine.clear()
    cluster.servers[2].start()
    until_put(engine, *numbers)
    engine.close()


def test_what_a_replica_took_over_is_found(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, with_replica=True) as cluster:
        engine = opened(cluster.address, cluster=True)
        numbers = range(30)
        assert put(engine, *numbers) == [Outcome.DONE] * 30
        cluster.let_the_replica_catch_up()
        cluster.take_the_silent_for_dead()
        cluster.servers[-1].stop()
        wait_until(lambda: bool(engine.exists("full", keys(*numbers)).all()), "the replica's pages are not found")
        pages = empty(30)
        assert engine.get("full", keys(*numbers), pages) == [Outcome.DONE] * 30 and pages == filled(*numbers)
        engine.close()


def test_a_slot_that_moved_is_followed(cluster: Cluster) -> None:
    engine = opened(cluster.address, cluster=True, retry_pause_s=1e-6)  # a table is read at most once a pause
    put(engine, 1)
    number = next(n for n in range(2, 100) if slot_of(name(n)) * 3 // redis_server.SLOTS == 0)
    cluster.move_slots([slot_of(name(number))], 0, 2)
    assert put(engine, number) == [Outcome.DONE]
    assert cluster.servers[2].ask("EXISTS", name(number)) == 1
    pages = empty(1)
    assert engine.get("full", keys(number), pages) == [Outcome.DONE] and pages == filled(number)
    engine.close()


def test_a_cluster_that_wants_all_its_slots_is_away_without_one_of_them(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, "--cluster-require-full-coverage", "yes") as cluster:
        engine = opened(cluster.address, cluster=True)
        put(engine, *range(20))
        cluster.take_the_silent_for_dead()
        cluster.servers[2].stop()
        wait_until(lambda: Outcome.DONE not in engine.get("full", keys(*range(20)), empty(20)), "the others go on alone")
        cluster.servers[2].start()
        until_put(engine, *range(20))
        engine.close()


def test_a_writer_killed_at_any_moment_leaves_no_wrong_page(server: Redis, engine: RedisStorage) -> None:
    seen = check_killed_writers(engine, "redis", {"address": server.address, **PATIENT}, 5)
    assert seen <= {Outcome.DONE, Outcome.MISSING}


def test_threads_with_random_calls_over_a_restarting_server(server: Redis, engine: RedisStorage) -> None:
    def restart(go_on: Callable[[int], None]) -> None:
        for _ in range(3):
            go_on(20)
            server.stop()
            go_on(10)
            server.start()
        go_on(40)

    check_threads([engine], restart)
    until_put(engine, 99)
