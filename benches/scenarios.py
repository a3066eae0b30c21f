"""The single operations: what is set up, what one sample does, and which question it answers.

A scenario drives any Subject. All randomness comes from the case's fixed seed through numpy's frozen legacy generator, so
that every contestant gets the same keys in the same order, and every answer goes into a digest.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
from abc import ABC, abstractmethod
from array import array
from pathlib import Path
from time import perf_counter_ns
from typing import ClassVar
from zlib import crc32

import numpy as np

from benches.case import Case
from benches.subject import Subject, Tokens

FIRST_BRANCH_TOKEN = 200_000
FIRST_MISS_TOKEN = 400_000
FIRST_LEAF_TOKEN = 2_000_000


class Scenario(ABC):
    """One question, one subject, set up and ready to be sampled.

    Attributes:
        question, silent_on: what it answers and what it does not.
        unit: of a sample, `ns` or `bytes`.
        warm_up: samples thrown away first.
        repeats: whether each round starts anew and takes the same samples again; the fastest of each counts then.
        parts_ns: for requests, the times of each part of every sample.
    """

    question: ClassVar[str]
    silent_on: ClassVar[str]
    unit: ClassVar[str] = "ns"
    warm_up: ClassVar[int] = 5
    repeats: ClassVar[bool] = False

    def __init__(self, subject: Subject, case: Case, leaves: Leaves | None = None) -> None:
        """Set up from nothing, or in the tree that an earlier case of the series left with these `leaves`."""
        self.subject = subject
        self.case = case
        self.random = self.new_random()
        self.parts_ns: dict[str, list[int]] = {}
        self._scratch = array("q")
        self._digest = hashlib.blake2b(digest_size=6)
        if leaves is None:
            subject.open(case.components, case.page_size, None)
            leaves = Leaves(subject, case.page_size)
        self.leaves = leaves
        self.fill_up()
        self.set_up()

    def new_random(self) -> np.random.RandomState:
        """The case's random numbers, from the first on."""
        return np.random.RandomState([self.case.seed, self.case.tree_nodes, crc32(type(self).__name__.encode())])

    def set_up(self) -> None:  # noqa: B027
        """What stands before the first sample."""

    def begin_round(self) -> None:  # noqa: B027
        """What comes before a round's samples."""

    @abstractmethod
    def sample(self) -> int:
        """Do it once; returns nanoseconds."""

    def fill_up(self) -> None:
        """Make the tree as large as the case says: leaves of one page under a shared prefix."""
        self.leaves.grow(self.case.tree_nodes)

    def answer(self, value: int) -> None:
        """An answer that every contestant must share."""
        self._digest.update(value.to_bytes(8, "little", signed=True))

    def digest(self) -> str:
        """Of all answers so far."""
        return self._digest.hexdigest()

    def facts(self) -> dict[str, float]:
        """What else is worth knowing about the run."""
        return {}

    def tokens(self, count: int, low: int = 0, high: int = 150_000) -> Tokens:
        """Random tokens."""
        return array("q", self.random.randint(low, high, count, dtype=np.int64).tobytes())

    def fresh(self, key: Tokens) -> Tokens:
        """The key's tokens written anew into one array, hot as from a tokenizer. A new array each time would have the
        allocator return megabytes to the system and fault them in again within the time of whoever allocates next.
        """
        if len(self._scratch) != len(key):
            self._scratch = key[:]
        self._scratch[:] = key
        return self._scratch

    def path(self, length: int, depth: int) -> Tokens:
        """Insert a path of `depth` nodes that spells `length` tokens, a branch of one page at every inner cut."""
        tokens, page, known = self.tokens(length), self.case.page_size, 0
        for step in range(1, depth + 1):
            cut = length * step // depth // page * page
            if cut == known:
                continue
            self.subject.insert(tokens[:cut], known)
            if step < depth:
                self.subject.insert(tokens[:cut] + self.tokens(page, FIRST_BRANCH_TOKEN, FIRST_BRANCH_TOKEN + 100_000), cut)
            known = cut
        return tokens


class Leaves:
    """Filler: any number of leaves of one page each under one prefix of at least 64 tokens."""

    def __init__(self, subject: Subject, page_size: int) -> None:
        self._subject = subject
        self._page_size = page_size
        self._prefix = array("q", range(900_000, 900_000 + max(64, page_size)))
        self.count = 0

    def grow(self, count: int) -> None:
        """Have `count` leaves. The cyclic collector rests meanwhile: a million nodes are filler here, not the question."""
        gc.disable()
        if count and not self.count:
            self._subject.insert(self._prefix, 0)
        while self.count < count:
            self._subject.insert(self.leaf(self.count), len(self._prefix))
            self.count += 1
        gc.enable()

    def leaf(self, index: int) -> Tokens:
        """The key of one leaf."""
        first = FIRST_LEAF_TOKEN + index * self._page_size
        return self._prefix + array("q", range(first, first + self._page_size))


class MatchPages(Scenario):
    """Match a key that is wholly cached, and hand out the page ids."""

    question = "What does finding a cached prompt cost, page ids in hand (several prompts in turn)?"
    silent_on = "a cold processor cache, partial hits, threads"
    with_pages: ClassVar[bool] = True

    def set_up(self) -> None:
        """Several paths, so that not always the same bytes are hot."""
        self.keys = [self.path(self.case.length, self.case.depth) for _ in range(self.case.paths)]
        self.turn = 0

    def sample(self) -> int:
        """One match of the next prompt."""
        key = self.fresh(self.keys[self.turn % len(self.keys)])
        self.turn += 1
        spent, length = self.subject.match(key, with_pages=self.with_pages)
        self.answer(length)
        return spent


