"""`python -m benches.storage`: how fast pages go to and from storage engines on this machine's page cache.

Question: what share of the speed of raw `pwrite` and `pread` of the same bytes is left when a store keeps them under keys, with
and without the seal that every page gets? And what does a query, a start and the hashing of a prompt cost?
Not: what a disk does; everything stays in the kernel's page cache. Not what several threads reach, nor several processes.

All contestants take turns, in random order, at batches of 8 MiB, each at fresh pages out of 256 MiB, so that nobody finds
them in the processor's cache, and on tables that are full, so that every put replaces something. `raw` writes to and reads
from random places of one file with one call a page, as a store must that
finds its pages by keys. `sealed` is what a cache uses: CheckedStorage over the file engine;
its pages are verified by their checksums, and what anybody reads is compared with what was put. SQLite (synchronous off,
WAL) and, where the package is there, LMDB (no sync) evict nothing: they replace the pages under a fixed set of keys.

Measured is the processor time of the thread, in the kernel and out of it: with warm pages nothing waits, so that is the time
on a machine with a core to spare, and others that are at work disturb it less. `load` is the system's load average.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol

import numpy as np

from benches.rounds import options_of, told, written
from unified_tree import Key
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage import CheckedStorage, FileStorage, KeyChain, Outcome, StoredPool
from unified_tree.controllers.storage.file.table_entry import entry
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, TableShape, round_up, shape_within

BATCH_BYTES = 8 << 20
SOURCE_BYTES = 256 << 20
PAGE_BYTES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
NAMES = ("raw", "file", "sealed", "sqlite", "lmdb")
HEAD = f"{'page':>8}  {'operation':<10}{'store':<8}{'GB/s':>7}{'us/page':>9}{'of raw':>8}{'min':>6}{'max':>6}{'load':>6}  right"


class Store(Protocol):
    """What is measured: batches of pages under numbers."""

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Write pages."""

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Read them back."""

    def close(self) -> None:
        """Let go of the files."""


def key(number: int) -> bytes:
    """Uniformly distributed, as keys are."""
    return sha256(b"%d" % number).digest()


class Raw:
    """One file, one call a page, at the place that the key's first bytes say; the keys of a batch do not collide."""

    def __init__(self, folder: Path, value_bytes: int, places: int) -> None:
        self.file = os.open(folder / "raw", os.O_RDWR | os.O_CREAT)
        self.stride = round_up(value_bytes)
        self.places = places

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        for one, page in zip(keys, pages, strict=True):
            os.pwrite(self.file, page, int.from_bytes(one[:8], "little") % self.places * self.stride)

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        for one, page in zip(keys, pages, strict=True):
            os.preadv(self.file, (page,), int.from_bytes(one[:8], "little") % self.places * self.stride)

    def close(self) -> None:
        os.close(self.file)


class Ours:
    """The file engine, by itself or behind CheckedStorage."""

    def __init__(self, folder: Path, value_bytes: int, places: int, *, sealed: bool) -> None:
        pool = StoredPool(name="full", format_digest=bytes(32), value_bytes=value_bytes)
        self.engine = FileStorage([pool], folder / f"sealed {sealed}", 8192 + places * (round_up(value_bytes) + 64))
        self.store = CheckedStorage(self.engine) if sealed else self.engine

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        outcomes = self.store.put("full", keys, pages)
        assert outcomes == [Outcome.DONE] * len(pages), outcomes

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        outcomes = self.store.get("full", keys, pages)
        assert outcomes == [Outcome.DONE] * len(pages), outcomes

    def close(self) -> None:
        self.engine.close()


class Sqlite:
    """A table of blobs, a transaction a batch."""

    def __init__(self, folder: Path) -> None:
        self.base = sqlite3.connect(folder / "sqlite", isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=OFF")
        self.base.execute("CREATE TABLE pages (key BLOB PRIMARY KEY, page BLOB)")

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        self.base.execute("BEGIN")
        self.base.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?)", zip(keys, pages, strict=True))
        self.base.execute("COMMIT")

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        for one, page in zip(keys, pages, strict=True):
            page[:] = self.base.execute("SELECT page FROM pages WHERE key = ?", (one,)).fetchone()[0]

    def close(self) -> None:
        self.base.close()


