"""What a server says of its store: figures among its metrics, lines in its log for pages that are spoilt, an honest answer
where it is asked to clear the store, and why it does not start with a flag that is refused.

`python server_store.py --source ../../..`, run by the engine's python.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caches import chosen
from server_kits import VOCABULARY, Expectations, options_parser, prepared, saved_model, serving
from server_staleness import Client

SAMPLE = re.compile(r"^(unified_tree_\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)
"""A line of Prometheus' text format."""
SLOT_BYTES = 4096
"""A page in the files begins at a multiple of this."""


def figures(address: str) -> dict[str, float]:
    """The metrics of a server's cache, summed over labels."""
    import requests

    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(requests.get(f"{address}/metrics", timeout=60).text):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def reached(address: str, name: str, seconds: float = 60) -> float:
    """A figure when it is more than nothing, or after so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := figures(address).get(name, 0.0):
            return found
        time.sleep(0.5)
    return 0.0


def spoil(files: Path) -> None:
    """Change a byte of each page in the files of a store, which are sparse."""
    for path in files.rglob("*.pages"):
        with path.open("r+b", buffering=0) as file:
            for at in range(0, path.stat().st_size, SLOT_BYTES):
                begin = os.pread(file.fileno(), 8, at)
                if any(begin):
                    os.pwrite(file.fileno(), bytes([begin[0] ^ 255]), at)


def main() -> int:
    """Run servers on one folder of files, say what held."""
    options: argparse.Namespace = options_parser(__doc__).parse_args()
    work: Path = prepared(options)
    model = saved_model(options.models)
    draw = random.Random(1)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(300)] for _ in range(4)]
    expect = Expectations()

    def serve(name: str, use: Callable[[Client, str], object], **more: Any) -> str:
        """Use a server with a cache; its log."""
        [cache] = chosen([name])
        with serving(model, cache, work, options, **{"enable_metrics": True, **more}) as (_, address):
            use(Client(address), address)
        return (work / f"server.{name}.log").read_text(errors="replace")

    def store(client: Client, address: str) -> None:
        client.ask(prompts)
        found = reached(address, "unified_tree_storage_persisted_boundaries_total")
        expect("what is stored is counted", holds=found > 0, found=found)
        found = figures(address).get("unified_tree_miss_tokens_total", 0)
        expect("misses are counted", holds=found > 1000, found=found)

    def read_and_clear(client: Client, address: str) -> None:
        client.ask(prompts)
        found = reached(address, "unified_tree_storage_quarantined_total")
        expect("spoilt pages are counted", holds=found > 0, found=found)
        answer = client.post("/hicache/storage-backend/clear")
        expect("cleared", holds=answer.status_code == 200, found=answer.status_code)

    def find_nothing(client: Client, address: str) -> None:
        del address
        _, cached = client.ask(prompts)
        expect("after it was cleared: nothing in files", holds=cached == 0, found=cached)
        expect("flushed", holds=client.flush())
        answer = client.post("/hicache/storage-backend/clear")
        expect("cleared after a flush", holds=answer.status_code == 200, found=answer.status_code)

    def fail(client: Client, address: str) -> None:
        raise AssertionError(f"{client} at {address} has started")

    serve("ours+files", store)
    spoil(work / "files")
    log = serve("ours+files", read_and_clear)
    expect("spoilt pages are in the log", holds="not what" in log)
    serve("ours+files", find_nothing)
    for flag, more in (
        ("--disaggregation-mode decode", {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}),
        ("--enable-streaming-session", {"enable_streaming_session": True}),
    ):
        try:
            serve("ours", fail, **more)
        except RuntimeError:
            log = (work / "server.ours.log").read_text(errors="replace")
            expect(f"{flag} is refused", holds=f"--radix-cache-backend unified_tree does not support {flag}" in log)
    return 1 if expect.failed else 0


if __name__ == "__main__":
    sys.exit(main())
