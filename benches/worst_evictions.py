"""Evictions whose victim is hard to find: after hits, behind locks, below or beside very many others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benches.shapes import FULL, MAMBA, NO_PAGES, Grown
from benches.worst_case import CHAIN, Call, WorstCase
from unified_tree import POLICIES, EvictResult, Key


class EvictAfterHits(WorstCase):
    """Every leaf is hit once, in random order; then pages are evicted one by one."""

    question = "What does evicting one page cost after every leaf was hit once since it was made?"
    silent_on = "hits between the evictions, inner nodes"
    variants = tuple(POLICIES)

    def build(self) -> None:
        """The leaves, and the hits."""
        self.grown = Grown([FULL], self.page_size, self.variant)
        self.grown.plant()
        self.grown.grow(range(self.size))
        for index in self.random.permutation(self.size).tolist():
            self.grown.tree.match_prefix(Key(self.grown.leaf(index)))

    def calls(self) -> Iterator[Call]:
        """Half of the leaves at most."""
        for _ in range(min(self.size // 2, self.max_calls)):
            yield partial(self.grown.tree.evict, {"full": 1})

    def answer(self, result: object) -> None:
        """The order of the victims is part of the answer: policies promise it."""
        assert isinstance(result, EvictResult)
        super().answer(tuple(result.freed["full"].tolist()))


class EvictBehindLocks(WorstCase):
    """The leaves that would go first are all locked; pages of others are evicted one by one."""

    question = "What does evicting one page cost when very many colder leaves are locked?"
    silent_on = "locks that come and go meanwhile, locked inner nodes"
    varied = "locked leaves"

    def build(self) -> None:
        """The cold leaves, their locks, and as many others as will be evicted."""
        self.grown = Grown([FULL], self.page_size)
        self.grown.plant()
        cold = self.grown.grow(range(self.size))
        self.grown.grow(range(self.size, self.size + self.max_calls))
        self.receipts = [self.grown.tree.lock(boundary) for boundary in cold]

    def calls(self) -> Iterator[Call]:
        """All leaves that are not locked."""
        for _ in range(self.max_calls):
            yield partial(self.grown.tree.evict, {"full": 1})


class EvictStateOfSessions(WorstCase):
    """Sessions with a state each, below one prompt; the youngest is the coldest. Half are gone, the next go one by one."""

    question = "What does evicting one state cost below a prompt that many sessions share, the youngest being the coldest?"
    silent_on = "sessions of more than one turn, windows"
    components = "full_mamba"
    varied = "sessions"

    def build(self) -> None:
        """The sessions, used from the youngest to the oldest, and the first half of the evictions."""
        self.grown = Grown([FULL, MAMBA], self.page_size)
        self.grown.plant()
        self.grown.grow(range(self.size))
        for index in reversed(range(self.size)):
            self.grown.tree.match_prefix(Key(self.grown.leaf(index)))
        self.grown.tree.evict({"mamba": self.size // 2})

    def calls(self) -> Iterator[Call]:
        """Of the other half."""
        for _ in range(min(self.size // 4, self.max_calls)):
            yield partial(self.grown.tree.evict, {"mamba": 1})


class LastStateOfSiblings(WorstCase):
    """One of very many siblings has a state: it is evicted and put back, again and again."""

    question = "What does it cost to evict, or to put back, the only state among very many siblings?"
    silent_on = "siblings with states of their own"
    components = "full_mamba"
    variants = ("evict", "insert")
    varied = "siblings"

    def build(self) -> None:
        """The oldest sibling keeps its state, the others come without."""
        grown = self.grown = Grown([FULL, MAMBA], self.page_size)
        grown.tree.insert(Key(grown.stem), {"full": grown.fresh("full", grown.stem.size // self.page_size)})
        for index in range(self.size):
            grown.tree.insert(Key(grown.leaf(index)), {"full": grown.fresh("full", 1)})
        self.put_back()

    def put_back(self) -> int:
        """The state of the oldest sibling."""
        key = Key(self.grown.leaf(0))
        state = {key.length: int(self.grown.fresh("mamba", 1)[0])}
        return self.grown.tree.insert(key, {"full": NO_PAGES}, {"mamba": state}).matched_length

    def calls(self) -> Iterator[Call]:
        """Evict and put back in turns; one of them is timed."""
        for _ in range(self.max_calls):
            if self.variant == "evict":
                yield partial(self.grown.tree.evict, {"mamba": 1})
                self.put_back()
            else:
                self.grown.tree.evict({"mamba": 1})
                yield self.put_back


class AcknowledgeAboveHost(WorstCase):
    """A node of one page on host, very many children below it on host alone: it is loaded and evicted, again and again."""

    question = "What does acknowledging a load of one page, or evicting that page again, cost above many host-only children?"
    silent_on = "loads of long paths, backups"
    variants = ("acknowledge", "evict")
    varied = "children"

    def build(self) -> None:
        """All of it comes from a store, so that none of it is on device."""
        grown = self.grown = Grown([FULL], self.page_size)
        page = np.arange(self.page_size, dtype=np.int64)
        self.boundary = grown.tree.transfers.graft(Key(page), {"full": grown.fresh("host", 1)}).boundary
        for index in range(1, self.size + 1):
            key = np.concatenate((page, page + index * self.page_size))
            grown.tree.transfers.graft(Key(key), {"full": grown.fresh("host", 1)})

    def calls(self) -> Iterator[Call]:
        """Load and evict in turns; one of them is timed."""
        tree = self.grown.tree
        for _ in range(self.max_calls):
            effect = tree.transfers.load(self.boundary, self.grown.supply)
            if self.variant == "acknowledge":
                yield partial(tree.transfers.acknowledge, effect)
                self.answer(tree.evict({"full": 1}))
            else:
                tree.transfers.acknowledge(effect)
                yield partial(tree.evict, {"full": 1})


class EvictAfterInvalidation(WorstCase):
    """Very much was invalidated; pages are evicted one by one."""

    question = "What does evicting one page cost after very many namespaces, or one with very many nodes, were invalidated?"
    silent_on = "invalidated nodes that are locked; `reclaim` between the evictions"
    variants = ("all namespaces", "each namespace", "one root")
    varied = "nodes"

    def build(self) -> None:
        """The namespaces of a node each, or the one of them all; live leaves besides; the invalidation."""
        grown = self.grown = Grown([FULL], self.page_size)
        one = self.variant == "one root"
        if one:
            grown.plant("one")
            grown.grow(range(self.size), namespace="one")
        else:
            for index in range(self.size):
                grown.put(grown.stem[: self.page_size], self.page_size, namespace=f"tenant {index}")
        if self.variant == "all namespaces":
            grown.tree.invalidate()
        for namespace in ["one"] if one else [f"tenant {i}" for i in range(self.size)] if self.variant[0] == "e" else []:
            grown.tree.invalidate(namespace)
        grown.plant()
        grown.grow(range(self.size, self.size + 100))

    def calls(self) -> Iterator[Call]:
        """Half of what was given up at most."""
        for _ in range(min(self.size // 2, self.max_calls)):
            yield partial(self.grown.tree.evict, {"full": 1})


class ReclaimLeaves(WorstCase):
    """A namespace of very many leaves was invalidated; `reclaim` takes it apart node by node."""

    question = "What does one `reclaim(1)` cost when very many leaves were invalidated, or all of them but the last are locked?"
    silent_on = "other tiers; `evict` between the steps"
    variants = ("", "behind locks")
    varied = "nodes"

    def build(self) -> None:
        """The namespace, some locks in it, and its end."""
        grown = self.grown = Grown([FULL], self.page_size)
        grown.plant()
        boundaries = grown.grow(range(self.size))
        self.left = min(self.size // 2, self.max_calls)
        held = boundaries[: -self.left] if self.variant else []
        self.receipts = [grown.tree.lock(boundary) for boundary in held]
        grown.tree.invalidate("")

    def calls(self) -> Iterator[Call]:
        """Half of the leaves at most; where locks are, all that are not locked, and once more."""
        for _ in range(self.left + bool(self.variant)):
            yield partial(self.grown.tree.reclaim, 1)


class ReclaimChain(WorstCase):
    """A namespace that is one long chain was invalidated; `reclaim` takes it apart in small steps."""

    question = "What does one `reclaim(10)` cost when a long chain was invalidated?"
    silent_on = "nodes that are locked"
    page_size = 1
    varied = "nodes"
    sizes = CHAIN
    smoke_sizes = (20, 40)

    def build(self) -> None:
        """The chain, and its end."""
        self.grown = Grown([FULL], self.page_size)
        self.grown.chain(self.size)
        self.grown.tree.invalidate("")

    def calls(self) -> Iterator[Call]:
        """Until half of it is gone."""
        for _ in range(min(self.size // 20, self.max_calls)):
            yield partial(self.grown.tree.reclaim, 10)
