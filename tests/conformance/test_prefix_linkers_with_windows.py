"""What every prefix linker promises that carries windows and states: lengths at which all of it is there, and its bytes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import lmcache_server
import numpy as np
import pytest
from linked_tensors import PAGE, LinkedTensors, hybrid
from numpy.typing import NDArray

from unified_tree import Path, Point
from unified_tree.controllers.prefix_linker import LinkedPool, MemoryLinker, PrefixLinker, Progress, Span
from unified_tree.coverage import Trailing
from unified_tree.errors import ConfigurationError

pytestmark = lmcache_server.QUIET

PAGES = 128
names = (f"windowed-{number}" for number in itertools.count())
Ids = NDArray[np.int64]
CASES = {"within a chunk": (16, 7, 3), "two chunks": (16, 31, 7), "a page a chunk": (PAGE, 11, 4), "one page": (16, 4, 2)}
"""Chunk, window and the sharer's window, in tokens."""


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[int, lmcache_server.Lmcache]]:
    """By chunk; one with others than tokens of every prefix."""
    lmcache_server.skip_unless_it_runs()
    with (
        lmcache_server.Lmcache(16, options=["--separate-object-groups"]) as sixteen,
        lmcache_server.Lmcache(PAGE, options=["--separate-object-groups"]) as page,
    ):
        yield {16: sixteen, PAGE: page}


@dataclass
class Opened:
    linker: PrefixLinker
    tensors: LinkedTensors
    chunk: int
    kept: dict[tuple[int, str], dict[str, set[int]]] = field(default_factory=dict)
    """By prompt and salt: the chunks of each pool that the peer should have."""

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

    def store(self, seed: int, salt: str, begin: int, end: int, choose: random.Random) -> None:
        ids, name = tokens(seed), next(names)
        span = self.span(ids, salt, begin, end, choose)
        for pool in self.tensors.linked:
            first, _ = pool.page_range(begin, end)
            self.tensors.write_pool(pool, ids, salt, span.pages[pool.name], first)
        self.linker.store(name, span)
        until(lambda: self.linker.progress(name) is not Progress.RUNNING)
        assert self.linker.progress(name) is Progress.DONE
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
            case Point():
                return range(length - 1, length)

    def look_up(self, seed: int, salt: str, limit: int) -> tuple[str, int]:
        """What is found; stored just now, it may take a moment, in which less is found."""
        expected, deadline = self.expected(seed, salt, limit), time.monotonic() + 5
        while True:
            name = next(names)
            self.linker.lookup(name, tokens(seed)[:limit], salt)
            until(lambda name=name: self.linker.found(name) is not None)  # type: ignore[misc]
            found = self.linker.found(name)
            assert found is not None
            if found == expected or time.monotonic() > deadline:
                assert found == expected
                return name, found
            self.linker.release(name)

    def retrieve(self, name: str, seed: int, salt: str, begin: int, end: int, choose: random.Random) -> None:
        """All that is due arrives, and nothing else is written."""
        ids = tokens(seed)
        span = self.span(ids, salt, begin, end, choose)
        self.tensors.spoil(np.arange(PAGES))
        self.linker.retrieve(name, span)
        until(lambda: self.linker.progress(name) is not Progress.RUNNING)
        assert self.linker.progress(name) is Progress.DONE
        for pool in self.tensors.linked:
            first, last = pool.page_range(begin // self.chunk * self.chunk, end)
            own = 0 if isinstance(pool.coverage, Point) else max(0, begin // PAGE - first)
            written = span.pages[pool.name][own:]
            assert self.tensors.pool_holds(pool, ids, salt, written, first + own), pool.name
            assert written.size == last - first - own
            for tensor in pool.tensors:
                rest = np.setdiff1d(np.arange(PAGES), written)
                assert bool((tensor[rest] == 0xEE).all()), f"{pool.name}: another page was written"


@pytest.fixture(params=[(kind, case) for kind in ("memory", "lmcache daemon") for case in CASES], ids=" ".join)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    kind, case = request.param
    chunk, window, sharer = CASES[case]
    components, formats = hybrid(window, sharer)
    linker: PrefixLinker
    if kind == "memory":
        tensors = LinkedTensors(PAGES, components=components, formats=formats)
        linker = MemoryLinker(tensors.linked, chunk, 1000)
    else:
        daemons: dict[int, lmcache_server.Lmcache] = request.getfixturevalue("daemons")
        from unified_tree.controllers.prefix_linker.lmcache import open_daemon

        tensors = LinkedTensors(PAGES, share=True, components=components, formats=formats)
        address = daemons[chunk].address
        linker = open_daemon(tensors.linked, daemon=address, model=f"windows-{case.replace(' ', '-')}", heartbeat_s=0.2)
    yield Opened(linker, tensors, chunk)
    linker.close()


def tokens(seed: int, count: int = 96) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, count)


def until(ask: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_prefix_ends_where_its_window_and_state_are(opened: Opened) -> None:
    choose = random.Random(1)
    opened.store(1, "a", 0, 48, choose)
    for limit in (96, 80, 48):
        name, found = opened.look_up(1, "a", limit)
        assert found == 48
        opened.retrieve(name, 1, "a", 0, 48, choose)
        opened.linker.release(name)
    name, found = opened.look_up(1, "a", 47)
    assert found == 0, "no shorter prefix has a state"
    opened.linker.release(name)
    opened.store(1, "a", 48, 80, choose)
    opened.store(1, "a", 0, 32, choose)
    for limit, wanted in ((96, 80), (79, 48), (47, 32)):
        name, found = opened.look_up(1, "a", limit)
        assert found == wanted
        opened.retrieve(name, 1, "a", 0, wanted, choose)
        opened.linker.release(name)


def test_pages_before_the_beginning_are_not_written(opened: Opened) -> None:
    choose = random.Random(2)
    opened.store(2, "a", 0, 64, choose)
    for begin in range(0, 64, PAGE):
        name, found = opened.look_up(2, "a", 96)
        opened.retrieve(name, 2, "a", begin, found, choose)
        opened.linker.release(name)


def test_random_prefixes(opened: Opened) -> None:
    choose = random.Random(3)
    for _ in range(60):
        seed, salt = choose.randrange(100, 103), choose.choice("xy")
        if choose.random() < 0.45:
            begin = choose.choice([0, opened.expected(seed, salt, 96)])
            if begin < 96:
                opened.store(seed, salt, begin, choose.randrange(begin // 16 + 1, 7) * 16, choose)
            continue
        name, found = opened.look_up(seed, salt, choose.randrange(1, 97))
        if found and choose.random() < 0.8:
            opened.retrieve(name, seed, salt, choose.randrange(0, found, PAGE), found, choose)
        opened.linker.release(name)


def test_a_window_that_no_chunk_holds_exactly_is_refused() -> None:
    components, formats = hybrid(17, 4)
    tensors = LinkedTensors(PAGES, components=components, formats=formats)
    with pytest.raises(ConfigurationError, match=r"swa: a window that keeps pages of 20 tokens .* a chunk of 16"):
        MemoryLinker(tensors.linked, 16, 10)


def test_an_engine_in_this_process_refuses_them() -> None:
    lmcache_server.skip_unless_it_runs()
    from unified_tree.controllers.prefix_linker.lmcache import open_in_process

    components, formats = hybrid(7, 4)
    tensors = LinkedTensors(PAGES, components=components, formats=formats)
    with pytest.raises(ConfigurationError, match="pages of every token, so not swa, overlap, mamba"):
        open_in_process(tensors.linked, model="tests", chunk_tokens=16)
