"""One server, recorded four ways at once: by the proxy, its request log, its KV events, and the observer in its cache.

`python server_recorded.py --source ../../.. --recorder "/path/of/unified-tree"`, run by the engine's python; the recorder is a
command of an installation with the extra `record`. The four traces must have the same blocks, and the first three the same
requests with the cached tokens that the server reported. A table says what each has.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from caches import OURS, Cache
from server_kits import VOCABULARY, options_parser, prepared, saved_model, started

PAGE = 16
RECORD = "unified_tree.controllers.workbench.recorder.cache_recorder:open_recorder"
ANSWER = 24


def lines(directory: Path) -> list[dict[str, Any]]:
    """A trace."""
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def ask(address: str, draw: random.Random, count: int) -> list[int]:
    """Serve conversations by all three ways to ask, some as streams; the cached tokens that each answer reported."""
    import requests

    sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
    spoken = [[draw.randrange(1, VOCABULARY) for _ in range(100)] for _ in range(4)]
    cached = []
    for at in range(count):
        ids = spoken[at % 4]
        words = " ".join(f"w{each}" for each in ids)
        is_stream = at % 3 == 0
        body: Any
        if at % 2:
            path, body = "/generate", {"input_ids": ids, "sampling_params": sampling, "stream": is_stream}
        else:
            more = {"stream_options": {"include_usage": True}} if is_stream else {}
            path, body = (
                "/v1/completions",
                {"prompt": words, "max_tokens": ANSWER, "temperature": 0, "stream": is_stream, **more},
            )
        answer = requests.post(address + path, json=body, timeout=300)
        texts = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if is_stream else [answer.text]
        told = [json.loads(text) for text in texts]
        if path == "/generate":
            cached.append(told[-1]["meta_info"]["cached_tokens"])
            spoken[at % 4] = [*ids, *told[-1]["output_ids"], draw.randrange(1, VOCABULARY)]
        else:
            usage = next(each["usage"] for each in reversed(told) if each.get("usage"))
            cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
            spoken[at % 4] = [*ids, *(draw.randrange(1, VOCABULARY) for _ in range(20))]
    return cached


def begun(command: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """A recording that has begun, and the line that says so."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stderr is not None
    while line := process.stderr.readline():
        if "until this command is stopped" in line:
            return process, line
    raise RuntimeError(f"{command} ended with {process.wait()}")


def ended(process: subprocess.Popen[str]) -> str:
    """The account of a recording at its end."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=60)[1].strip()


def main() -> int:
    """Serve, record, compare."""
    parser = options_parser(__doc__)
    parser.add_argument("--recorder", default="unified-tree", help="the command")
    parser.add_argument("--requests", type=int, default=40)
    options = parser.parse_args()
    options.page_size = PAGE
    work = prepared(options)
    model = saved_model(options.models)
    recorder = shlex.split(options.recorder)
    environment = {**os.environ, "PYTHONPATH": str(options.source.resolve())}
    events = f"ipc://{work}/events.socket"
    observers = {RECORD: {"directory": str(work / "observer"), "block_tokens": PAGE}}
    cache = Cache(name="recorded", engine=OURS, config={"observers": observers})
    asked: dict[str, Any] = {
        "enable_cache_report": True,
        "log_requests": True,
        "log_requests_level": 3,
        "kv_events_config": json.dumps({"publisher": "zmq", "endpoint": events}),
    }
    server, address = started(model, cache, work, options, **asked)
    common = ["--block-size", str(PAGE)]
    running = []
    try:
        listening, _ = begun([*recorder, "record", "events", events, "--out", str(work / "events"), *common], environment)
        running.append(listening)
        given = ["--to", address, "--port", "0", "--tokenizer", str(model), "--out", str(work / "proxy")]
        proxy, said = begun([*recorder, "record", "proxy", *given, *common], environment)
        running.append(proxy)
        time.sleep(1)  # until the subscription has reached the publisher
        cached = ask(said.split()[0], random.Random(1), options.requests)
        time.sleep(2)
    finally:
        for process in running:
            print(ended(process))
        server.terminate()
        server.wait(60)
    log = work / f"server.{cache.name}.log"
    command = [*recorder, "record", "log", str(log), "--tokenizer", str(model), "--out", str(work / "log"), *common]
    print(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr.strip())
    traces = {name: lines(work / name) for name in ("proxy", "log", "observer", "events")}
    wanted: Counter[Any] = Counter()
    known = {each for line in traces["proxy"] for each in (*line["hash_ids"], *line.get("output_hash_ids", ()))}
    failed = []
    for name, trace in traces.items():
        served = [line for line in trace if set(line["hash_ids"]) & known]  # without the server's own warm-up
        requests = Counter((line["input_length"], tuple(line["hash_ids"]), line.get("cached_tokens")) for line in served)
        blocks = {each for line in served for each in (*line["hash_ids"], *line.get("output_hash_ids", ()))}
        hits = sum(line.get("cached_tokens", 0) for line in served)
        print(f"{name:9} {len(served):4} requests, {len(blocks):4} blocks, {hits:6,} cached tokens; reported {sum(cached):,}")
        if name == "proxy":
            wanted = requests
        elif name != "events" and requests != wanted:
            failed.append(name)
        if name == "events" and not {each for line in traces["proxy"] for each in line["hash_ids"]} <= blocks:
            failed.append(name)
    if len(traces["proxy"]) != options.requests or sum(cached) != sum(line["cached_tokens"] for line in traces["proxy"]):
        failed.append("proxy")
    print(f"differ: {', '.join(failed) or 'none'}; traces and logs: {work}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
