"""`python -m benches.storage_hf3fs`: what the 3FS engine leaves of a file's speed, and how long its metadata service takes.

Question: what do the service's two answers a put, its one a get, the threads, and the checksums cost beside `pwritev` and
`preadv`? Not: what 3FS, USRBIO or a network would give; file, service and engine share this machine, and the file stays in
the page cache.

The bare file is written and read page after page by one thread, straight from and into the same memory.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from benches.contestants import ROOT
from benches.rounds import options_of, told, written
from benches.storage_rounds import HEAD, POOL_NAME, Contestant, Pages, engine_contestants, measure_cases, pool_of
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings, Hf3fsStorage

sys.path.append(str(ROOT / "tests" / "support"))
LOOKUPS = (1, 16, 128, 1024, 8192)
"""Keys in one `exists`."""


def bare(path: Path, pages: Pages) -> tuple[Contestant, int]:
    """A file that is known to nobody else, and its descriptor."""
    descriptor, size = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), pages.stored[0].nbytes
    os.posix_fallocate(descriptor, 0, size * len(pages.stored))

    def put(_: Sequence[bytes], views: Sequence[memoryview]) -> None:
        if [os.pwritev(descriptor, [view], index * size) for index, view in enumerate(views)] != [size] * len(views):
            raise RuntimeError("the bare file was not written")

    def get(_: Sequence[bytes], views: Sequence[memoryview]) -> None:
        if [os.preadv(descriptor, [view], index * size) for index, view in enumerate(views)] != [size] * len(views):
            raise RuntimeError("the bare file was not read")

    return Contestant(name="bare file", put=put, get=get, remove=lambda _: None), descriptor


@contextmanager
def contestants(url: str, folder: Path, pages: Pages) -> Iterator[list[Contestant]]:
    """A bare file, and the engine over one of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with_file, descriptor = bare(Path(name, "bare"), pages)
        capacity_bytes = (2 * pages.batch + 2) * pages.page_bytes + (1 << 20)
        engine = _engine(url, folder, Path(name).name, pages.page_bytes, capacity_bytes)
        yield [with_file, *engine_contestants(engine)]
        engine.close()
        os.close(descriptor)
        (folder / f"{Path(name).name}.pages").unlink()


def lookups(url: str, folder: Path, counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure `exists`, half of the keys being there, printing a line each."""
    engine, found = _engine(url, folder, "lookup", 512, 512 * (max(counts) + 64) + 8192), []
    keys = [hashlib.sha256(str(index).encode()).digest() for index in range(max(counts))]
    page = memoryview(bytearray(512))
    engine.put(POOL_NAME, keys[::2], [page] * len(keys[::2]))
    for count in counts:
        times = []
        for _ in range(rounds):
            start = perf_counter_ns()
            there = engine.exists(POOL_NAME, keys[:count])
            times.append((perf_counter_ns() - start) / 1000)
        row = {
            "contestant": "lookup",
            "keys": count,
            "min_us": round(min(times), 1),
            "median_us": round(statistics.median(times), 1),
            "max_us": round(max(times), 1),
            "right": int(there.sum()) == (count + 1) // 2,
        }
        found.append(row)
        print(f"lookup {count:>6} keys: {row['median_us']:>9} µs, {row['min_us']} to {row['max_us']}", flush=True)
    engine.close()
    return found


def _engine(url: str, folder: Path, rank: str, page_bytes: int, capacity_bytes: int) -> Hf3fsStorage:
    settings = Hf3fsSettings(metadata=url, directory=str(folder), rank=rank, capacity_bytes=capacity_bytes, io="posix")
    return Hf3fsStorage([pool_of(page_bytes)], settings)


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not arrive as they were sent, 2 where the service cannot run."""
    parser = options_of("storage_hf3fs", __doc__, quick="two small cases and two rounds", rounds=31)
    parser.add_argument("--directory", type=Path, help="on the mount to be measured; by default one for temporary files")
    options = parser.parse_args(arguments)
    import hf3fs_service

    reason = hf3fs_service.why_not()
    if reason is not None:
        print(f"no metadata service: {reason}", file=sys.stderr)
        return 2
    where = told(HEAD)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        with hf3fs_service.MetadataService(folder / "state", lease_s=60.0) as service:
            found = measure_cases(options, partial(contestants, service.url, folder))
            rounds = 20 if options.quick else 10 * options.rounds
            found += lookups(service.url, folder, LOOKUPS[:2] if options.quick else LOOKUPS, rounds)
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
