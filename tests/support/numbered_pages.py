"""Pages that follow from their number, two pools to put them in, and what is done with them over every store that can break.

Writers are processes that are killed; threads call while the store is disturbed. What is read is what was put, or nothing.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import retry_clock
from waiting import PATIENCE_S, wait_until

from unified_tree.controllers.storage import CheckedStorage, Outcome, StorageEngine, StorageRegistry, StoredPool

SIZE = 64 << 10
TRAILER = 64
FULL = StoredPool(name="full", format_digest=sha256(b"full").digest(), value_bytes=SIZE)
MAMBA = StoredPool(name="mamba", format_digest=sha256(b"mamba").digest(), value_bytes=1088)


def keys(*numbers: int) -> list[bytes]:
    return [sha256(str(number).encode()).digest() for number in numbers]


def value(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def filled(*numbers: int) -> list[memoryview]:
    return [memoryview(bytearray(value(number))) for number in numbers]


def empty(count: int) -> list[memoryview]:
    return [memoryview(bytearray(SIZE)) for _ in range(count)]


def put(engine: StorageEngine, *numbers: int) -> list[Outcome]:
    return engine.put("full", keys(*numbers), filled(*numbers))


def got(engine: StorageEngine, *numbers: int) -> list[Outcome]:
    """Read pages; what is DONE is what was put."""
    pages = empty(len(numbers))
    outcomes = engine.get("full", keys(*numbers), pages)
    for number, page, outcome in zip(numbers, pages, outcomes, strict=True):
        assert outcome is not Outcome.DONE or page == value(number)
    return outcomes


def until_put(engine: StorageEngine, *numbers: int) -> None:
    """Put pages again and again until all are there."""

    def is_put() -> bool:
        retry_clock.let_pass(0.05)
        return set(put(engine, *numbers)) <= {Outcome.DONE, Outcome.PRESENT}

    wait_until(is_put, "nothing can be put any more")


def wrong_pages(numbers: Sequence[int], pages: Sequence[memoryview], outcomes: Sequence[Outcome]) -> list[int]:
    """Numbers of sealed pages that are DONE and not what was put."""
    read = zip(numbers, pages, outcomes, strict=True)
    return [number for number, page, out in read if out is Outcome.DONE and page[:-TRAILER] != value(number)[:-TRAILER]]


def check_killed_writers(engine: StorageEngine, name: str, options: Mapping[str, Any], rounds: int) -> set[Outcome]:
    """A process that puts and clears is killed at any moment, again and again; what an engine reads then is never wrong.

    Returns what reading a page came to.
    """
    checked, choose, seen = CheckedStorage(engine), random.Random(3), set[Outcome]()
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    for _ in range(rounds):
        words = [sys.executable, __file__, name, json.dumps(options)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as writer:
            assert writer.stdout is not None
            said = writer.stdout.readline()
            while said and said != b"ready\n":  # a client may say something of its own first
                said = writer.stdout.readline()
            assert said
            time.sleep(choose.random() * 0.2)
            writer.kill()
        pages = empty(40)
        outcomes = checked.get("full", keys(*range(40)), pages)
        assert not wrong_pages(range(40), pages, outcomes)
        seen.update(outcomes)
    assert not checked.quarantined
    return seen


def check_threads(
    engines: Sequence[StorageEngine],
    disturb: Callable[[Callable[[int], None]], None],
    *,
    numbers: int = 30,
    own: Callable[[int], list[memoryview]] = lambda _: empty(4),
) -> None:
    """Four threads put and get four pages at a time while the store is disturbed; what is read is never wrong.

    Args:
        disturb: what happens meanwhile; they end after it. It is given a wait for so many more calls.
        numbers: of different pages.
        own: the memory of a thread, by its number.
    """
    checked, wrong, stop = [CheckedStorage(engine) for engine in engines], list[int](), threading.Event()
    called: list[int] = []

    def work(seed: int) -> None:
        choose, pages, storage = random.Random(seed), own(seed), checked[seed % len(checked)]
        while not stop.is_set():
            chosen = choose.sample(range(numbers), 4)
            if choose.random() < 0.5:
                for number, page in zip(chosen, pages, strict=True):
                    page[:] = value(number)
                storage.put("full", keys(*chosen), pages)
            else:
                wrong.extend(wrong_pages(chosen, pages, storage.get("full", keys(*chosen), pages)))
            storage.engine.stats()
            called.append(seed)

    def go_on(calls: int) -> None:
        end = len(called) + calls
        wait_until(lambda: len(called) >= end, "the threads stand still")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        disturb(go_on)
    finally:
        stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong and not any(storage.quarantined for storage in checked)


def _write_until_killed(name: str, options: Mapping[str, Any]) -> None:
    storage, numbers = CheckedStorage(StorageRegistry().open(name, [FULL], **options)), range(40)
    pages = filled(*numbers)
    print("ready", flush=True)
    while True:
        storage.put("full", keys(*numbers), pages)
        storage.engine.clear()


if __name__ == "__main__":
    _write_until_killed(sys.argv[1], json.loads(sys.argv[2]))
