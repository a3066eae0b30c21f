"""What a host tier, ranks and a store cannot do without, beside a `PrefixCache` that has none of them.

`BareTiers` makes, with the tree's own compiled calls, the copies, messages and writes that tiers have to make of the same
requests, and nothing besides: no queue with a limit, no policy, no statistics, no failure that is handled, no choice.

- A copy to host: find what the host lacks, lock it, take host pages and claim them, list which page goes where, hand that to
  the engine, take its word that the copy has ended, and put the pages into the tree.
- A write to a store: lock the boundary on host, copy the tokens and page ids that no write before it had, hand them over,
  release the lock. (A tier knows only of writes that have ended, so of two in a row its second one copies more.)
- The question to a store: one match, as where too little is missing to be looked for. What `acquire` is spared by it is spared
  here, too.
- Ranks: one message a poll, and in it the end of each copy and write, and where each copy stands; not where leases stand.

A floor of this tree, not of any: one that locks, matches or lists pages in less has a lower one. The calls come from
interpreted code, some microseconds of it a request.
"""

from __future__ import annotations

from typing import NamedTuple

from unified_tree import Key, Tier
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.controllers.ranks import LocalConsensus
from unified_tree.controllers.transfer_engines import NullEngine, Transfer
from unified_tree.locks.locks import Receipt
from unified_tree.lookup.matching import collect_at, key_of
from unified_tree.nodes.effect import Effect, EffectKind
from unified_tree.terms.results import Boundary

BACKUP = EffectKind.BACKUP


class Due(NamedTuple):
    """A boundary that is to be copied.

    Attributes:
        boundary: which.
        stored: how many of its tokens others write.
    """

    boundary: Boundary
    stored: int


class Written(NamedTuple):
    """What a store's threads would take."""

    tokens: Key
    pages: list[bytes]


class BareTiers:
    """Beside the tree of a cache on a device alone.

    Args:
        cache: that cache. Its tree has a host side, as any; the pages there are of this object.
        page_counts: on host, by component.
        has: what is behind the device: "host", "ranks", "store".

    Attributes:
        has_store: whether one is behind the host.
        copies: how many boundaries were copied.
    """

    def __init__(self, cache: PrefixCache, page_counts: dict[str, int], has: tuple[str, ...]) -> None:
        self._tree = cache.tree
        self._state, self._locks = cache.tree.state, cache.tree.locks
        self._effects = cache.tree.transfers.effects
        self._pages = TierPages(cache.tree, Tier.HOST, page_counts, cache.counters)
        self._engine = NullEngine()
        self._consensus = LocalConsensus() if "ranks" in has else None
        self.has_store = "store" in has
        self._coverages = [component.coverage for component in cache.tree.components]
        self._due: list[Due] = []
        self._copying: dict[int, tuple[Effect, Due]] = {}
        self._tickets = self._writes = 0
        self._writing: list[Receipt] = []
        self._ended_writes: list[Receipt] = []
        self._written: list[Written] = []
        self.copies = 0

    def asked(self, key: Key) -> None:
        """A prompt is asked for in the store."""
        self._tree.match_prefix(key, limit=(key.length - 1) // self._tree.page_size * self._tree.page_size, touch=False)

    def committed(self, boundary: Boundary, stored: int) -> None:
        """A boundary is to be copied, and behind what is stored of it to be written."""
        self._due.append(Due(boundary, stored))

    def run_jobs(self) -> None:
        """What a store's threads would do meanwhile: all writes end."""
        self._written.clear()
        self._ended_writes += self._writing
        self._writing.clear()

    def poll(self) -> None:
        """Once a step: end what was copied, and begin what is due."""
        if self._ended_writes:
            for receipt in self._ended_writes:
                receipt.release()
                if self._consensus is not None:
                    self._consensus.finished("persist", self._writes)
                    self._writes += 1
            self._ended_writes.clear()
        if self._copying:
            for completion in self._engine.poll():
                self._landed(*self._copying.pop(completion.ticket))
        if self._consensus is not None:
            self._consensus.tick()
        if self._due:
            self._begin()

    def _begin(self) -> None:
        transfers = []
        for due in self._due:
            effect = self._effects.begin_unless_empty(BACKUP, due.boundary, self._pages, None)
            if effect is None:  # the host has it
                continue
            self._tickets += 1
            self._copying[self._tickets] = effect, due
            transfers.append(Transfer(self._tickets, BACKUP, effect.copies))
        self._due.clear()
        self._engine.submit(transfers)

    def _landed(self, effect: Effect, due: Due) -> None:
        self._effects.acknowledge(effect)
        if self._consensus is not None:
            self._consensus.finished("backup", self.copies)
            self._consensus.record(b"%d %d" % due.boundary)
        self.copies += 1
        if self.has_store:
            self._write(due)

    def _write(self, due: Due) -> None:
        receipt = self._locks.lock(due.boundary, Tier.HOST, None)
        node, length = self._locks.find(due.boundary)
        assert node is not None
        pages = []
        size = self._state.page_size
        for i, coverage in enumerate(self._coverages):
            begin = max(due.stored, coverage.first_page(length, size) * size)
            pages.append(b"".join(collect_at(self._state, node, length, i, Tier.HOST, begin=begin)))
        self._written.append(Written(key_of(node, length, due.stored), pages))
        self._writing.append(receipt)