class Lmdb:
    """A memory map, a transaction a batch."""

    def __init__(self, folder: Path, value_bytes: int, places: int) -> None:
        lmdb = import_module("lmdb")
        self.base = lmdb.open(str(folder / "lmdb"), map_size=4 * places * value_bytes, sync=False, metasync=False)

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        with self.base.begin(write=True) as transaction:
            for one, page in zip(keys, pages, strict=True):
                transaction.put(one, page)

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        with self.base.begin(buffers=True) as transaction:
            for one, page in zip(keys, pages, strict=True):
                page[:] = transaction.get(one)

    def close(self) -> None:
        self.base.close()


@contextmanager
def stores(folder: Path, value_bytes: int, places: int) -> Iterator[dict[str, Store]]:
    """Every contestant that can run here."""
    made: dict[str, Store] = {
        "raw": Raw(folder, value_bytes, places),
        "file": Ours(folder, value_bytes, places, sealed=False),
        "sealed": Ours(folder, value_bytes, places, sealed=True),
        "sqlite": Sqlite(folder),
    }
    if find_spec("lmdb"):
        made["lmdb"] = Lmdb(folder, value_bytes, places)
    try:
        yield made
    finally:
        for store in made.values():
            store.close()


def measure(folder: Path, page_bytes: int, rounds: int, source_bytes: int) -> list[dict[str, Any]]:
    """Rows of one page size."""
    value_bytes = page_bytes + TRAILER_BYTES
    count = max(1, min(BATCH_BYTES, source_bytes // 4) // page_bytes)
    batches = source_bytes // (count * page_bytes)
    places = 2 * batches * count
    noise, choose = np.random.default_rng(1), random.Random(1)
    source = [memoryview(bytearray(noise.bytes(value_bytes))) for _ in range(batches * count)]
    evicting = {"file", "sealed"}
    scattered = np.random.default_rng(2).permutation(places).tolist()

    def batch(name: str, begin: int) -> list[bytes]:
        """New keys for who evicts, the same again for others."""
        numbers = range(begin, begin + count)
        if name == "raw":
            return [scattered[number % places].to_bytes(32, "little") for number in numbers]
        return [key(number if name in evicting else number % places) for number in numbers]

    with stores(folder, value_bytes, places) as made:
        times: dict[tuple[str, str], list[int]] = {(op, name): [] for op in ("put", "get") for name in made}
        turn = dict.fromkeys(made, 0)
        right = dict.fromkeys(made, True)
        for name, store in made.items():  # fills the tables
            for begin in range(0, (2 if name in evicting else 1) * places, count):
                store.put(batch(name, begin), source[begin % len(source) :][:count])
        for number in range(rounds):
            for name in choose.sample(list(made), len(made)):
                keys = batch(name, 2 * places + turn[name] * count)
                mine = (number * len(made) + list(made).index(name)) % batches
                pages = source[mine * count : (mine + 1) * count]
                turn[name] += 1
                times["put", name].append(timed(lambda: made[name].put(keys, pages)))  # noqa: B023
                before = sha256(b"".join(page[:-TRAILER_BYTES] for page in pages)).digest()
                into = source[(mine + batches // 2) % batches * count :][:count]
                times["get", name].append(timed(lambda: made[name].get(keys, into)))  # noqa: B023
                right[name] &= sha256(b"".join(page[:-TRAILER_BYTES] for page in into)).digest() == before
    rows = []
    for (operation, name), taken in times.items():
        against = times[operation, "raw"]
        ratios = [theirs / ours for theirs, ours in zip(against, taken, strict=True)]
        median = statistics.median(taken)
        rows.append(
            {
                "page_bytes": page_bytes,
                "operation": operation,
                "store": name,
                "us_per_page": round(median / count / 1e3, 2),
                "gb_per_s": round(count * page_bytes / median, 3),
                "ratio": round(statistics.median(against) / median, 4),
                "ratio_min": round(min(ratios), 4),
                "ratio_max": round(max(ratios), 4),
                "rounds": rounds,
                "load": round(os.getloadavg()[0], 2),
                "right": right[name],
            }
        )
        print(line_of(rows[-1]), flush=True)
    return rows


def timed(run: Callable[[], None]) -> int:
    """Nanoseconds that this thread computed."""
    start = thread_time_ns()
    run()
    return thread_time_ns() - start


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['page_bytes'] >> 10:>4} KiB  {row['operation']:<10}{row['store']:<8}{row['gb_per_s']:>7.2f}"
        f"{row['us_per_page']:>9.1f}{row['ratio']:>8.2f}{row['ratio_min']:>6.2f}{row['ratio_max']:>6.2f}{row['load']:>6.1f}"
        f"  {'yes' if row['right'] else 'WRONG'}"
    )


def queries(folder: Path, pages: int, rounds: int) -> dict[str, float]:
    """Milliseconds to open a directory whose index holds so many pages, and microseconds a key that `exists` takes."""
    pool = StoredPool(name="full", format_digest=bytes(32), value_bytes=(64 << 10) + TRAILER_BYTES)
    capacity = 8192 + int(1.5 * pages) * (round_up(pool.value_bytes) + 64)
    shape = shape_within(capacity, pool)
    path = folder / f"{bytes(32).hex()}.v2.index"
    path.write_bytes(index_of(shape, pool, pages))
    opened, asked = [], {"present": list[float](), "absent": list[float]()}
    choose = random.Random(1)
    for _ in range(rounds):
        start = perf_counter_ns()
        engine = FileStorage([pool], folder, capacity)
        opened.append((perf_counter_ns() - start) / 1e6)
        for name, begin in (("present", 0), ("absent", pages)):
            some = [key(begin + number) for number in choose.sample(range(pages), min(2000, pages))]
            start = thread_time_ns()
            found = engine.exists("full", some).mean()
            asked[name].append((thread_time_ns() - start) / len(some) / 1e3)
            assert found > 0.9 if begin == 0 else found == 0
        engine.close()
    return {"open_ms": statistics.median(opened)} | {f"exists_{name}_us": statistics.median(t) for name, t in asked.items()}


def index_of(shape: TableShape, pool: StoredPool, pages: int) -> bytearray:
    """An index file with so many pages in it, but those for which their bucket has no room."""
    made = bytearray(shape.header(pool.format_digest)) + bytearray(shape.slots * 64)
    fill = [0] * shape.buckets
    for number in range(pages):
        bucket = int.from_bytes(key(number)[:8], "little") % shape.buckets
        if fill[bucket] < shape.ways:
            slot = bucket * shape.ways + fill[bucket]
            fill[bucket] += 1
            made[HEADER_BYTES + slot * 64 : HEADER_BYTES + slot * 64 + 64] = entry(key(number), number, slot, 1)
    return made


def hashing_ms(tokens: int, rounds: int) -> float:
    """What the keys of one prompt cost, at 64 tokens a page."""
    prompt = Key(np.random.default_rng(0).integers(0, 200_000, tokens))
    chain = KeyChain(page_size=64, weights_version="1")
    return statistics.median(timed(lambda: void(chain.digests(prompt))) for _ in range(rounds)) / 1e6


def void(_: object) -> None:
    """A result that nobody wants."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if bytes did not come back as they were put."""
    parser = options_of("storage", __doc__, quick="few pages and rounds", rounds=60)
    parser.add_argument("--folder", type=Path, help="where to put the files; the system's folder for such by default")
    options = parser.parse_args(arguments)
    rounds = 3 if options.quick else options.rounds
    where = told(HEAD)
    rows = []
    for page_bytes in PAGE_BYTES[:2] if options.quick else PAGE_BYTES:
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            rows += measure(folder, page_bytes, rounds, (4 << 20) if options.quick else SOURCE_BYTES)
        finally:
            shutil.rmtree(folder)
    pages = 1000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        found = queries(Path(name), pages, min(rounds, 9))
    found["hash_128k_tokens_ms"] = hashing_ms(128 * 1024, min(rounds, 9))
    print(f"\nwith {pages} pages in the index: open {found['open_ms']:.2f} ms")
    print(
        f"exists: {found['exists_present_us']:.2f} us a key that is there, {found['exists_absent_us']:.2f} us one that is not"
    )
    print(f"keys of 128k tokens, 64 a page: {found['hash_128k_tokens_ms']:.2f} ms")
    return written([*rows, found], where, options.json)


if __name__ == "__main__":
    sys.exit(main())
