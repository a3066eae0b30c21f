"""A real Mooncake master, and peers that give it memory, each a process of its own on loopback."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from frozen import freeze, thaw
from ports import free_port

PEER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("code", code, flush=True)
if code == 0:
    sys.stdin.read()
    store.close()
"""
SETTINGS: dict[str, Any] = {"rpc_timeout_ms": 1500, "transfer_timeout_s": 3, "retry_pause_s": 0.2}
"""Of engines in tests: what waits, waits briefly, but longer than a busy machine may take."""
ENVIRONMENT = {
    "MC_RPC_TIMEOUT_MS": "1500",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "3",
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
}


def master_program() -> str | None:
    """The master's binary, which pip puts beside the interpreter."""
    beside = Path(sys.executable).with_name("mooncake_master")
    return str(beside) if beside.exists() else shutil.which("mooncake_master")


def why_not() -> str | None:
    """Why no Mooncake can run here; None if it can."""
    if importlib.util.find_spec("mooncake") is None:
        return "the client is not installed: pip install 'unified-tree[mooncake]'"
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        return f"the client cannot be imported: {error}"
    program = master_program()
    if program is None:
        return "there is no mooncake_master"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else f"mooncake_master does not run: {done.stderr.strip()}"


def skip_unless_it_runs() -> None:
    """Skip the test that asks, or the module."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no Mooncake: {reason}", allow_module_level=True)


class Peer:
    """A process that gives memory to the store."""

    def __init__(self, master: str, segment_bytes: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, master, str(segment_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ENVIRONMENT,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if said.strip() != b"code 0":
            self.kill()
            raise AssertionError(f"the peer says {said!r}")

    def pause(self) -> None:
        freeze(self.process)

    def resume(self) -> None:
        thaw(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Mooncake:
    """A master and, with `segment_bytes`, a peer; a context manager that ends them by their process ids."""

    def __init__(self, segment_bytes: int = 64 << 20, lease_ms: int = 5000, client_ttl_s: int = 10) -> None:
        self._port = free_port()
        self._options = [f"--default_kv_lease_ttl={lease_ms}", f"--client_ttl={client_ttl_s}"]
        self.master = f"127.0.0.1:{self._port}"
        self.peers: list[Peer] = []
        self.start()
        if segment_bytes:
            self.add_peer(segment_bytes)

    def start(self) -> None:
        """Start the master, at the same address every time."""
        http, program = free_port(), master_program()
        assert program is not None
        self.process = subprocess.Popen(
            [
                program,
                "--rpc_address=127.0.0.1",
                f"--rpc_port={self._port}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={http}",
                "--rpc_thread_num=2",
                "--logtostderr=1",
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not self._is_ready(http):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.kill()
                raise AssertionError("the master does not come up")
            time.sleep(0.01)

    def add_peer(self, segment_bytes: int) -> Peer:
        self.peers.append(Peer(self.master, segment_bytes))
        return self.peers[-1]

    def pause(self) -> None:
        freeze(self.process)

    def resume(self) -> None:
        thaw(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """The peers first; a peer without a master takes its time."""
        for peer in self.peers:
            peer.kill()
        self.kill()

    def __enter__(self) -> Mooncake:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _is_ready(self, http: int) -> bool:
        """Whether it says so and takes connections, which are two things: it may say so a moment before."""
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/health", timeout=1) as answer:
                return b'"service_ready":true' in answer.read().replace(b" ", b"")
        except OSError:
            return False
