"""The metadata service against a naive copy of itself, over random questions, clocks, and kills.

The copy has its laws in plain sets and lists, and a file whose pages remember which key was written to them last.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from killed_service import LOG, Files, laid_out, left_behind

from unified_tree.controllers.storage.hf3fs.metadata.metadata_state import MetadataState
from unified_tree.controllers.storage.hf3fs.metadata.page_table import Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase
from unified_tree.controllers.storage.hf3fs.metadata_wire import (
    BUSY,
    FULL,
    GONE,
    NOWHERE,
    PRESENT,
    UNKNOWN,
    UNWRITTEN,
    WRITTEN,
)

LEASE_S, ASIDE_S = 10.0, 15.0
RANK = "r0"
SHAPES = {"full": Shape("f", 4096, 5), "swa": Shape("s", 512, 4)}
KEYS = [sha256(bytes([number])).digest() for number in range(14)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Reading:
    namespace: str
    pages: dict[bytes, int]
    until: float


@dataclass
class Writing:
    """A writer: it may write each page of its own until the lease ends, and one that vanished a good while longer."""

    namespace: str
    pages: dict[bytes, int]
    until: float
    may_write_until: float
    is_known: bool = True


@dataclass
class Naive:
    """One namespace as it should be."""

    page_count: int
    held: dict[bytes, int] = field(default_factory=dict)
    aside: list[tuple[float, int]] = field(default_factory=list)
    content: dict[int, bytes] = field(default_factory=dict)


class MetadataWorld:
    """A service, a naive copy of it, and its clients, in virtual time. Every step checks every answer.

    Args:
        path: of the state.
        seed: decides all.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.clock = Clock()
        self.naive = {name: Naive(shape.page_count) for name, shape in SHAPES.items()}
        self.readings: dict[int, Reading] = {}
        self.writings: dict[int, Writing] = {}
        self.quiet_until = 0.0
        self.epoch = 0
        self.steps = 0
        self.evictions = self.kills = self.checkpoints = 0
        self._start()

    def step(self) -> None:
        """One random thing happens."""
        self.steps += 1
        choices = (
            (self.put, 9),
            (self.reserve, 2),
            (self.write, 5),
            (self.confirm, 3),
            (self.read, 7),
            (self.look, 3),
            (self.end_reading, 3),
            (self.delete, 2),
            (self.clear, 0.1),
            (self.pass_time, 1.5),
            (self.restart, 0.1),
            (self.kill, 0.2),
            (self.kill_in_a_change, 0.4),
            (self.checkpoint, 1),
        )
        [what] = self.random.choices([one for one, _ in choices], [weight for _, weight in choices])
        what()
        self._expire()
        self.check()

    def checkpoint(self) -> None:
        """What was committed goes from the log to the database."""
        self.state.checkpoint()
        self.checkpoints += 1

    def some_keys(self) -> list[bytes]:
        return self.random.sample(KEYS, self.random.randrange(1, 5))

    def some_namespace(self) -> str:
        return self.random.choice(list(SHAPES))

    def look(self) -> None:
        name, keys = self.some_namespace(), self.some_keys()
        self._expire()
        self._found(name, keys, self.state.lookup(RANK, self.epoch, name, keys, []))

    def read(self) -> None:
        name, keys = self.some_namespace(), self.some_keys()
        self._expire()
        lease, pages = self.state.read(RANK, self.epoch, name, keys, [])
        self._found(name, keys, pages)
        found = {key: page for key, page in zip(keys, pages, strict=True) if page >= 0}
        assert bool(lease) == bool(found)
        if lease:
            self.readings[lease] = Reading(name, found, self.clock.now + LEASE_S)

    def end_reading(self) -> None:
        if self.readings:
            lease = self.random.choice(list(self.readings))
            del self.readings[lease]
            self.state.lookup(RANK, self.epoch, self.some_namespace(), [], [lease, 12345])

    def put(self) -> None:
        """A writer that does all that it should, at once."""
        lease = self.reserve()
        if lease:
            writing = self.writings[lease]
            self.naive[writing.namespace].content.update({page: key for key, page in writing.pages.items()})
            self.confirm_of(lease, list(writing.pages))

    def reserve(self) -> int:
        name, keys = self.some_namespace(), self.some_keys()
        self._expire()
        expected = self._expected(name, keys)
        lease, answers = self.state.reserve(RANK, self.epoch, name, keys, [])
        given = {}
        for key, answer, wanted in zip(keys, answers, expected, strict=True):
            if isinstance(wanted, set):
                assert answer in wanted, "a page that is somebody's"
                wanted.discard(answer)
                for other in expected:
                    if isinstance(other, set):
                        other.discard(answer)
            else:
                assert answer == wanted
            if answer >= 0:
                given[key] = answer
        assert bool(lease) == bool(given)
        if lease:
            until = self.clock.now + LEASE_S
            self.writings[lease] = Writing(name, given, until, until + ASIDE_S)
        return lease

    def write(self) -> None:
        """Some writer writes a page, maybe after its lease."""
        able = [w for w in self.writings.values() if w.pages and self.clock.now < w.may_write_until]
        if able:
            writing = self.random.choice(able)
            key, page = self.random.choice(list(writing.pages.items()))
            self.naive[writing.namespace].content[page] = key

    def confirm(self) -> None:
        if not self.writings:
            return
        lease = self.random.choice(list(self.writings))
        writing = self.writings[lease]
        self.confirm_of(lease, self.random.sample(list(writing.pages), self.random.randrange(len(writing.pages) + 1)))

    def confirm_of(self, lease: int, keys: list[bytes]) -> None:
        writing = self.writings[lease]
        naive = self.naive[writing.namespace]
        flags = bytes(
            WRITTEN if naive.content.get(writing.pages[key]) == key else self.random.choice((UNWRITTEN, UNKNOWN))
            for key in keys
        )
        self._expire()
        alive = writing.is_known and self.clock.now < writing.until
        answers = self.state.confirm(RANK, self.epoch, writing.namespace, lease, keys, flags, [])
        for key, flag, answer in zip(keys, flags, answers, strict=True):
            assert answer == (PRESENT if alive and flag == WRITTEN else GONE)
            page = writing.pages[key]
            if not alive:
                continue
            if flag == WRITTEN:
                naive.held[key] = writing.pages.pop(key)
            elif flag == UNWRITTEN:
                del writing.pages[key]
            else:
                late = Writing(writing.namespace, {key: page}, 0.0, self.clock.now + ASIDE_S, False)
                self.writings[-len(self.writings) - self.random.getrandbits(40)] = late
                naive.aside.append((late.may_write_until, writing.pages.pop(key)))

    def delete(self) -> None:
        name, keys = self.some_namespace(), self.some_keys()
        if self.readings and self.random.random() < 0.5:  # what is being read
            reading = self.random.choice(list(self.readings.values()))
            name, keys = reading.namespace, list(reading.pages)
        self.state.delete(RANK, self.epoch, name, keys, [])
        for key in keys:
            self.naive[name].held.pop(key, None)

    def clear(self) -> None:
        name = self.some_namespace()
        assert self.state.clear(RANK, self.epoch, name) == len(self.naive[name].held)
        self.naive[name].held.clear()

    def pass_time(self) -> None:
        self.clock.now += self.random.choice((0.1, 0.1, 1.0, 1.0, 4.0, 12.0))

    def restart(self) -> None:
        """The service ends in peace."""
        self._expire()
        is_idle = not self.readings and not any(w.is_known for w in self.writings.values())
        is_idle = is_idle and not any(naive.aside for naive in self.naive.values())
        is_idle = is_idle and self.quiet_until <= self.clock.now
        self.state.close()
        self._start()
        if not is_idle:
            self._forget_leases()

    def kill(self) -> None:
        """The service is killed between two changes."""
        self.kills += 1
        self._restart_with(left_behind(self.path))

    def kill_in_a_change(self) -> None:
        """The service is killed when only part of a change is in the log; nobody got an answer."""
        before = left_behind(self.path)
        name, keys = self.some_namespace(), self.random.sample(KEYS, 10)
        if self.random.random() < 0.3:
            self.state.reserve(RANK, self.epoch, name, keys, [])
        else:
            self.state.delete(RANK, self.epoch, name, keys, [])
        log, old = left_behind(self.path)[LOG], before[LOG]
        if log != old:
            differing = [at for at, (new, was) in enumerate(itertools.zip_longest(log, old)) if new != was]
            written = self.random.choice(differing)  # the change's last byte at the latest is missing
            before[LOG] = log[:written] + old[written:]
        self.kills += 1
        self._restart_with(before)

    def _restart_with(self, files: Files) -> None:
        """Start a service on what another left behind when it was killed."""
        self.state.close()
        shutil.rmtree(self.path)
        laid_out(files, self.path)
        self._start()
        self._forget_leases()

    def check(self) -> None:
        """The laws."""
        self.state.check()
        for name, naive in self.naive.items():
            for key, page in naive.held.items():
                assert naive.content.get(page) == key, f"{name}: a key's page holds something else"
            owned = list(naive.held.values())
            for writing in self._live_writings(name):
                owned += writing.pages.values()
            assert len(owned) == len(set(owned)), f"{name}: a page has two owners"
        for reading in self.readings.values():
            for key, page in reading.pages.items():
                assert self.naive[reading.namespace].content[page] == key, "a page changed under its reader"

    def _expected(self, name: str, keys: Sequence[bytes]) -> list[int | set[int]]:
        naive, found = self.naive[name], []
        writing = {key for one in self._live_writings(name) if one.is_known for key in one.pages}
        free, quiet = self._free(name), self.clock.now < self.quiet_until
        left = len(free)
        for key in keys:
            answer: int | set[int]
            if key in naive.held:
                answer = PRESENT
                naive.held[key] = naive.held.pop(key)
            elif key in writing:
                answer = BUSY
            elif quiet:
                answer = FULL
            elif left:
                answer, left = set(free), left - 1
            else:
                answer = self._victim(name)
            found.append(answer)
        return found

    def _victim(self, name: str) -> int:
        naive = self.naive[name]
        read = {page for one in self.readings.values() if one.namespace == name for page in one.pages.values()}
        for key, page in list(naive.held.items()):
            if page not in read:
                self.evictions += 1
                del naive.held[key]
                return page
            naive.held[key] = naive.held.pop(key)
        return FULL

    def _free(self, name: str) -> set[int]:
        naive = self.naive[name]
        used = {*naive.held.values(), *(page for _, page in naive.aside)}
        used |= {page for one in self._live_writings(name) if one.is_known for page in one.pages.values()}
        used |= {page for one in self.readings.values() if one.namespace == name for page in one.pages.values()}
        return set(range(naive.page_count)) - used

    def _live_writings(self, name: str) -> list[Writing]:
        return [one for one in self.writings.values() if one.namespace == name and self.clock.now < one.until]

    def _found(self, name: str, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        held = self.naive[name].held
        assert list(pages) == [held.get(key, NOWHERE) for key in keys]
        for key in keys:
            if key in held:
                held[key] = held.pop(key)

    def _expire(self) -> None:
        now = self.clock.now
        self.readings = {lease: one for lease, one in self.readings.items() if now < one.until}
        for one in self.writings.values():
            if one.is_known and now >= one.until:
                one.is_known = False
                self.naive[one.namespace].aside += [(one.may_write_until, page) for page in one.pages.values()]
        self.writings = {lease: one for lease, one in self.writings.items() if now < one.may_write_until and one.pages}
        for naive in self.naive.values():
            naive.aside = [(until, page) for until, page in naive.aside if now < until]

    def _forget_leases(self) -> None:
        """The service knows of no lease any more; the clients still use theirs, until they end and no longer."""
        self.quiet_until = self.clock.now + LEASE_S
        for one in self.writings.values():
            one.is_known = False
            one.may_write_until = min(one.may_write_until, self.quiet_until)
        for name, naive in self.naive.items():
            naive.aside = []
            order = dict(self.state.tables(RANK)[name].items())
            assert order == naive.held, "what was answered is there after a kill, and nothing else"
            naive.held = order

    def _start(self) -> None:
        draw = lambda: self.random.getrandbits(62)  # noqa: E731
        self.state = MetadataState(
            StateDatabase(self.path, sync=self.random.random() < 0.3, log_bytes=self.random.choice((1, 1 << 20))),
            lease_s=LEASE_S,
            aside_s=ASIDE_S,
            draw=draw,
            clock=self.clock,
        )
        known, self.epoch = self.epoch, self.state.open(RANK, SHAPES, self.epoch, may_replace=False)
        assert known in (0, self.epoch), "the rank is the same after a restart"

    def end(self) -> None:
        """Nothing is left over: when all leases are over every page is free or held."""
        self.clock.now += LEASE_S + ASIDE_S + LEASE_S
        self._expire()
        self.check()
        for namespace in self.state.stats()["ranks"][RANK].values():
            assert namespace["held"] + namespace["free"] == namespace["pages"]
            assert not namespace["read"] and not namespace["aside"] and not namespace["written"]
        self.state.close()
        shutil.rmtree(self.path)


@pytest.mark.parametrize("seed", range(8))
def test_random_questions(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    world = MetadataWorld(tmp_path / "state", seed)
    for _ in range(500):
        world.step()
    assert world.evictions and world.kills and world.checkpoints
    world.end()
    record_property("operations", world.steps)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_questions(seed: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    world = MetadataWorld(tmp_path / "state", seed)
    for _ in range(3000):
        world.step()
    world.end()
    record_property("operations", world.steps)
