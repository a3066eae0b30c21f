"""The contract of prefix linkers: correct bytes, released locks, and no writes elsewhere."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.prefix_linker.prefix_linker import PrefixLinker, Progress, Span
from unified_tree.controllers.testing.checks import LIMIT_S, Check, await_until, expect, expect_equal, refusal, run_checks
from unified_tree.controllers.testing.linked_tensors import PAGE, LinkedTensors
from unified_tree.terms.errors import LinkError

if TYPE_CHECKING:
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool

Ids = NDArray[np.int64]
OpenLinker = Callable[[Sequence["LinkedPool"]], PrefixLinker]
"""Opens a linker over pools."""
CHUNKS = 16
"""The chunks that all pages of a pool hold."""
FOUND_AFTER_S = 5.0
"""What was stored may take so long to be found."""
_names = (f"checked-{number}" for number in itertools.count())


def check_prefix_linker(open_linker: OpenLinker, *, chunk_tokens: int = 16, limit_s: float = LIMIT_S) -> None:
    """Check that a prefix linker keeps the contract of `PrefixLinker` for pages of every token.

    Args:
        open_linker: opens one over these pools, on a peer that has none of their prefixes.
        chunk_tokens: of the linkers it opens; a multiple of 4.
        limit_s: seconds that a clause may take.

    Raises AssertionError that names every clause that is broken. `check_windowed_linker` checks one with windows and states.

    >>> from unified_tree.controllers.prefix_linker import MemoryLinker
    >>> check_prefix_linker(lambda pools: MemoryLinker(pools, 16, 1000))
    """
    run_checks(prefix_linker_checks(), lambda: LinkerRig.over_tensors(open_linker, chunk_tokens), limit_s)


def prefix_linker_checks() -> list[Check]:
    """The single checks: each is called with a new LinkerRig, and closes its linker."""
    return [
        Check(body)
        for body in (
            what_is_stored_is_retrieved,
            pages_before_the_beginning_are_not_written,
            only_whole_chunks_of_the_same_tokens_and_salt_are_found,
            part_of_what_was_found_is_retrieved,
            storing_goes_on_from_what_is_there,
            what_is_released_is_forgotten,
            random_prefixes,
            a_closed_linker_takes_nothing,
        )
    ]


def tokens_of(seed: int, count: int) -> Ids:
    """A prompt."""
    return np.random.default_rng(seed).integers(0, 50_000, count)


def page_count(chunk_tokens: int) -> int:
    """Pages of every pool of a LinkerRig."""
    return CHUNKS * chunk_tokens // PAGE


@dataclass
class LinkerRig:
    """A linker and the pools it fills, of `page_count` pages.

    Attributes:
        linker: under check; closed by it.
        tensors: its pools.
    """

    linker: PrefixLinker
    tensors: LinkedTensors

    @classmethod
    def over_tensors(cls, open_linker: OpenLinker, chunk_tokens: int) -> LinkerRig:
        """A rig over pools in this process's memory."""
        tensors = LinkedTensors(page_count(chunk_tokens))
        return cls(open_linker(tensors.linked), tensors)

    @property
    def chunk(self) -> int:
        """Tokens a chunk."""
        return self.linker.chunk_tokens

    def prompt(self, seed: int) -> Ids:
        """Eight chunks of tokens."""
        return tokens_of(seed, 8 * self.chunk)

    def pages(self, first_chunk: int, last_chunk: int) -> Ids:
        """The pages where these chunks would lie, one after the other."""
        return np.arange(first_chunk * self.chunk // PAGE, last_chunk * self.chunk // PAGE)

    def span(self, ids: Ids, salt: str, begin: int, end: int, pages: Ids) -> Span:
        """These tokens in these pages of every pool."""
        return Span(tokens=ids, salt=salt, begin=begin, end=end, pages=self.tensors.pages(pages))

    def ended(self, name: str) -> Progress:
        """How a transfer ended."""
        await_until(lambda: self.linker.progress(name) is not Progress.RUNNING, f"the end of transfer {name!r}")
        return self.linker.progress(name)

    def store(self, span: Span) -> None:
        """Store, and wait for it."""
        name = next(_names)
        self.linker.store(name, span)
        expect_equal(self.ended(name), Progress.DONE, "the progress of a store")
        self.linker.release(name)

    def fill(self, seed: int, salt: str, end: int) -> Ids:
        """Store the first `end` tokens of a prompt from the first pages; the prompt."""
        ids, pages = self.prompt(seed), np.arange(end // PAGE)
        self.tensors.write(ids, salt, pages)
        self.store(self.span(ids, salt, 0, end, pages))
        return ids

    def look_up(self, ids: Ids, salt: str, min_tokens: int = 0) -> tuple[str, int]:
        """A request that has found so much; what was stored just now may take a moment to be found."""
        deadline = time.monotonic() + FOUND_AFTER_S
        while True:
            name = next(_names)
            self.linker.lookup(name, ids, salt)
            await_until(lambda name=name: self.linker.found(name) is not None, "the answer to a lookup")  # type: ignore[misc]
            found = self.linker.found(name) or 0
            if found >= min_tokens or time.monotonic() > deadline:
                return name, found
            self.linker.release(name)

    def retrieve(self, name: str, span: Span, pages: Ids) -> None:
        """Retrieve into pages: those from `span.begin` on are filled, and no other is written."""
        self.tensors.spoil(np.arange(self.tensors.page_count))
        self.linker.retrieve(name, span)
        expect_equal(self.ended(name), Progress.DONE, "the progress of a retrieve")
        own = pages[(span.begin - span.first_token(self.chunk)) // PAGE :]
        holds = self.tensors.holds(span.tokens, span.salt, own, span.begin // PAGE)
        expect(holds, f"tokens [{span.begin}, {span.end}) were retrieved, but their pages hold something else")
        others = np.setdiff1d(np.arange(self.tensors.page_count), own)
        expect(self.tensors.is_spoilt(others), f"retrieving [{span.begin}, {span.end}) wrote to a page of no token in it")
        self.linker.release(name)


def what_is_stored_is_retrieved(rig: LinkerRig) -> None:
    """A retrieve fills the pages of its span, wherever they lie, and no other."""
    ids = rig.fill(1, "a", 4 * rig.chunk)
    name, found = rig.look_up(ids, "a", 4 * rig.chunk)
    expect_equal(found, 4 * rig.chunk, "the tokens found of a prompt whose first four chunks were stored")
    target = np.random.default_rng(3).permutation(rig.pages(5, CHUNKS))[: found // PAGE]
    rig.retrieve(name, rig.span(ids, "a", 0, found, target), target)
    rig.linker.close()


def pages_before_the_beginning_are_not_written(rig: LinkerRig) -> None:
    """A retrieve that begins within a chunk leaves the pages of that chunk before its beginning alone."""
    chunk = rig.chunk
    ids = rig.fill(2, "a", 4 * chunk)
    for begin in (PAGE, chunk, chunk + PAGE, 2 * chunk - PAGE, 3 * chunk + 2 * PAGE):
        name, found = rig.look_up(ids, "a", 4 * chunk)
        span = rig.span(ids, "a", begin, found, rig.pages(5, 5 + found // chunk - begin // chunk))
        rig.retrieve(name, span, rig.pages(5, 5 + found // chunk - begin // chunk))
    rig.linker.close()


def only_whole_chunks_of_the_same_tokens_and_salt_are_found(rig: LinkerRig) -> None:
    """A lookup finds the longest prefix in whole chunks, of the same tokens from the first on, under the same salt."""
    chunk = rig.chunk
    ids = rig.fill(4, "a", 4 * chunk)
    name, found = rig.look_up(ids, "a", 4 * chunk)
    expect_equal(found, 4 * chunk, "the tokens found of what was stored")
    rig.linker.release(name)
    other = ids.copy()
    other[2 * chunk + 1] += 1
    for asked, salt, wanted, what in (
        (ids[: 4 * chunk - 1], "a", 3 * chunk, "a token less than four chunks"),
        (other, "a", 2 * chunk, "another token in the third chunk"),
        (ids, "b", 0, "another salt"),
        (ids[: chunk - 1], "a", 0, "less than a chunk"),
        (ids[1:], "a", 0, "the tokens from the second on"),
    ):
        name, found = rig.look_up(asked, salt)
        expect_equal(found, wanted, f"the tokens found of {what}")
        rig.linker.release(name)
    rig.linker.close()


def part_of_what_was_found_is_retrieved(rig: LinkerRig) -> None:
    """Without windows and states, a retrieve may take any chunks of what was found."""
    chunk = rig.chunk
    ids = rig.fill(5, "a", 4 * chunk)
    name, _ = rig.look_up(ids, "a", 4 * chunk)
    target = rig.pages(5, 6)
    rig.retrieve(name, rig.span(ids, "a", 2 * chunk, 3 * chunk, target), target)
    rig.linker.close()


def storing_goes_on_from_what_is_there(rig: LinkerRig) -> None:
    """A store that begins where an earlier one ended makes one longer prefix."""
    chunk = rig.chunk
    ids, pages = rig.fill(6, "a", 2 * chunk), rig.pages(8, 10)
    rig.tensors.write(ids, "a", pages, 2 * chunk // PAGE)
    rig.store(rig.span(ids, "a", 2 * chunk, 4 * chunk, pages))
    name, found = rig.look_up(ids, "a", 4 * chunk)
    expect_equal(found, 4 * chunk, "the tokens found of a prefix stored in two parts")
    target = rig.pages(11, 15)
    rig.retrieve(name, rig.span(ids, "a", 0, found, target), target)
    rig.linker.close()


def what_is_released_is_forgotten(rig: LinkerRig) -> None:
    """`release` may come before the answer, twice, and for a name never heard of; what is stored stays."""
    ids = rig.fill(7, "a", 2 * rig.chunk)
    rig.linker.release("never heard of")
    name = next(_names)
    rig.linker.lookup(name, ids, "a")
    rig.linker.release(name)
    rig.linker.release(name)
    name, found = rig.look_up(ids, "a", 2 * rig.chunk)
    expect_equal(found, 2 * rig.chunk, "the tokens found after another request for them was released")
    rig.linker.release(name)
    rig.linker.close()


def random_prefixes(rig: LinkerRig) -> None:
    """Whatever was stored is found in its whole length, and comes back, in any pages."""
    choose, chunk, pages = random.Random(8), rig.chunk, rig.tensors.page_count
    lengths: dict[tuple[int, str], int] = {}
    for _ in range(60):
        seed, salt = choose.randrange(100, 104), choose.choice(("x", "y"))
        ids, end = rig.prompt(seed), choose.randrange(1, 6) * chunk
        known = lengths.get((seed, salt), 0)
        if choose.random() < 0.5 and end > known:
            source = np.array(choose.sample(range(pages), (end - known) // PAGE))
            rig.tensors.write(ids, salt, source, known // PAGE)
            rig.store(rig.span(ids, salt, known, end, source))
            lengths[seed, salt] = end
            continue
        name, found = rig.look_up(ids, salt, known)
        expect_equal(found, known, "the tokens found of what was stored")
        if found and choose.random() < 0.8:
            begin = choose.randrange(0, found, PAGE)
            target = np.array(choose.sample(range(pages), (found - begin // chunk * chunk) // PAGE))
            rig.retrieve(name, rig.span(ids, salt, begin, found, target), target)
        else:
            rig.linker.release(name)
    rig.linker.close()


def a_closed_linker_takes_nothing(rig: LinkerRig) -> None:
    """After `close` every call raises LinkError, but for `release` and `close`, which is idempotent."""
    rig.linker.close()
    rig.linker.close()
    rig.linker.release("anything")
    for name, call in (
        ("lookup", lambda: rig.linker.lookup("one", tokens_of(1, 8), "a")),
        ("found", lambda: rig.linker.found("one")),
        ("progress", lambda: rig.linker.progress("one")),
    ):
        with refusal(LinkError, "closed", f"{name} after close"):
            call()
