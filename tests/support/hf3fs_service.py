"""A real metadata service of the 3FS engine, a process of its own on loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

SETTINGS: dict[str, Any] = {"io": "posix", "request_timeout_s": 1.0, "io_timeout_s": 0.8, "retry_pause_s": 0.1}
"""Of engines in tests: what waits, waits briefly."""


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

    def __init__(self, state: Path, *options: str, lease_s: float = 2.0, aside_s: float = 1.0, token: str = "") -> None:
        self._words = ["--state", str(state), "--lease-s", str(lease_s), "--aside-s", str(aside_s), *options]
        self._token = token
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start the service, at the same address every time."""
        module = "unified_tree.controllers.storage.hf3fs.metadata.metadata_cli"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--port", str(self._port), *self._words],
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
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = json.load(answer)
        assert isinstance(said, dict)
        return said

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """End it in peace."""
        self.process.terminate()
        assert self.process.wait(30) == 0

    def __enter__(self) -> MetadataService:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
