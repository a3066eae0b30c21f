"""Processes on one FileStorage directory, run as a script: writers that are killed, or writers and readers at once.

    file_store_processes.py kill DIRECTORY COUNT SEED       a writer at a time, killed at a random moment, COUNT times
    file_store_processes.py share DIRECTORY ROUNDS SEED     three writers and two readers, so many operations of each

Prints a JSON object of counts. `wrong` counts values that were handed out and are not, to the last byte, what was put.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from stored_pages import blanks, body, keys, pages, pool

from unified_tree.controllers.storage import FileStorage, Outcome

VALUE_BYTES = (1 << 18) + 64
NUMBERS = range(150)
CAPACITY_BYTES = 48 * ((1 << 18) + 8192)
BODIES = [body(number, VALUE_BYTES) for number in NUMBERS]
POOL = pool(VALUE_BYTES)
BATCH = 4


def opened(directory: str) -> FileStorage:
    return FileStorage([POOL], directory, CAPACITY_BYTES)


def check(engine: FileStorage, numbers: list[int], counts: Counter[str], into: list[memoryview]) -> None:
    """Read values and compare every byte."""
    for number, got, outcome in zip(numbers, into, engine.get("full", keys(numbers), into[: len(numbers)]), strict=False):
        counts[outcome.value] += 1
        counts["wrong"] += outcome is Outcome.DONE and got != BODIES[number]


def write(engine: FileStorage, choose: random.Random, ready: list[memoryview], counts: Counter[str]) -> None:
    """One random operation of a writer."""
    numbers = choose.sample(NUMBERS, BATCH)
    if choose.random() < 0.05:
        engine.remove("full", keys(numbers))
    elif choose.random() < 0.005:
        engine.clear()
    else:
        for outcome in engine.put("full", keys(numbers), [ready[number] for number in numbers]):
            counts[f"put {outcome.value}"] += 1


def child(directory: str, seed: int, rounds: int, *, writes: bool, results: int) -> None:
    choose, counts, into = random.Random(seed), Counter[str](), blanks(BATCH, VALUE_BYTES)
    ready = pages(NUMBERS, VALUE_BYTES) if writes else []
    engine = opened(directory)
    for _ in range(rounds):
        if writes:
            write(engine, choose, ready, counts)
        check(engine, choose.sample(NUMBERS, BATCH), counts, into)
    engine.close()
    os.write(results, (json.dumps(counts) + "\n").encode())


def forked(work: Callable[..., object], *arguments: Any, **named: Any) -> int:
    """Call it in a new process."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work(*arguments, **named)
        code = 0
    finally:
        os._exit(code)


def kill(directory: str, count: int, seed: int) -> Counter[str]:
    """Kill writers and verify what each of them left."""
    choose, counts, into = random.Random(seed), Counter[str](), blanks(len(NUMBERS), VALUE_BYTES)
    ready = pages(NUMBERS, VALUE_BYTES)

    def endless(told: int) -> None:
        engine = opened(directory)
        mine, ignored = random.Random(choose.random()), Counter[str]()
        while True:
            write(engine, mine, ready, ignored)
            os.write(told, b"w")

    for _ in range(count):
        choose.random()
        hears, tells = os.pipe()
        process = forked(endless, tells)
        os.close(tells)
        for _ in range(choose.randrange(4)):  # in the middle of opening it, or after some operations
            os.read(hears, 1)
        time.sleep(choose.uniform(0, 0.005))
        os.kill(process, signal.SIGKILL)
        os.close(hears)
        _, status = os.waitpid(process, 0)
        counts["killed"] += os.WIFSIGNALED(status)
        engine = opened(directory)
        check(engine, list(NUMBERS), counts, into)
        engine.close()
    return counts


def share(directory: str, rounds: int, seed: int) -> Counter[str]:
    """Writers and readers at once, each of which verifies what it reads."""
    counts, (reading, writing) = Counter[str](), os.pipe()
    processes = [
        forked(child, directory, seed * 10 + number, rounds, writes=number < 3, results=writing) for number in range(5)
    ]
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            counts.update(json.loads(line))
    for process in processes:
        counts["failed"] += os.waitpid(process, 0)[1] != 0
    return counts


if __name__ == "__main__":
    mode, where, amount, number = sys.argv[1:]
    print(json.dumps(kill(where, int(amount), int(number)) if mode == "kill" else share(where, int(amount), int(number))))
