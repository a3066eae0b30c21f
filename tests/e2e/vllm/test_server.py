"""vLLM's server over HTTP: a prompt is loaded from host after a reset, and from files after a restart; metrics tell so.

Run as test_served_models.py. With two workers, tensor parallelism divides the heads between them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import vllm_tiny_models as tiny_models
from ports import free_port
from vllm_served_mix import CONNECTOR

from unified_tree.controllers.cli.diagnosis import read_figures

pytest.importorskip("vllm", reason="the engine's python runs these")
PAGE = 32
PROMPT = [3 + number * 7 % 500 for number in range(4 * PAGE + 5)]
START_S = 300


class Server:
    """A server in a process of its own."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def call(
        self, path: str, body: dict[str, Any] | None = None, *, post: bool = False, headers: dict[str, str] | None = None
    ) -> str:
        """What it answers."""
        data = json.dumps(body).encode() if body is not None else b"" if post else None
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def complete(self, headers: dict[str, str] | None = None, **more: Any) -> tuple[str, int]:
        """The output for the prompt, and how many tokens came from a cache."""
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
        answer = json.loads(self.call("/v1/completions", body, headers=headers))
        return answer["choices"][0]["text"], (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def metric(self, name: str) -> float:
        """A counter of the connector."""
        lines = [line for line in self.call("/metrics").splitlines() if line.startswith(f"vllm:unified_tree_{name}_total{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def serve(path: Path, log: Path, *arguments: str, extra: dict[str, Any]) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it by its process."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--host", "127.0.0.1",
        "--port", str(port),
        "--served-model-name", "tiny", "--dtype", "float32", "--block-size", str(PAGE), "--max-model-len", "320",
        "--enforce-eager",
        "--enable-prefix-caching", "--enable-prompt-tokens-details", "--max-num-seqs", "4", "--kv-transfer-config",
        json.dumps({**CONNECTOR, "kv_connector_extra_config": extra}), *arguments,
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            server, deadline = Server(port), time.monotonic() + START_S
            while True:
                try:
                    server.call("/health")
                    break
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    assert process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
                    assert time.monotonic() < deadline, f"the server does not start: {log.read_text()[-3000:]}"
                    time.sleep(0.5)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_prompt_comes_from_host_and_after_a_restart_from_files(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "model"
    tiny_models.save_llama(path)
    tiny_models.save_tokenizer(path)
    store = {
        "engine": "file", "directory": str(tmp_path / "store"), "capacity_bytes": 1 << 28,
        "prefetch": {"mode": "wait_complete", "min_tokens": 1},
    }  # fmt: skip
    arguments = () if workers == 1 else ("--tensor-parallel-size", str(workers), "--distributed-executor-backend", "mp")
    page = f"http://127.0.0.1:{free_port()}/"
    extra = {"host_gib": 0.05, "verify": True, "store": store, "inspector": {"port": urlsplit(page).port}}
    with serve(path, tmp_path / "first.log", *arguments, extra=extra) as server:
        text, cached = server.complete()
        assert cached == 0
        server.call("/reset_prefix_cache", post=True)
        assert server.complete() == (text, 4 * PAGE)
        assert server.metric("loaded_tokens") == 4 * PAGE
        assert server.metric("prompt_tokens") == 2 * len(PROMPT)
        assert server.metric("miss_tokens") == 2 * len(PROMPT) - 4 * PAGE
        [figures] = read_figures(page)
        assert (figures.prompt_tokens, figures.hit_tokens) == (2 * len(PROMPT), 4 * PAGE)
        assert sum(figures.misses.values()) == 2 * len(PROMPT) - 4 * PAGE
        assert f"the inspector's page is at {page}" in (tmp_path / "first.log").read_text()
        deadline = time.monotonic() + 30
        while server.metric("stored_pages") < 4 * workers and time.monotonic() < deadline:
            time.sleep(0.2)
            server.complete()  # statistics come with a step
        assert server.metric("stored_pages") >= 4 * workers
        assert server.metric("failed_loads") == server.metric("store_errors") == 0
    with serve(path, tmp_path / "second.log", *arguments, extra=extra) as server:
        assert server.complete() == (text, 4 * PAGE)
        assert server.complete()[0] == text
        assert server.metric("fetched_tokens") == 4 * PAGE
        assert server.metric("failed_loads") == server.metric("store_errors") == 0


def test_clients_name_sessions_and_say_what_is_to_become_of_them(tmp_path: Path) -> None:
    """By `session_id` or a header and `kv_transfer_params`; the server's metrics tell how the hints ended."""
    path = tmp_path / "model"
    tiny_models.save_llama(path)
    tiny_models.save_tokenizer(path)
    tenants = {"groups": [{"name": "gold", "namespaces": ["acme"], "floor": 0.2}]}
    with serve(path, tmp_path / "log", extra={"host_gib": 0.05, "tenants": tenants}) as server:
        told: dict[str, Any] = {"session_id": "agent", "cache_salt": "acme"}
        text, cached = server.complete(**told, kv_transfer_params={"unified_tree": {"retain": True}})
        assert cached == 0
        server.call("/reset_prefix_cache", post=True)
        named: dict[str, Any] = {"cache_salt": "acme", "kv_transfer_params": {"unified_tree": {"pin": True, "share": True}}}
        assert server.complete({"X-Session-ID": "agent"}, **named) == (text, 4 * PAGE)
        assert server.complete(kv_transfer_params={"unified_tree": {"rets": 1}})[0] == text
        server.complete(session_id="agent", cache_salt="acme", kv_transfer_params={"unified_tree": {"end": True}})
        deadline = time.monotonic() + 30
        while server.metric("ended_sessions") < 1 and time.monotonic() < deadline:
            time.sleep(0.2)
            server.complete()  # statistics come with a step
        assert server.metric("ended_sessions") == 1
        assert server.metric("hints") == 3
        assert server.metric("tenant_hints") == 3
        figures = server.call("/metrics")
        assert 'verb="retain"' in figures and 'group="gold"' in figures
        assert "a request's hints are left out" in (tmp_path / "log").read_text()
