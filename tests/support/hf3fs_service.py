"""A real metadata service of the 3FS engine, a process of its own on loopback, whose leases end where a test says so.

No lease and no time-out is so short that a busy machine could reach it: the service's clock leaps where a test wants a lease
to be over.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from waiting import PATIENCE_S

LEASE_S = 4 * PATIENCE_S
SETTINGS: dict[str, Any] = {
    "io": "posix",
    "request_timeout_s": PATIENCE_S,
    "io_timeout_s": PATIENCE_S,
    "retry_pause_s": 0.1,
}
"""Of engines in tests: they wait for whatever answers at all."""
_LEAPING = """
import mmap, struct, sys, time
from unified_tree.controllers.storage.hf3fs.metadata import metadata_service
from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState

with open(sys.argv.pop(1), "r+b") as file:
    leapt = mmap.mmap(file.fileno(), 8)
MetadataState.__init__.__kwdefaults__["clock"] = lambda: time.monotonic() + struct.unpack("d", leapt)[0]
sys.exit(metadata_service.main(sys.argv[1:]))
"""
"""The service, whose clock is ahead by what stands in a file."""


def why_not() -> str | None:
    """Why no service can run here; None if it can."""
    if importlib.util.find_spec("aiohttp") is None:
        return "aiohttp is not installed: pip install 'unified-tree[hf3fs]'"
    return None


def skip_unless_it_runs() -> None:
    """Skip the test that asks, or the module."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no metadata service: {reason}", allow_module_level=True)


class MetadataService:
    """The service; a context manager that ends it by its process id.

    Args:
        state: its directory.
        options: further words of its command line.
    """

    def __init__(self, state: Path, *options: str, lease_s: float = LEASE_S, aside_s: float = LEASE_S, token: str = "") -> None:
        self._words = ["--state", str(state), "--lease-s", str(lease_s), "--aside-s", str(aside_s)]
        self._words += ["--commit-wait-s", str(PATIENCE_S), *options]
        self._token = token
        self._port = 0
        self._leapt_s = 0.0
        self._leapt = state.with_name(f"{state.name} leapt")
        self._leapt.write_bytes(struct.pack("d", 0.0))
        self.start()

    def start(self) -> None:
        """Start the service, at the same address every time."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LEAPING, str(self._leapt), "--port", str(self._port), *self._words],
            stdout=subprocess.PIPE,
            env={**os.environ, "unified_tree__hf3fs__token": self._token},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.process.stdout.close()
        if "listening on " not in line:
            self.kill()
            raise AssertionError(f"the service does not come up: {line!r}")
        self.url = line.split()[-1]
        self._port = int(self.url.rpartition(":")[2])

    def stats(self) -> dict[str, Any]:
        """What it says of itself."""
        request = urllib.request.Request(f"{self.url}/v1/stats", headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            said = json.load(answer)
        assert isinstance(said, dict)
        return said

    def let_pass(self, seconds: float = 2 * LEASE_S) -> None:
        """So much time passes at once; by default, every lease ends, and every page that was set aside comes back."""
        self._leapt_s += seconds
        with self._leapt.open("r+b") as file:
            file.write(struct.pack("d", self._leapt_s))

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it in peace."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0

    def __enter__(self) -> MetadataService:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
