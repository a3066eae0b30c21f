"""A server of two ranks, one of which is stopped or killed while it serves: it must end in bounded time and name that rank.

`python server_stopped_rank.py --source ../../..`, run by the engine's python. A server that hangs is worse than one that ends:
what has ended is started anew.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from caches import chosen
from server_kits import VOCABULARY, options_parser, prepared, saved_model, started
from server_staleness import Client

RANKS = 2
WATCHDOG_S = 20
SIGNS = re.compile(
    r"rank \d+ \(process \d+\)|lost another one, which died|are not all there: a rank hangs"
    r"|Subprocess \S+ \(pid=\d+\) crashed|watchdog timeout|Connection (closed|reset) by peer|Timed out waiting"
)
"""What says that a rank is gone: of this library, of SGLang's watchdogs, of gloo."""


def schedulers(server: subprocess.Popen[bytes]) -> dict[int, int]:
    """The process of each rank, which SGLang names after it."""
    import psutil  # type: ignore[import-untyped]  # no stubs are installed

    found = {}
    for child in psutil.Process(server.pid).children(recursive=True):
        named = re.search(r"scheduler.*TP(\d+)", " ".join(child.cmdline()))
        if named:
            found[int(named[1])] = child.pid
    return found


def seconds_to_the_end(
    server: subprocess.Popen[bytes], client: Client, how: signal.Signals, bound_s: float
) -> tuple[float | None, int]:
    """Send the signal to the last rank while a request runs. Seconds until the server ended, None if it still runs after the
    bound; and the rank's process.
    """
    draw = random.Random(2)
    prompt = [draw.randrange(VOCABULARY) for _ in range(300)]
    client.ask([prompt])

    def generate() -> None:
        import requests

        try:
            sampling = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
            client.post("/generate", input_ids=prompt, sampling_params=sampling)
        except requests.RequestException:
            pass

    threading.Thread(target=generate, daemon=True).start()
    time.sleep(3)
    ranks = schedulers(server)
    assert len(ranks) == RANKS, ranks
    start = time.monotonic()
    os.kill(ranks[RANKS - 1], how)
    while time.monotonic() < start + bound_s:
        if server.poll() is not None:
            return time.monotonic() - start, ranks[RANKS - 1]
        time.sleep(0.2)
    os.kill(ranks[RANKS - 1], signal.SIGKILL)
    return None, ranks[RANKS - 1]


def said(log: Path) -> list[str]:
    """The lines of a log that say that a rank is gone."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return [line[:300] for line in lines if SIGNS.search(line)]


def main() -> int:
    """Stop a rank, then kill one; say what was said and how long it took."""
    parser = options_parser(__doc__)
    parser.add_argument("--cache", default="ours+host")
    parser.add_argument("--bound", type=float, default=180, help="seconds in which a server must have ended")
    options = parser.parse_args()
    work = prepared(options)
    model = saved_model(options.models)
    [cache] = chosen([options.cache])
    failed = 0
    for how in (signal.SIGSTOP, signal.SIGKILL):
        arguments = {"watchdog_timeout": WATCHDOG_S}
        process = 0
        folder = work / how.name
        folder.mkdir(exist_ok=True)
        server, address = started(model, cache, folder, options, ranks=RANKS, **arguments)
        try:
            ended, process = seconds_to_the_end(server, Client(address), how, options.bound)
        finally:
            server.kill()
            server.wait(60)
        signs = said(folder / f"server.{cache.name}.log")
        is_named = any(f"rank {RANKS - 1} (process {process})" in line for line in signs)
        failed += ended is None or not is_named
        after = "still runs" if ended is None else f"ended after {ended:.0f} s"
        named = "names the rank" if is_named else "does not name the rank"
        print(f"{how.name} to rank {RANKS - 1}: the server {after}, its log {named}", flush=True)
        for line in signs[:6]:
            print(f"    {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
