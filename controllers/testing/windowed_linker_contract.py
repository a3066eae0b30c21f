"""The contract of prefix linkers that carry windows and states: they find only resumable lengths, and copy correct bytes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from unified_tree import Path, Point
from unified_tree.controllers.prefix_linker.prefix_linker import PrefixLinker, Progress, Span
from unified_tree.controllers.testing.checks import LIMIT_S, Check, await_until, expect, expect_equal, run_checks
from unified_tree.controllers.testing.linked_tensors import PAGE, LinkedTensors, hybrid
from unified_tree.controllers.testing.linker_contract import FOUND_AFTER_S, Ids, OpenLinker, tokens_of
from unified_tree.declare.coverage import Trailing

if TYPE_CHECKING:
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool

PAGES = 128
TOKENS = 96
CASES: Mapping[str, tuple[int, int, int]] = {
    "within a chunk": (16, 7, 3),
    "two chunks": (16, 31, 7),
    "a page a chunk": (PAGE, 11, 4),
    "one page": (16, 4, 2),
}
"""Chunk, window and the sharer's window, in tokens."""
_names = (f"windowed-{number}" for number in itertools.count())


def check_windowed_linker(open_linker: Callable[[str], OpenLinker], *, limit_s: float = LIMIT_S) -> None:
    """Check that a prefix linker keeps the contract of `PrefixLinker` for windows and states, too.

    Args:
        open_linker: gives, for a case of `CASES`, what opens one of the case's chunk over pools, on a peer that has none of
            their prefixes.
        limit_s: seconds that a clause may take.

    Raises AssertionError that names every clause that is broken.

    >>> from unified_tree.controllers.prefix_linker import MemoryLinker
    >>> check_windowed_linker(lambda case: lambda pools: MemoryLinker(pools, CASES[case][0], 1000))
    """
    for case in CASES:
        run_checks(windowed_linker_checks(), partial(_rig, open_linker, case), limit_s)


def _rig(open_linker: Callable[[str], OpenLinker], case: str) -> WindowedRig:
    return WindowedRig.over_tensors(open_linker(case), case)


def windowed_linker_checks() -> list[Check]:
    """The single checks: each is called with a new WindowedRig, and closes its linker."""
    bodies = (a_prefix_ends_where_its_window_and_state_are, pages_before_the_beginning_are_not_written, random_prefixes)
    return [Check(body) for body in bodies]


def hybrid_tensors(case: str, *, share: bool = False) -> LinkedTensors:
    """The pools of a case."""
    _, window, sharer = CASES[case]
    components, formats = hybrid(window, sharer)
    return LinkedTensors(PAGES, share=share, components=components, formats=formats)


