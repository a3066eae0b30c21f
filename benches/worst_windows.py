"""Windows that reach far: over very many short continuations, or over very many nodes of a page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benches.shapes import FULL, MARK, NO_PAGES, ROOM, Grown, window
from benches.worst_case import CHAIN, NODES, Call, WorstCase
from unified_tree import Explanation, Key, Match

CONTINUED_WINDOW_TOKENS = 512


class WindowOfPrompt(WorstCase):
    """A prompt whose window very many short continuations need loses it and gets it back, again and again."""

    question = "What does it cost to evict, or to put back, the window of a prompt with very many short continuations?"
    silent_on = "continuations longer than the window"
    components = "full_swa"
    variants = ("evict", "insert", "evict, settled", "insert, settled")
    varied = "continuations"
    sizes = tuple(size // 10 for size in NODES)
    max_calls = 200

    def build(self) -> None:
        """The prompt is of the lowest priority, so that its window is always the first victim."""
        grown = self.grown = Grown([FULL, window(CONTINUED_WINDOW_TOKENS)], self.page_size, "priority")
        self.prompt = np.arange(CONTINUED_WINDOW_TOKENS, dtype=np.int64)
        self.pages = CONTINUED_WINDOW_TOKENS // self.page_size
        grown.put(self.prompt, self.prompt.size, priority=0)
        for index in range(self.size):
            tail = np.arange(self.page_size, dtype=np.int64) + (1000 + index) * self.page_size
            grown.put(np.concatenate((self.prompt, tail)), self.page_size, priority=1)

    def evict(self) -> object:
        """The prompt's window, which is one victim."""
        return self.grown.tree.evict({"swa": self.pages})

    def insert(self) -> int:
        """Put the window back."""
        pages = {"full": NO_PAGES, "swa": self.grown.fresh("swa", self.pages)}
        return self.grown.tree.insert(Key(self.prompt), pages, priority=0).matched_length

    def calls(self) -> Iterator[Call]:
        """In turns; one of them is timed. `settled` finishes what the other has put off, if anything, before."""
        timed, _, settled = self.variant.partition(", ")
        for _ in range(self.max_calls):
            for name, call in (("evict", self.evict), ("insert", self.insert)):
                if name == timed:
                    yield call
                else:
                    call()
                if settled:
                    self.grown.settle()


class WindowOfTokens(WorstCase):
    """Every decoded token was committed at page size 1, so a window lies over as many nodes as it has tokens."""

    question = (
        "What does it cost to evict one page of a window that lies over nodes of one page, or to insert the window again?"
    )
    silent_on = "windows in few nodes, which is the usual case"
    components = "full_swa"
    variants = ("evict", "evict, settled", "insert")
    page_size = 1
    varied = "window tokens"
    sizes = (12, 125, 1_000, 4_000)
    smoke_sizes = (4, 8)
    max_calls = 200

    def build(self) -> None:
        """A prompt of a window's length, and the tokens of an answer of twice that, one by one."""
        grown = self.grown = Grown([FULL, window(self.size)], self.page_size)
        self.tokens = np.arange(3 * self.size, dtype=np.int64)
        grown.put(self.tokens[: self.size], self.size)
        for end in range(self.size + 1, 3 * self.size + 1):
            pages = {"full": grown.fresh("full", 1), "swa": grown.fresh("swa", 1)}
            grown.tree.insert(Key(self.tokens[:end]), pages)

    def calls(self) -> Iterator[Call]:
        """One page at a time until the window is gone; or the whole window, evicted before."""
        tree = self.grown.tree
        if self.variant == "insert":
            for _ in range(5):
                tree.evict({"swa": ROOM})
                self.grown.settle()
                yield self.insert
            return
        for _ in range(min(2 * self.size, self.max_calls)):
            yield partial(tree.evict, {"swa": 1})
            if self.variant == "evict, settled":
                self.grown.settle()

    def insert(self) -> int:
        """The window of the whole key."""
        pages = {"full": NO_PAGES, "swa": self.grown.fresh("swa", self.size)}
        return self.grown.tree.insert(Key(self.tokens), pages).matched_length


class MatchThroughGap(WorstCase):
    """A chain of nodes of a page, over which a wide window is there and a narrow one is gone."""

    question = "What does a match, or `explain`, cost a node of the path where a wide window is there and a narrow one is gone?"
    silent_on = "paths in few nodes"
    components = "full_wide_narrow"
    is_divided = True
    variants = ("match", "explain")
    page_size = 1
    varied = "nodes"
    sizes = CHAIN
    unit = "ns/node"
    ns_a_unit = 1.0
    max_calls = 50

    def build(self) -> None:
        """The narrow window's pages are never given."""
        kinds = [FULL, window(self.size, "wide"), window(2, "narrow"), MARK]
        grown = self.grown = Grown(kinds, self.page_size)
        self.tokens = np.arange(self.size, dtype=np.int64)
        pages = {"full": grown.fresh("full", self.size), "wide": grown.fresh("wide", self.size)}
        whole = Key(self.tokens)
        grown.tree.insert(whole, pages)
        for cut in range(self.size - 1, 0, -1):
            state = {cut: int(grown.fresh("mark", 1)[0])}
            grown.tree.insert(whole.prefix(cut), {"full": NO_PAGES}, {"mark": state})
        assert grown.tree.node_count == self.size

    def calls(self) -> Iterator[Call]:
        """The whole chain's key, again and again."""
        key = Key(self.tokens)
        for _ in range(self.max_calls):
            yield partial(self.grown.tree.match_prefix if self.variant == "match" else self.grown.tree.explain, key)

    def answer(self, result: object) -> None:
        """The lengths found."""
        if isinstance(result, Match):
            super().answer((result.device.length, result.path_length))
        elif isinstance(result, Explanation):
            super().answer(str(result))
