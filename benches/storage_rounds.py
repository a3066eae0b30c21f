"""The cases of the store benches: contestants store and read the same pages in turns; and the table of the results."""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from unified_tree.controllers.storage import CheckedStorage, Outcome, StorageEngine, StoredPool

POOL_NAME = "pages"
CASES = ((64 << 10, 16), (256 << 10, 16), (1 << 20, 16), (2 << 20, 16), (256 << 10, 128), (1 << 20, 64))
"""Page bytes and batch."""
QUICK_CASES = ((4 << 10, 4), (64 << 10, 4))
HEAD = (
    f"{'contestant':<22}{'page':>9}{'batch':>7}{'put GiB/s':>11}{'of bare':>9}{'get GiB/s':>11}{'of bare':>9}"
    f"{'load':>6}  answers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """What stores pages under 32-byte keys, reads them, and forgets them; a wrong outcome raises."""

    name: str
    put: Callable[[Sequence[bytes], Sequence[memoryview]], None]
    get: Callable[[Sequence[bytes], Sequence[memoryview]], None]
    remove: Callable[[Sequence[bytes]], None]


def pool_of(page_bytes: int) -> StoredPool:
    """The pool whose values are measured."""
    return StoredPool(name=POOL_NAME, format_digest=hashlib.sha256(str(page_bytes).encode()).digest(), value_bytes=page_bytes)


def engine_contestants(engine: StorageEngine) -> list[Contestant]:
    """The engine as it is, and behind the checksums."""

    def checked(outcomes: list[Outcome]) -> None:
        if set(outcomes) != {Outcome.DONE}:
            raise RuntimeError(f"not everything was done: {outcomes}")

    sealing = CheckedStorage(engine)

    def remove(keys: Sequence[bytes]) -> None:
        engine.remove(POOL_NAME, keys)

    return [
        Contestant(
            name="engine",
            put=lambda keys, pages: checked(engine.put(POOL_NAME, keys, pages)),
            get=lambda keys, pages: checked(engine.get(POOL_NAME, keys, pages)),
            remove=remove,
        ),
        Contestant(
            name="engine, checksum on",
            put=lambda keys, pages: checked(sealing.put(POOL_NAME, keys, pages)),
            get=lambda keys, pages: checked(sealing.get(POOL_NAME, keys, pages)),
            remove=remove,
        ),
    ]


class Pages:
    """Twice `batch` pages in one piece of memory: the first half is stored, and read into the second."""

    def __init__(self, page_bytes: int, batch: int) -> None:
        self.page_bytes, self.batch = page_bytes, batch
        self.memory = memoryview(bytearray(2 * batch * page_bytes))
        views = [self.memory[start : start + page_bytes] for start in range(0, self.memory.nbytes, page_bytes)]
        self.stored, self.read = views[:batch], views[batch:]
        np.frombuffer(self.memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, self.memory.nbytes, np.uint8)

    def digests(self) -> tuple[str, str]:
        """Of what was stored, and of what was read."""
        half = self.memory.nbytes // 2
        return hashlib.sha256(self.memory[:half]).hexdigest()[:12], hashlib.sha256(self.memory[half:]).hexdigest()[:12]


def measure(contestants: Sequence[Contestant], pages: Pages, rounds: int) -> list[dict[str, Any]]:
    """Rows, a contestant each, the first being the bare client; nanoseconds of rounds in turns, after a warm-up."""
    times: dict[str, tuple[list[int], list[int]]] = {one.name: ([], []) for one in contestants}
    answers: dict[str, tuple[str, str]] = {}
    for turn in range(-1, rounds):
        for one in contestants if turn % 2 == 0 else reversed(contestants):
            seed = f"{one.name} {turn} {id(pages)}"
            keys = [hashlib.sha256(f"{seed} {index}".encode()).digest() for index in range(len(pages.stored))]
            np.frombuffer(pages.memory, np.uint8)[pages.memory.nbytes // 2 :] = 0
            start = perf_counter_ns()
            one.put(keys, pages.stored)
            middle = perf_counter_ns()
            one.get(keys, pages.read)
            end = perf_counter_ns()
            answers[one.name] = pages.digests()
            one.remove(keys)
            if turn >= 0:
                times[one.name][0].append(middle - start)
                times[one.name][1].append(end - middle)
    return [_row(one.name, pages, times, contestants[0].name, answers[one.name]) for one in contestants]


def measure_cases(
    options: argparse.Namespace, contestants: Callable[[Pages], AbstractContextManager[Sequence[Contestant]]]
) -> list[dict[str, Any]]:
    """Rows of all cases, or with `--quick` of two small ones, a line printed each.

    Args:
        contestants: opens those of some pages.
    """
    found = []
    for page_bytes, batch in QUICK_CASES if options.quick else CASES:
        pages = Pages(page_bytes, batch)
        turns = (2 if options.quick else options.rounds) * (1 if page_bytes * batch > 16 << 20 else 3)
        with contestants(pages) as opened:
            for row in measure(opened, pages, turns):
                found.append(row)
                print(line_of(row), flush=True)
    return found


def _row(
    name: str, pages: Pages, times: dict[str, tuple[list[int], list[int]]], bare: str, answers: tuple[str, str]
) -> dict[str, Any]:
    row: dict[str, Any] = {"contestant": name, "page_bytes": pages.stored[0].nbytes, "batch": len(pages.stored)}
    moved = row["page_bytes"] * row["batch"] / (1 << 30)
    for index, operation in enumerate(("put", "get")):
        median, bares = statistics.median(times[name][index]), times[bare][index]
        ratios = [theirs / ours for ours, theirs in zip(times[name][index], bares, strict=True)]
        row |= {
            f"{operation}_gib_per_s": round(moved / median * 1e9, 3),
            f"{operation}_ratio": round(statistics.median(bares) / median, 3),
            f"{operation}_ratio_min": round(min(ratios), 3),
            f"{operation}_ratio_max": round(max(ratios), 3),
        }
    return row | {"hash": answers[1], "right": answers[0] == answers[1], "load": round(os.getloadavg()[0], 2)}


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['contestant']:<22}{row['page_bytes']:>9}{row['batch']:>7}{row['put_gib_per_s']:>11.2f}{row['put_ratio']:>9.2f}"
        f"{row['get_gib_per_s']:>11.2f}{row['get_ratio']:>9.2f}{row['load']:>6.1f}  "
        f"{row['hash']}{'' if row['right'] else ' WRONG'}"
    )
