"""`unified-tree record`: what it writes, says, and refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from replay_rows import invoke

from unified_tree.controllers.cli.commands import app
from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, token_bytes

IDS = list(range(70))
LINE = (
    f"INFO 11-28 21:06:05 [logger.py:40] Received request cmpl-1: prompt: None, params: SamplingParams(n=1), "
    f"prompt_token_ids: {IDS}, prompt_embeds shape: None, lora_request: None.\n"
)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 2}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_proxy_records_until_it_is_stopped(tmp_path: Path, server: str, number: signal.Signals) -> None:
    module = "unified_tree.controllers.cli.cli"
    command = [
        sys.executable,
        "-m",
        module,
        "record",
        "proxy",
        "--to",
        server,
        "--port",
        "0",
        "--out",
        str(tmp_path / "traces"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert "no --tokenizer" in process.stderr.readline()
            said = process.stderr.readline()
            body = json.dumps({"prompt": IDS}).encode()
            with urllib.request.urlopen(said.split()[0] + "/v1/completions", body, timeout=60) as answer:
                assert answer.status == 200 and answer.read()
            process.send_signal(number)
            rest = process.stderr.read()
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert f"passes on to {server}" in said and "recorded 1 requests" in rest
    [line] = lines(tmp_path / "traces")
    assert (line["input_length"], line["output_length"], line["block_size"]) == (70, 2, 64)
    assert line["hash_ids"] == BlockHasher().ids(token_bytes(IDS))


def test_a_log_becomes_a_trace_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LINE)
    result = invoke("record", "log", tmp_path / "log", "--out", tmp_path / "one", "--block-size", 16)
    assert result.exit_code == 0 and "recorded 1 requests" in result.stderr
    arguments = ["record", "log", "-", "--out", str(tmp_path / "two"), "--block-size", "16", "--salt", "s"]
    assert CliRunner().invoke(app, arguments, input=LINE).exit_code == 0
    [plain], [salted] = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert plain["hash_ids"] == BlockHasher(16).ids(token_bytes(IDS))
    assert salted["hash_ids"] == BlockHasher(16, b"s").ids(token_bytes(IDS))


def test_events_of_a_file_become_a_trace(tmp_path: Path) -> None:
    event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": IDS[:64], "block_size": 64}
    (tmp_path / "events").write_bytes(msgpack.packb([1.5, [{**event, "lora_id": None}], 0]))
    result = invoke("record", "events", tmp_path / "events", "--out", tmp_path / "traces")
    assert result.exit_code == 0, result.output
    [line] = lines(tmp_path / "traces")
    assert line["hash_ids"] == BlockHasher().ids(token_bytes(IDS)), "as every other source has them"
    assert (line["timestamp"], line["input_length"], line["cached_tokens"]) == (1500, 64, 0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["proxy", "--to", "nowhere", "--out", "{tmp}/t"], "a server is given as"),
        (["proxy", "--to", "http://127.0.0.1:1", "--out", "{tmp}/log"], "cannot be recorded into"),
        (["proxy", "--to", "http://127.0.0.1:1", "--host", "192.0.2.1", "--out", "{tmp}/t"], "cannot be listened on"),
        (["log", "{tmp}/log", "--out", "{tmp}/t"], "has no line of a request"),
        (["log", "{tmp}/missing", "--out", "{tmp}/t"], "cannot be read"),
        (["log", "{tmp}/log", "--out", "{tmp}/t", "--total-mib", "100"], "room for two"),
        (["log", "{tmp}/log", "--out", "{tmp}/t", "--tokenizer", "{tmp}/log"], "no tokenizer.json"),
        (["log", "{tmp}/log", "--out", "{tmp}/t", "--chat-template", "{tmp}/log"], "needs the tokenizer"),
        (["events", "{tmp}/missing", "--out", "{tmp}/t"], "cannot be read"),
        (["events", "tcp://", "--out", "{tmp}/t"], "no address of a publisher"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: list[str], match: str) -> None:
    (tmp_path / "log").write_text("nothing\n")
    result = invoke("record", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    assert error.startswith("error: ") and match in error


def test_a_second_recording_into_a_folder_is_refused(tmp_path: Path) -> None:
    from unified_tree.controllers.workbench.recorder.trace_writer import TraceFiles

    first = TraceFiles(tmp_path / "traces")
    first.open()
    result = invoke("record", "events", tmp_path / "none", "--out", tmp_path / "traces")
    assert result.exit_code == 2 and "another recorder writes there" in result.stderr
    first.close()