@dataclass
class WindowedRig:
    """A linker, its pools, and what the peer should have.

    Attributes:
        linker: under check; closed by it.
        tensors: its pools; see `hybrid_tensors`.
        kept: by prompt and salt: the chunks of each pool that the peer should have.
    """

    linker: PrefixLinker
    tensors: LinkedTensors
    kept: dict[tuple[int, str], dict[str, set[int]]] = field(default_factory=dict)

    @classmethod
    def over_tensors(cls, open_linker: OpenLinker, case: str) -> WindowedRig:
        """A rig over pools in this process's memory."""
        tensors = hybrid_tensors(case)
        return cls(open_linker(tensors.linked), tensors)

    @property
    def chunk(self) -> int:
        """Tokens a chunk."""
        return self.linker.chunk_tokens

    def span(self, ids: Ids, salt: str, begin: int, end: int, choose: random.Random) -> Span:
        """Random pages, none twice, and never the one that stands for none."""
        first = begin // self.chunk * self.chunk
        free = choose.sample(range(1, PAGES), PAGES - 1)
        owned: dict[str, list[int]] = {}
        pages = {}
        for pool in self.tensors.linked:
            low, high = pool.page_range(first, end)
            whole = owned.setdefault(pool.owner, free[: end // PAGE])
            if isinstance(pool.coverage, Point):
                whole = free[:1]
                low, high = 0, 1
            pages[pool.name] = np.array(whole[low:high], np.int64)
        return Span(tokens=ids, salt=salt, begin=begin, end=end, pages=pages)

    def await_end(self, name: str, what: str) -> None:
        """Wait for a transfer, which must be DONE."""
        await_until(lambda: self.linker.progress(name) is not Progress.RUNNING, f"the end of a {what}")
        expect_equal(self.linker.progress(name), Progress.DONE, f"the progress of a {what}")

    def store(self, seed: int, salt: str, begin: int, end: int, choose: random.Random) -> None:
        """Store some tokens, with the window and state of length `end`."""
        ids, name = tokens_of(seed, TOKENS), next(_names)
        span = self.span(ids, salt, begin, end, choose)
        for pool in self.tensors.linked:
            first, _ = pool.page_range(begin, end)
            self.tensors.write_pool(pool, ids, salt, span.pages[pool.name], first)
        self.linker.store(name, span)
        self.await_end(name, "store")
        self.linker.release(name)
        kept = self.kept.setdefault((seed, salt), {pool.name: set() for pool in self.tensors.linked})
        for pool in self.tensors.linked:
            first, last = pool.page_range(begin, end)
            kept[pool.name] |= {page * PAGE // self.chunk for page in range(first, last)}

    def expected(self, seed: int, salt: str, limit: int) -> int:
        """The longest prefix that can be resumed, tried from the longest down."""
        kept = self.kept.get((seed, salt))
        for length in range(limit // self.chunk, 0, -1) if kept else ():
            assert kept is not None
            if all(set(self.needed(pool, length)) <= kept[pool.name] for pool in self.tensors.linked):
                return length * self.chunk
        return 0

    def needed(self, pool: LinkedPool, length: int) -> range:
        """The chunks of a pool that a prefix of so many chunks needs."""
        match pool.coverage:
            case Path():
                return range(length)
            case Trailing(window):
                return range(max(0, length - -(-window // self.chunk)), length)
            case _:
                return range(length - 1, length)

    def look_up(self, seed: int, salt: str, limit: int) -> tuple[str, int]:
        """What is found; stored just now, it may take a moment, in which less is found."""
        expected, deadline = self.expected(seed, salt, limit), time.monotonic() + FOUND_AFTER_S
        while True:
            name = next(_names)
            self.linker.lookup(name, tokens_of(seed, TOKENS)[:limit], salt)
            await_until(lambda name=name: self.linker.found(name) is not None, "the answer to a lookup")  # type: ignore[misc]
            found = self.linker.found(name) or 0
            if found == expected or time.monotonic() > deadline:
                expect_equal(found, expected, f"the tokens found of {limit}, all of whose windows and states are there")
                return name, found
            self.linker.release(name)

    def retrieve(self, name: str, seed: int, salt: str, begin: int, end: int, choose: random.Random) -> None:
        """All that is due arrives, and nothing else is written."""
        ids = tokens_of(seed, TOKENS)
        span = self.span(ids, salt, begin, end, choose)
        self.tensors.spoil(np.arange(PAGES))
        self.linker.retrieve(name, span)
        self.await_end(name, "retrieve")
        for pool in self.tensors.linked:
            first, last = pool.page_range(begin // self.chunk * self.chunk, end)
            own = 0 if isinstance(pool.coverage, Point) else max(0, begin // PAGE - first)
            written = span.pages[pool.name][own:]
            holds = self.tensors.pool_holds(pool, ids, salt, written, first + own)
            expect(holds, f"{pool.name}: [{begin}, {end}) was retrieved, but its pages hold something else")
            assert written.size == last - first - own
            for tensor in pool.tensors:
                rest = np.setdiff1d(np.arange(PAGES), written)
                expect(bool((tensor[rest] == 0xEE).all()), f"{pool.name}: a page was written that was not to be")


def a_prefix_ends_where_its_window_and_state_are(rig: WindowedRig) -> None:
    """What is found ends at a length whose window and state are there, and all of it comes back."""
    choose = random.Random(1)
    rig.store(1, "a", 0, 48, choose)
    for limit in (96, 80, 48):
        name, found = rig.look_up(1, "a", limit)
        expect_equal(found, 48, f"the tokens found of {limit}, with a state at 48")
        rig.retrieve(name, 1, "a", 0, 48, choose)
        rig.linker.release(name)
    name, found = rig.look_up(1, "a", 47)
    expect_equal(found, 0, "the tokens found of 47, with a state at 48 alone")
    rig.linker.release(name)
    rig.store(1, "a", 48, 80, choose)
    rig.store(1, "a", 0, 32, choose)
    for limit, wanted in ((96, 80), (79, 48), (47, 32)):
        name, found = rig.look_up(1, "a", limit)
        expect_equal(found, wanted, f"the tokens found of {limit}, with states at 32, 48 and 80")
        rig.retrieve(name, 1, "a", 0, wanted, choose)
        rig.linker.release(name)
    rig.linker.close()


def pages_before_the_beginning_are_not_written(rig: WindowedRig) -> None:
    """A retrieve that begins at any page leaves the pages before it alone."""
    choose = random.Random(2)
    rig.store(2, "a", 0, 64, choose)
    for begin in range(0, 64, PAGE):
        name, found = rig.look_up(2, "a", 96)
        rig.retrieve(name, 2, "a", begin, found, choose)
        rig.linker.release(name)
    rig.linker.close()


def random_prefixes(rig: WindowedRig) -> None:
    """Whatever was stored in whatever order: what is found is the longest length that can be resumed, and comes back."""
    choose = random.Random(3)
    for _ in range(60):
        seed, salt = choose.randrange(100, 103), choose.choice("xy")
        if choose.random() < 0.45:
            begin = choose.choice([0, rig.expected(seed, salt, 96)])
            if begin < 96:
                rig.store(seed, salt, begin, choose.randrange(begin // 16 + 1, 7) * 16, choose)
            continue
        name, found = rig.look_up(seed, salt, choose.randrange(1, 97))
        if found and choose.random() < 0.8:
            rig.retrieve(name, seed, salt, choose.randrange(0, found, PAGE), found, choose)
        rig.linker.release(name)
    rig.linker.close()
