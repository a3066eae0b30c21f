"""`python -m benches.engines`: every storage engine whose server can run here, in one run, by the same calls.

Question: what do the engines put and get on loopback, checksums on, and what does a look-up cost?
Not: what a network or a disk would leave of it; servers and client share this machine's cores, and files stay in its memory.

Engines take turns, so that who else is at work disturbs all alike. The 3FS engine reads and writes a local directory here.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from benches.contestants import ROOT
from benches.rounds import options_of, told, written
from benches.storage_rounds import POOL_NAME, Contestant, Pages, engine_contestants, line_of, measure, pool_of
from unified_tree.controllers.storage import StorageEngine, StorageRegistry

sys.path.append(str(ROOT / "tests" / "support"))
SIZES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
QUICK_SIZES = (4 << 10, 64 << 10)
BATCH = 16
CAPACITY_BYTES = 1 << 30
LOOKUP_KEYS = 128


@contextmanager
def engines(page_bytes: int, folder: Path) -> Iterator[dict[str, StorageEngine]]:
    """The engines that can run, each over a server of its own, for pages of one size."""
    import hf3fs_service
    import mooncake_server
    import redis_server

    pools, registry = [pool_of(page_bytes)], StorageRegistry()
    with ExitStack() as servers:
        found = {
            "memory": registry.open("memory", pools, capacity_bytes=CAPACITY_BYTES),
            "file": registry.open("file", pools, directory=folder / "file", capacity_bytes=CAPACITY_BYTES),
        }
        if mooncake_server.why_not() is None:
            server = servers.enter_context(mooncake_server.Mooncake(segment_bytes=CAPACITY_BYTES))
            found["mooncake, tcp"] = registry.open("mooncake", pools, master=server.master)
        if redis_server.program() is not None:
            for over in ("tcp", "unix"):
                (folder / over).mkdir()
                redis = servers.enter_context(redis_server.Redis(folder / over, over=over))
                found[f"redis, {over}"] = registry.open("redis", pools, address=redis.address)
        (folder / "metadata").mkdir()
        (folder / "hf3fs").mkdir()
        service = servers.enter_context(hf3fs_service.MetadataService(folder / "metadata", lease_s=30.0))
        found["hf3fs, posix"] = registry.open(
            "hf3fs",
            pools,
            rank="0",
            metadata=service.url,
            directory=str(folder / "hf3fs"),
            capacity_bytes=CAPACITY_BYTES,
            io="posix",
        )
        try:
            yield found
        finally:
            for engine in found.values():
                engine.close()


def checked(name: str, engine: StorageEngine) -> Contestant:
    """The engine behind the checksums, under its own name."""
    [_, one] = engine_contestants(engine)
    return Contestant(name=name, put=one.put, get=one.get, remove=one.remove)


def lookup_us(engine: StorageEngine, rounds: int) -> float:
    """Median microseconds a key of a query for 128 keys that are not there."""
    times = []
    for turn in range(rounds + 1):
        keys = [hashlib.sha256(f"absent {turn} {index}".encode()).digest() for index in range(LOOKUP_KEYS)]
        start = perf_counter_ns()
        engine.exists(POOL_NAME, keys)
        times.append(perf_counter_ns() - start)
    return round(statistics.median(times[1:]) / LOOKUP_KEYS / 1e3, 2)


def rows(sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure everything, printing a line each."""
    found = []
    for page_bytes in sizes:
        with tempfile.TemporaryDirectory() as folder, engines(page_bytes, Path(folder)) as opened:
            pages = Pages(page_bytes, BATCH)
            for engine in opened.values():
                engine.register([pages.memory])
            for row in measure([checked(name, engine) for name, engine in opened.items()], pages, rounds):
                row["lookup_us"] = lookup_us(opened[row["contestant"]], rounds)
                found.append(row)
                print(f"{line_of(row)}  {row['lookup_us']:.2f} us a key", flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not arrive as they were sent."""
    options = options_of("engines", __doc__, quick="two small sizes and two rounds", rounds=21).parse_args(arguments)
    where = told()
    found = rows(QUICK_SIZES if options.quick else SIZES, 2 if options.quick else options.rounds)
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
