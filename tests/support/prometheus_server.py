"""A real Prometheus on loopback, which scrapes what a test exports."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from ports import free_port
from waiting import PATIENCE_S, wait_until


def skip_unless_it_runs() -> None:
    """Skip the test that asks, or the module."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"no Prometheus: there is no {program}; on Debian apt-get install prometheus", allow_module_level=True)


class Prometheus:
    """A server with these targets and rules; a context manager that ends it by its process id.

    Args:
        folder: its own, for its configuration and data.
        targets: addresses that it scrapes, once a second. A target that does not answer in time has no figures until the next
            scrape: ask until they are there.
        rules: files of alerts.
    """

    def __init__(self, folder: Path, targets: Sequence[str], rules: Sequence[Path]) -> None:
        self._folder = folder
        self._address = f"127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [{"job_name": "unified_tree", "static_configs": [{"targets": list(targets)}]}],
        }
        self._config = folder / "prometheus.yml"
        self._config.write_text(json.dumps(config))  # which is YAML, too
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        self._log = (self._folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        wait_until(self._is_ready, "Prometheus to start")
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urlopen(f"http://{self._address}/-/ready", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def ask(self, path: str, **arguments: str) -> Any:
        """The data of an answer of its API."""
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(arguments)}", timeout=PATIENCE_S) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What an expression is now: labels and values."""
        return [(each["metric"], float(each["value"][1])) for each in self.ask("query", query=expression)["result"]]

    def scrapes(self) -> int:
        """How often each target was scraped and answered in time, of all the least."""
        counts = [count for _, count in self.query("sum_over_time(up[10m])")]
        return int(min(counts, default=0))
