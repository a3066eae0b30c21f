"""A real `lmcache server` on loopback, a process of its own (`lmcache_process`), and look-ups at it."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import os
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
from lmcache_process import start_server
from numpy.typing import NDArray
from ports import free_port

from unified_tree.controllers.prefix_linker import PrefixLinker

CHUNK_TOKENS = 16
QUIET = pytest.mark.filterwarnings("ignore:.LoggingHandler. in .opentelemetry-sdk. is deprecated:DeprecationWarning")
"""For tests that import the package: it makes such a handler a module."""
MODULES = ("lmcache", "zmq", "msgspec", "numba", "uvicorn", "opentelemetry")


def why_not() -> str | None:
    """Why no daemon can run here; None if it can."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}; pip install 'unified-tree[lmcache]', and as its page says"
    return None


def skip_unless_it_runs() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"lmcache: {reason}", allow_module_level=True)


def until(ask: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something that becomes true."""
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def find(linker: PrefixLinker, ids: NDArray[np.int64], salt: str, at_least: int, patience_s: float = 60.0) -> tuple[str, int]:
    """A lookup, and how many tokens it found: so many, or fewer after so long. What was stored is found a moment later."""
    deadline = time.monotonic() + patience_s
    for number in itertools.count():
        name = f"find {salt} {number} {time.monotonic()}"
        linker.lookup(name, ids, salt)
        until(lambda name=name: linker.found(name) is not None)  # type: ignore[misc]
        found = linker.found(name) or 0
        if found >= at_least or time.monotonic() > deadline:
            return name, found
        linker.release(name)
    raise AssertionError


class Lmcache:
    """Started on entry, killed on exit; the same ports after a restart."""

    def __init__(self, chunk_tokens: int = CHUNK_TOKENS, *, l1_gib: float = 0.02, options: Sequence[str] = ()) -> None:
        self.port, self._http_port = free_port(), free_port()
        self.chunk_tokens = chunk_tokens
        self._l1_gib = l1_gib
        self.options = options
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._process: ForkServerProcess | None = None

    def __enter__(self) -> Lmcache:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._log.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Blocks until it serves."""
        arguments = [
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--http-host", "127.0.0.1", "--http-port", str(self._http_port), "--l1-size-gb", str(self._l1_gib)),
            *("--chunk-size", str(self.chunk_tokens), "--eviction-policy", "LRU", "--supported-transfer-mode", "auto"),
            *("--disable-observability", *self.options),
        ]
        self._process = start_server(arguments, self._log.name)
        deadline = time.monotonic() + 120
        while not self._serves():
            if not self._process.is_alive() or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError(f"lmcache server does not serve: {self._log.read()[-2000:]!r}")
            time.sleep(0.1)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()  # which ends a frozen one, too
            self._process.join()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        while not all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.glob("*/stat")):
            time.sleep(0.001)  # each of its threads stops on its own

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None and self._process.pid is not None
        os.kill(self._process.pid, number)

    def clear(self) -> None:
        """It forgets everything, also what is locked."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http_port}/cache/clear", b'{"force": true}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert b"cleared" in answer.read()

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/healthcheck", timeout=1) as answer:
                return b"healthy" in answer.read()
        except (OSError, http.client.HTTPException):
            return False