class Match(MatchPages):
    """Match only."""

    question = "What does finding a cached prompt cost, without the page ids?"
    with_pages = False


class MatchFloor(Scenario):
    """No cache at all: the three passes over the bytes that a match with page ids makes."""

    question = "What do copying a key's bytes, comparing them and copying the page ids out cost by themselves?"
    silent_on = "a cache; it is what `match_pages` can be held against"

    def set_up(self) -> None:
        """What would be cached."""
        self.key = self.tokens(self.case.length)
        self.edge = self.key.tobytes()
        self.ids = np.arange(self.case.length // self.case.page_size)

    def sample(self) -> int:
        """Copy, compare, copy."""
        key = self.fresh(self.key)
        start = perf_counter_ns()
        same = key.tobytes() == self.edge
        ids = self.ids.copy()
        spent = perf_counter_ns() - start
        self.answer(same * ids.size)
        return spent


class MatchMiss(Scenario):
    """Match a key whose first page is unknown."""

    question = "What does a prompt cost that shares nothing with the cache?"
    silent_on = "misses after a long common prefix"

    def set_up(self) -> None:
        """A path, so that the tree is not empty."""
        self.path(self.case.length, self.case.depth)
        self.key = self.tokens(self.case.length, FIRST_MISS_TOKEN, FIRST_MISS_TOKEN + 100_000)

    def sample(self) -> int:
        """One match of nothing."""
        spent, length = self.subject.match(self.fresh(self.key), with_pages=False)
        self.answer(length)
        return spent


class Insert(Scenario):
    """Insert 1,024 new tokens under a cached prefix."""

    question = "What does putting 1,024 new tokens under a cached prefix cost?"
    silent_on = "splits, duplicates, filling tombstones"
    new_tokens = 1024

    def set_up(self) -> None:
        """The prefix, and an array that holds it with a tail to be changed."""
        self.key = self.path(self.case.length, self.case.depth) + array("q", bytes(8 * self.new_tokens))
        self.first = 1_000_000

    def sample(self) -> int:
        """One more branch at the prefix's end."""
        self.first += 2000
        self.key[self.case.length :] = array("q", range(self.first, self.first + self.new_tokens))
        spent, matched = self.subject.insert(self.key, self.case.length)
        self.answer(matched)
        return spent


class LockUnlock(Scenario):
    """Lock a path and unlock it."""

    question = "What does pinning an unlocked prefix and letting go of it cost?"
    silent_on = "a lock that must split a node"

    def set_up(self) -> None:
        """The path."""
        key = self.path(self.case.length, self.case.depth)
        self.handle = self.subject.find(key)

    def sample(self) -> int:
        """One pair."""
        return self.subject.lock_unlock(self.handle)


class LockUnlockHeld(LockUnlock):
    """The same while another lock holds the path."""

    question = "What does a second lock on a path that is locked already cost?"

    def set_up(self) -> None:
        """Lock it once for good."""
        super().set_up()
        self.subject.hold(self.handle)


class Evict(Scenario):
    """Free one page of full KV in a tree of many leaves."""

    question = "What does one victim cost in a tree of many leaves?"
    silent_on = "order after many touches; what a locked path costs"
    pool: ClassVar[str] = "full"

    def sample(self) -> int:
        """One victim."""
        count = 1 if self.pool == "mamba" else self.case.page_size
        spent, freed = self.subject.evict(self.pool, count)
        self.answer(freed)
        return spent

    def digest(self) -> str:
        """Which of the first leaves are still there tells who the victims were. Not in a series: to ask is to touch."""
        if self.case.series:
            return super().digest()
        survivors = hashlib.blake2b(super().digest().encode(), digest_size=6)
        for index in range(min(self.leaves.count, 200)):
            _, length = self.subject.match(self.leaves.leaf(index), with_pages=False)
            survivors.update(length.to_bytes(8, "little"))
        return survivors.hexdigest()


class EvictSwa(Evict):
    """Free one page of window KV."""

    question = "What does one victim of the window's pool cost in a tree of many leaves?"
    pool = "swa"


class EvictMamba(Evict):
    """Free one recurrent state."""

    question = "What does one state victim cost in a tree of many leaves?"
    pool = "mamba"


FIRST_LEAVES = 100


class Memory(Scenario):
    """Grow a tree of leaves and look at the resident set before and after."""

    question = "How many bytes of the process does a node take, its edge, values, page ids and order entries included?"
    silent_on = "long edges, and memory that was free in the process before"
    unit = "bytes"
    warm_up = 0

    def fill_up(self) -> None:
        """A few leaves, so that what is made once is there before the first look."""
        self.leaves.grow(FIRST_LEAVES)

    def sample(self) -> int:
        """Bytes a node, rounded."""
        before = resident_bytes()
        self.leaves.grow(FIRST_LEAVES + self.case.tree_nodes)
        return round((resident_bytes() - before) / self.case.tree_nodes)


def resident_bytes() -> int:
    """The resident set of this process, after giving back what can be given back; 0 where /proc is not there."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
