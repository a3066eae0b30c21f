"""Real Redis servers, alone and as a cluster, each a process of its own on loopback or a unix socket."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from frozen import freeze, thaw
from ports import free_port
from redis.exceptions import RedisError
from waiting import PATIENCE_S, wait_until

from unified_tree.controllers.storage.redis import RedisStorage
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.redis.redis_topology import RedisNode, Reply, connections_to, tls_context

SLOTS = 16384
BRIEF_S = 0.2
"""How long a server is waited for that stands still."""
PATIENT: dict[str, Any] = {"connect_timeout_s": PATIENCE_S, "request_timeout_s": PATIENCE_S}
"""Settings of engines that wait for whatever answers at all."""


def program() -> str | None:
    """The server's binary; Valkey's will do."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def skip_unless_it_runs() -> None:
    """Skip the test that asks, or the module."""
    if program() is None:
        pytest.skip("no Redis: there is no redis-server; on Debian apt-get install redis-server", allow_module_level=True)


BUS = 10_000
"""The bus of a node of a cluster is so far above its port."""


def wait_for(engine: RedisStorage, seconds: float) -> None:
    """Have an engine wait so long for each answer, from now on."""
    topology = engine._topology
    engine._pipeline._timeout_s = seconds
    topology._settings = replace(topology._settings, connect_timeout_s=seconds)
    for node in (*topology._seeds.values(), *topology._nodes.values()):
        node._connections.connection_kwargs["socket_connect_timeout"] = seconds


@contextmanager
def brief_answers(engine: RedisStorage) -> Iterator[None]:
    """Meanwhile the engine waits only briefly for its servers, which stand still or never end what they say."""
    wait_for(engine, BRIEF_S)
    yield
    wait_for(engine, PATIENCE_S)


