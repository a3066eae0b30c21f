"""A directory of files that engines of several formats, capacities and ranks open, use, leave and clear, in any order.

Whatever they do, no value is wrong, the disk use stays within the largest bound of those that write, what one engine stores
stays while there is room, one engine's `clear` touches no other's values, and whatever goes to keep the bound is counted and
logged.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from stored_pages import Clock, blanks, body, keys, pages, pool

from unified_tree.controllers.storage import FileLimits, FileStorage, Outcome, StoredPool
from unified_tree.terms.errors import ConfigurationError

SLOT_BYTES = 8192 + 64
FORMATS = (pool(4160, "bf16"), pool(2112, "fp8"), pool(4160, "rank 1"), pool(12_352, "other model"))
NUMBERS = range(60)


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


class Directory:
    """A directory and the engines that are open in it.

    Attributes:
        stored: by format the numbers of the values that an engine said to have stored.
        smallest_bytes, largest_bytes: the bounds of those that were opened so far.
        most_needed_bytes: for all that was stored, when that was most.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.slots = self.rng.choice([8, 40, 200, 1000])
        self.loyalty = self.rng.choice([0.5, 0.9, 1.0])
        self.open: list[tuple[StoredPool, FileStorage, int]] = []
        self.stored: dict[str, set[int]] = {one.name: set() for one in FORMATS}
        self.freed: dict[str, int] = {}
        self.smallest_bytes, self.largest_bytes = 1 << 40, 0
        self.most_needed_bytes = 0

    @property
    def needed_bytes(self) -> int:
        """What all values that were stored take, at most, each with a block of an index, and a batch more."""
        return 12 * 20_480 + sum(
            3 * 4096 + len(self.stored[one.name]) * (-(-one.value_bytes // 4096) * 4096 + 4096) for one in FORMATS
        )

    def enter(self) -> None:
        one = self.rng.choice(FORMATS)
        slots = self.slots if self.rng.random() < self.loyalty else self.rng.choice([4, 20, 100, 400, 2000])
        capacity = 16_384 + slots * SLOT_BYTES
        before, refusal = disk_bytes(self.path), ""
        try:
            limits = FileLimits(open_wait_s=0.01, write_wait_s=0.0, refresh_s=self.rng.choice([0.0, 1.0]))
            engine = FileStorage([one], self.path, capacity, clock_ns=self.clock, limits=limits)
        except ConfigurationError as error:
            refusal = str(error)
        if refusal:
            assert "give both the same" in refusal or "more than the capacity" in refusal
            assert disk_bytes(self.path) <= before + 3 * 4096
            return
        self.open.append((one, engine, capacity))
        self.smallest_bytes = min(self.smallest_bytes, capacity)
        self.largest_bytes = max(self.largest_bytes, capacity)
        self.check_kept(one, engine)

    def check_kept(self, one: StoredPool, engine: FileStorage) -> None:
        """While everything fits into the smallest bound there ever was, nothing is lost."""
        numbers = sorted(self.stored[one.name])
        into = blanks(len(numbers), one.value_bytes)
        outcomes = engine.get(one.name, keys(numbers), into)
        for number, got, outcome in zip(numbers, into, outcomes, strict=True):
            assert outcome in (Outcome.DONE, Outcome.MISSING)
            assert outcome is Outcome.MISSING or got == body(number, one.value_bytes)
        if Outcome.MISSING in outcomes:
            assert self.most_needed_bytes > self.smallest_bytes, "there was room for all"

    def leave(self) -> None:
        if self.open:
            one, engine, _ = self.open.pop(self.rng.randrange(len(self.open)))
            self.freed[one.name] = self.freed.get(one.name, 0) + engine.stats().freed_bytes
            engine.close()

    def put(self) -> None:
        if not self.open:
            return
        one, engine, _ = self.rng.choice(self.open)
        numbers = self.rng.sample(NUMBERS, self.rng.randrange(1, 12))
        self.clock.pass_s(self.rng.choice([0.1, 5.0]))
        outcomes = engine.put(one.name, keys(numbers), pages(numbers, one.value_bytes))
        kept = [n for n, outcome in zip(numbers, outcomes, strict=True) if outcome in (Outcome.DONE, Outcome.PRESENT)]
        self.stored[one.name].update(kept)
        self.most_needed_bytes = max(self.most_needed_bytes, self.needed_bytes)

    def clear(self) -> None:
        if self.open:
            one, engine, _ = self.rng.choice(self.open)
            others = [(other, another) for other, another, _ in self.open if other is not one]
            found = [another.exists(other.name, keys(NUMBERS)).sum() for other, another in others]
            engine.clear()
            self.stored[one.name].clear()
            assert [another.exists(other.name, keys(NUMBERS)).sum() for other, another in others] == found

    def read(self) -> None:
        if self.open:
            one, engine, _ = self.rng.choice(self.open)
            self.check_kept(one, engine)


def run(path: Path, seed: int, steps: int) -> int:
    """One history; how many bytes were given up."""
    directory = Directory(path, seed)
    for _ in range(steps):
        act = directory.rng.choices(["enter", "leave", "put", "clear", "read"], [3, 2, 8, 0.3, 2])[0]
        getattr(directory, act)()
        notes_bytes = 2 * 4096 * len(FORMATS)
        assert disk_bytes(path) <= directory.largest_bytes + notes_bytes
    while directory.open:
        directory.leave()
    return sum(directory.freed.values())


def test_many_engines_in_one_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "unified_tree.storage")
    freed = 0
    for seed in range(25):
        caplog.clear()
        gone = run(tmp_path / str(seed), seed, 60)
        said = any("is deleted" in text or "given up" in text or "made anew" in text for text in caplog.messages)
        assert said or not gone, "what goes is said"
        freed += gone
    assert freed, "something had to go at times"


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_many_more(part: int, tmp_path: Path) -> None:
    for seed in range(1000 * (part + 1), 1000 * (part + 1) + 300):
        run(tmp_path / str(seed), seed, 150)
