"""Long chains and wide nodes: locking, cutting, checking, growing them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benches.shapes import FULL, MAMBA, NO_PAGES, Grown
from benches.worst_case import CHAIN, Call, WorstCase
from unified_tree import Key


class RelockAfterInvalidation(WorstCase):
    """A long chain is locked, and another namespace was invalidated by name; the chain is locked once more."""

    question = "What does a second lock on a long locked path cost after one other namespace was invalidated?"
    silent_on = "paths that are not locked yet"
    page_size = 1
    varied = "nodes"
    sizes = CHAIN

    def build(self) -> None:
        """The chain and its lock, the other namespace and its end."""
        grown = self.grown = Grown([FULL], self.page_size)
        tokens = grown.chain(self.size)
        self.boundary = grown.tree.match_prefix(Key(tokens)).device
        grown.plant("other")
        self.receipt = grown.tree.lock(self.boundary)
        grown.tree.invalidate("other")

    def calls(self) -> Iterator[Call]:
        """Lock and release."""
        for _ in range(self.max_calls):
            yield self.relock

    def relock(self) -> int:
        """One pair."""
        receipt = self.grown.tree.lock(self.boundary)
        receipt.release()
        return receipt.boundary.length


class StatesAlongNode(WorstCase):
    """One insert brings a state for every page of a long prompt, which is new or is one node already."""

    question = "What does a state cost in an insert that brings one at each of very many lengths?"
    silent_on = "states that are there already"
    components = "full_mamba"
    is_divided = True
    page_size = 1
    variants = ("new prompt", "known prompt")
    varied = "states"
    sizes = CHAIN
    unit = "µs/state"

    def build(self) -> None:
        """Nothing stands yet."""
        self.grown = Grown([FULL, MAMBA], self.page_size)

    def calls(self) -> Iterator[Call]:
        """A few prompts that share nothing."""
        for turn in range(3):
            key = Key(np.arange(self.size, dtype=np.int64) + turn * self.size)
            states = self.grown.fresh("mamba", self.size).tolist()
            by_length = dict(zip(range(1, self.size + 1), states, strict=True))
            pages = {"full": self.grown.fresh("full", self.size)}
            if self.variant == "known prompt":
                self.grown.tree.insert(key, pages)
                pages = {"full": NO_PAGES}
            yield partial(self.grown.tree.insert, key, pages, {"mamba": by_length})
            self.answer(self.grown.tree.node_count)


class CheckChain(WorstCase):
    """All laws are checked on a long chain."""

    question = "What does `check()` cost a node of a long chain?"
    silent_on = "wide trees, host values"
    is_divided = True
    page_size = 1
    varied = "nodes"
    sizes = CHAIN
    unit = "µs/node"

    def build(self) -> None:
        """The chain."""
        self.grown = Grown([FULL], self.page_size)
        self.grown.chain(self.size)

    def calls(self) -> Iterator[Call]:
        """A few times."""
        for _ in range(3):
            yield self.check

    def check(self) -> int:
        """How many laws are broken."""
        return len(self.grown.tree.check())


class GrowWideNode(WorstCase):
    """One node gets child after child; every insert is timed."""

    question = "What does the longest insert cost while one node grows to very many children?"
    silent_on = "evictions meanwhile; deep trees"
    varied = "children"

    def build(self) -> None:
        """The node alone."""
        self.grown = Grown([FULL], self.page_size)
        self.grown.plant()

    def calls(self) -> Iterator[Call]:
        """An insert for each child."""
        for index in range(self.size):
            key = Key(self.grown.leaf(index))
            yield partial(self.grown.tree.insert, key, {"full": self.grown.fresh("full", 1)})
        self.answer(self.grown.tree.node_count)
