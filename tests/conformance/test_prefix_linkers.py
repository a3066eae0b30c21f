"""What every prefix linker promises: bytes, locks given back, nothing written where it must not be."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator

import lmcache_server
import numpy as np
import pytest
from linked_tensors import PAGE, LinkedTensors
from numpy.typing import NDArray

from unified_tree.controllers.prefix_linker import MemoryLinker, PrefixLinker, Progress, Span
from unified_tree.errors import LinkError

pytestmark = lmcache_server.QUIET

CHUNK = lmcache_server.CHUNK_TOKENS
PAGES = 64
names = (f"request-{number}" for number in itertools.count())
Ids = NDArray[np.int64]


@pytest.fixture(scope="module")
def daemon() -> Iterator[lmcache_server.Lmcache]:
    lmcache_server.skip_unless_it_runs()
    with lmcache_server.Lmcache() as server:
        yield server


@pytest.fixture(params=["memory", "lmcache daemon", "lmcache in process"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[PrefixLinker, LinkedTensors]]:
    linker: PrefixLinker
    if request.param == "memory":
        tensors = LinkedTensors(PAGES)
        linker = MemoryLinker(tensors.linked, CHUNK, 1000)
    elif request.param == "lmcache in process":
        lmcache_server.skip_unless_it_runs()
        from unified_tree.controllers.prefix_linker.lmcache import open_in_process

        tensors = LinkedTensors(PAGES)
        linker = open_in_process(tensors.linked, model="conformance", chunk_tokens=CHUNK, memory_bytes=64 << 20)
    else:
        daemon: lmcache_server.Lmcache = request.getfixturevalue("daemon")
        from unified_tree.controllers.prefix_linker.lmcache import open_daemon

        tensors = LinkedTensors(PAGES, share=True)
        linker = open_daemon(tensors.linked, daemon=daemon.address, model="conformance", heartbeat_s=0.2)
    yield linker, tensors
    linker.close()


def tokens(seed: int, count: int = 8 * CHUNK) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, count)


def until(ask: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def stored(linker: PrefixLinker, span: Span) -> Progress:
    name = next(names)
    linker.store(name, span)
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    progress = linker.progress(name)
    linker.release(name)
    return progress


def looked_up(linker: PrefixLinker, ids: Ids, salt: str, at_least: int = 0) -> tuple[str, int]:
    """A request that has found so much; what was stored just now may take a moment to be found."""
    deadline = time.monotonic() + 5
    while True:
        name = next(names)
        linker.lookup(name, ids, salt)
        until(lambda name=name: linker.found(name) is not None)  # type: ignore[misc]
        found = linker.found(name)
        assert found is not None
        if found >= at_least or time.monotonic() > deadline:
            return name, found
        linker.release(name)


def span(ids: Ids, salt: str, begin: int, end: int, pages: Ids, tensors: LinkedTensors) -> Span:
    return Span(tokens=ids, salt=salt, begin=begin, end=end, pages=tensors.pages(pages))


def fill(linker: PrefixLinker, tensors: LinkedTensors, seed: int, salt: str, end: int, first_page: int = 0) -> Ids:
    ids = tokens(seed)
    pages = np.arange(first_page, first_page + end // PAGE)
    tensors.write(ids, salt, pages)
    assert stored(linker, span(ids, salt, 0, end, pages, tensors)) is Progress.DONE
    return ids


def test_what_is_stored_is_retrieved(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 1, "a", 4 * CHUNK)
    name, found = looked_up(linker, ids, "a", 4 * CHUNK)
    assert found == 4 * CHUNK
    target = np.random.default_rng(3).permutation(np.arange(20, PAGES))[: found // PAGE]
    tensors.spoil(np.arange(16, PAGES))
    linker.retrieve(name, span(ids, "a", 0, found, target, tensors))
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    assert linker.progress(name) is Progress.DONE
    assert tensors.holds(ids, "a", target)
    assert tensors.is_spoilt(np.setdiff1d(np.arange(16, PAGES), target))
    linker.release(name)


def test_pages_before_the_beginning_are_not_written(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 2, "a", 4 * CHUNK)
    for begin in (PAGE, CHUNK, CHUNK + PAGE, 2 * CHUNK - PAGE, 3 * CHUNK + 2 * PAGE):
        name, found = looked_up(linker, ids, "a", 4 * CHUNK)
        first = begin // CHUNK * CHUNK
        target = np.arange(20, 20 + (found - first) // PAGE)
        tensors.spoil(np.arange(16, PAGES))
        linker.retrieve(name, span(ids, "a", begin, found, target, tensors))
        until(lambda name=name: linker.progress(name) is not Progress.RUNNING)  # type: ignore[misc]
        skipped = (begin - first) // PAGE
        assert tensors.holds(ids, "a", target[skipped:], begin // PAGE)
        assert tensors.is_spoilt(np.setdiff1d(np.arange(16, PAGES), target[skipped:])), begin
        linker.release(name)


def test_only_whole_chunks_of_the_same_tokens_and_salt_are_found(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 4, "a", 4 * CHUNK)
    name, found = looked_up(linker, ids, "a", 4 * CHUNK)
    assert found == 4 * CHUNK
    linker.release(name)
    other = ids.copy()
    other[2 * CHUNK + 1] += 1
    for asked, salt, expected in (
        (ids[: 4 * CHUNK - 1], "a", 3 * CHUNK),
        (other, "a", 2 * CHUNK),
        (ids, "b", 0),
        (ids[: CHUNK - 1], "a", 0),
        (ids[1:], "a", 0),
    ):
        name, found = looked_up(linker, asked, salt)
        assert found == expected
        linker.release(name)


def test_part_of_what_was_found_is_retrieved(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 5, "a", 4 * CHUNK)
    name, _ = looked_up(linker, ids, "a", 4 * CHUNK)
    target = np.arange(20, 20 + CHUNK // PAGE)
    tensors.spoil(np.arange(16, PAGES))
    linker.retrieve(name, span(ids, "a", 2 * CHUNK, 3 * CHUNK, target, tensors))
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    assert tensors.holds(ids, "a", target, 2 * CHUNK // PAGE)
    linker.release(name)


def test_storing_goes_on_from_what_is_there(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 6, "a", 2 * CHUNK)
    pages = np.arange(32, 32 + 2 * CHUNK // PAGE)
    tensors.write(ids, "a", pages, 2 * CHUNK // PAGE)
    assert stored(linker, span(ids, "a", 2 * CHUNK, 4 * CHUNK, pages, tensors)) is Progress.DONE
    name, found = looked_up(linker, ids, "a", 4 * CHUNK)
    target = np.arange(44, 44 + found // PAGE)
    linker.retrieve(name, span(ids, "a", 0, found, target, tensors))
    until(lambda: linker.progress(name) is not Progress.RUNNING)
    assert found == 4 * CHUNK and tensors.holds(ids, "a", target)
    linker.release(name)


def test_what_is_released_is_forgotten(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, tensors = opened
    ids = fill(linker, tensors, 7, "a", 2 * CHUNK)
    linker.release("never heard of")
    name = next(names)
    linker.lookup(name, ids, "a")
    linker.release(name)
    linker.release(name)
    name, found = looked_up(linker, ids, "a", 2 * CHUNK)
    assert found == 2 * CHUNK
    linker.release(name)


def test_random_prefixes(opened: tuple[PrefixLinker, LinkedTensors], record_property: Callable[[str, object], None]) -> None:
    linker, tensors = opened
    choose = random.Random(8)
    lengths: dict[tuple[int, str], int] = {}
    for _ in range(60):
        seed, salt = choose.randrange(100, 104), choose.choice(("x", "y"))
        ids, end = tokens(seed), choose.randrange(1, 6) * CHUNK
        known = lengths.get((seed, salt), 0)
        if choose.random() < 0.5 and end > known:
            pages = np.array(choose.sample(range(PAGES), (end - known) // PAGE))
            tensors.write(ids, salt, pages, known // PAGE)
            assert stored(linker, span(ids, salt, known, end, pages, tensors)) is Progress.DONE
            lengths[seed, salt] = end
            continue
        name, found = looked_up(linker, ids, salt, known)
        assert found == known
        if found and choose.random() < 0.8:
            begin = choose.randrange(0, found, PAGE)
            first = begin // CHUNK * CHUNK
            target = np.array(choose.sample(range(PAGES), (found - first) // PAGE))
            tensors.spoil(np.arange(PAGES))
            linker.retrieve(name, span(ids, salt, begin, found, target, tensors))
            until(lambda name=name: linker.progress(name) is not Progress.RUNNING)  # type: ignore[misc]
            own = target[(begin - first) // PAGE :]
            assert tensors.holds(ids, salt, own, begin // PAGE)
            assert tensors.is_spoilt(np.setdiff1d(np.arange(PAGES), own))
        linker.release(name)
    record_property("operations", 60)


def test_a_closed_linker_takes_nothing(opened: tuple[PrefixLinker, LinkedTensors]) -> None:
    linker, _ = opened
    linker.close()
    linker.close()
    linker.release("anything")
    for call in (lambda: linker.lookup("one", tokens(1), "a"), lambda: linker.found("one"), lambda: linker.progress("one")):
        with pytest.raises(LinkError, match="closed"):
            call()