class Redis:
    """A server that writes nothing to disk but its cluster's table; a context manager that ends it by its process id.

    Args:
        folder: its own, for its socket and files.
        options: further words of its command line.
        over: "tcp" or "unix".
        settings: how `ask` gets in, if a password or TLS is needed.
        address: where it listens, if the options say so.
    """

    def __init__(
        self, folder: Path, *options: str, over: str = "tcp", settings: RedisSettings | None = None, address: str | None = None
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "s"
        self._is_unix = over == "unix"
        self.port = 0 if self._is_unix else free_port(BUS)
        self._options = options
        self.address = f"unix:{self._socket}" if self._is_unix else f"127.0.0.1:{self.port}"
        self.address = address or self.address
        self.settings = replace(settings or RedisSettings(address=self.address), **PATIENT)
        self.start()

    def start(self) -> None:
        """Start the server, at the same address every time."""
        found = program()
        assert found is not None
        where = ["--unixsocket", str(self._socket)] if self._is_unix else ["--bind", "127.0.0.1"]
        ports = [] if "--tls-port" in self._options else ["--port", str(self.port)]
        fixed = ["--save", "", "--appendonly", "no", "--dir", str(self._folder), "--enable-debug-command", "yes"]
        log = (self._folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen([found, *where, *ports, *fixed, *self._options], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise AssertionError(f"the server does not come up: {(self._folder / 'log').read_text()[-500:]}")
            time.sleep(0.01)

    def ask(self, *words: str | bytes) -> Reply:
        """What the server answers to a command."""
        node = RedisNode(self.address, self.settings, tls_context(self.settings))
        try:
            [reply] = node.ask([tuple(word.encode() if isinstance(word, str) else word for word in words)], PATIENCE_S)
            return reply
        finally:
            node.close()

    def pause(self) -> None:
        freeze(self.process)

    def resume(self) -> None:
        thaw(self.process)

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        connections = connections_to(self.address, self.settings, tls_context(self.settings))
        try:
            connections.get_connection()
        except RedisError:
            return False
        finally:
            connections.disconnect()
        return True


class Cluster:
    """Masters that share the slots; a context manager that ends them.

    Attributes:
        servers: the masters.
        replica: of the last master, if one was asked for.
    """

    def __init__(self, folder: Path, masters: int = 3, *options: str, with_replica: bool = False) -> None:
        mode = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
        mode += ["--cluster-node-timeout", str(int(1000 * PATIENCE_S))]
        mode += ["--cluster-replica-validity-factor", "0"]  # on a busy machine a replica takes over late, and not never
        mode += ["--repl-diskless-sync-delay", "0"]  # the one replica is there: it need not wait for others
        self.servers: list[Redis] = []
        self.replica: Redis | None = None
        try:
            for number in range(masters):
                self.servers.append(Redis(folder / str(number), *mode, *options))
            self._join()
            if with_replica:
                self.replica = Redis(folder / "replica", *mode, *options)
                self._follow(self.replica)
        except BaseException:
            self.stop()
            raise
        self.address = ",".join(server.address for server in self.servers)

    def _join(self) -> None:
        count = len(self.servers)
        for number, server in enumerate(self.servers):
            first, last = number * SLOTS // count, (number + 1) * SLOTS // count - 1
            _expect_ok(server.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last)))
            _expect_ok(server.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)))
        for server in self.servers[1:]:
            _expect_ok(server.ask("CLUSTER", "MEET", "127.0.0.1", str(self.servers[0].port)))
        self.come_together()

    def come_together(self) -> None:
        """Wait until every master knows all of them."""
        wait_until(lambda: all(_knows_all(server, len(self.servers)) for server in self.servers), "all masters know each other")

    def _follow(self, replica: Redis) -> None:
        _expect_ok(replica.ask("CLUSTER", "MEET", "127.0.0.1", str(self.servers[0].port)))
        owner = self.servers[-1].ask("CLUSTER", "MYID")
        assert isinstance(owner, bytes)
        wait_until(lambda: replica.ask("CLUSTER", "REPLICATE", owner) == b"OK", "the replica knows whom it should follow")
        wait_until(lambda: b"master_link_status:up" in _text(replica.ask("INFO", "replication")), "the replica follows")
        everyone = [*self.servers, replica]
        wait_until(  # or nobody elects it later
            lambda: all(_knows_replica(server, owner, len(everyone)) for server in everyone), "everyone knows the replica"
        )

    def take_the_silent_for_dead(self) -> None:
        """Lower the cluster's node time-out to a second. Before, no node counts as dead, however slow the machine."""
        for server in (*self.servers, *([] if self.replica is None else [self.replica])):
            _expect_ok(server.ask("CONFIG", "SET", "cluster-node-timeout", "1000"))

    def let_the_replica_catch_up(self) -> None:
        """Wait until it has all that its master holds. `WAIT` would not do: it speaks of the writes of its own connection."""
        replica, master = self.replica, self.servers[-1]
        assert replica is not None
        wait_until(lambda: replica.ask("DBSIZE") == master.ask("DBSIZE"), "the replica catches up")

    def move_slots(self, slots: Sequence[int], source: int, target: int) -> None:
        """Make another server the owner of empty slots, at once and everywhere."""
        owner = self.servers[target].ask("CLUSTER", "MYID")
        assert isinstance(owner, bytes)
        for slot in slots:
            for server in (self.servers[target], self.servers[source], *self.servers):
                _expect_ok(server.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner))

    def stop(self) -> None:
        for server in (*self.servers, *([] if self.replica is None else [self.replica])):
            server.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _expect_ok(answer: Reply) -> None:
    assert answer == b"OK", answer


def _text(answer: Reply) -> bytes:
    assert isinstance(answer, bytes), answer
    return answer


def _knows_all(server: Redis, masters: int) -> bool:
    table = server.ask("CLUSTER", "SLOTS")
    return b"cluster_state:ok" in _text(server.ask("CLUSTER", "INFO")) and isinstance(table, list) and len(table) == masters


def _knows_replica(server: Redis, master: bytes, nodes: int) -> bool:
    """Whether it knows, and is connected with, that many nodes, one of which follows the master."""
    told = [line.split() for line in _text(server.ask("CLUSTER", "NODES")).splitlines()]
    follow = [line for line in told if b"slave" in line[2] and line[3] == master]
    return len(told) == nodes and len(follow) == 1 and all(line[7] == b"connected" for line in told)
