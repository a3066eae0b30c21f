"""Published failures of hybrid prefix caches: this library reaches the ceiling of each, or its ledger names what is lost.

A ceiling is stated by hand, with its reason, and searched for: no cache with these pools can hit more, not even one that knows
the future.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from ceiling import ceiling
from exhibits import EXHIBITS, Exhibit, Invalidate, Preempt, Request, Start, Tokens
from museum_page import PAGE, page

from unified_tree import Key, MissCause, OutOfPagesError
from unified_tree.controllers import HostTier, Lease, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

FORESEEABLE = frozenset(
    {
        MissCause.NEVER_SEEN,
        MissCause.DIVERGED,
        MissCause.LAST_TOKEN,
        MissCause.PAGE_REMAINDER,
        MissCause.SAVE_GRID,
    }
)
"""Causes of tokens that no cache can have: new ones, and those behind the last place to resume."""


@dataclass(slots=True)
class Visit:
    """What came of it.

    Attributes:
        hits: prompt tokens that were not computed, by request in the order of admission.
        missed: tokens by cause.
    """

    hits: list[int] = field(default_factory=list)
    missed: Counter[MissCause] = field(default_factory=Counter)

    @property
    def hit_tokens(self) -> int:
        """Of all requests."""
        return sum(self.hits)

    @property
    def lost(self) -> dict[str, int]:
        """Tokens that were known once, by the cause that the ledger names."""
        return {cause.label: count for cause, count in sorted(self.missed.items()) if cause not in FORESEEABLE}


class Visitor:
    """A scheduler that does what a script says."""

    def __init__(self, exhibit: Exhibit) -> None:
        self._chunk_tokens = exhibit.chunk_tokens
        host = None
        if exhibit.host is not None:
            policy = WritePolicy.WRITE_BACK if exhibit.write_back else WritePolicy.WRITE_THROUGH
            host = HostTier(page_counts=exhibit.host, engine=NullEngine(), write_policy=policy, max_backup_share=1.0)
        self.cache = PrefixCache(exhibit.components, exhibit.page_size, exhibit.pools, host=host)
        self._leases: dict[int, Lease] = {}
        self.visit = Visit()

    def play(self, exhibit: Exhibit) -> Visit:
        """Play the script to its end."""
        for step in exhibit.script:
            if isinstance(step, Invalidate):
                self.cache.invalidate(step.namespace)
            elif isinstance(step, Start):
                self._start(step.request)
            elif isinstance(step, Preempt):
                self._preempt(step.request, step.output_tokens)
            else:
                self._finish(step.request)
            self.cache.drain()
        assert not self._leases, "a script finishes what it starts"
        return self.visit

    def _start(self, request: Request) -> None:
        key = Key(request.prompt, namespace=request.namespace)
        lease = self.cache.acquire(key, request.checkpoints, save_output=request.keeps_output)
        assert sum(miss.tokens for miss in lease.misses) == lease.prompt_tokens - lease.compute_from, "each token has a cause"
        self.visit.hits.append(lease.compute_from)
        for miss in lease.misses:
            self.visit.missed[miss.cause] += miss.tokens
        self.cache.drain()
        start, end = lease.compute_from, len(request.prompt)
        while start < end:
            self.cache.poll()
            stop = min(end, max(start + self._chunk_tokens, lease.cached_tokens), lease.next_stop(start) or end)
            self._allocate(lease, stop)
            self._commit(lease, request.prompt[:stop])
            start = stop
        self._leases[id(request)] = lease

    def _finish(self, request: Request) -> None:
        lease = self._leases.pop(id(request))
        tokens = request.prompt + request.output
        self._decode(lease, request, tokens)
        if request.keeps_output:
            self._commit(lease, tokens)
        self.cache.release(lease)

    def _preempt(self, request: Request, output_tokens: int) -> None:
        lease = self._leases.pop(id(request))
        tokens = request.prompt + request.output[:output_tokens]
        self._decode(lease, request, tokens)
        self.cache.preempt(lease, tokens)

    def _decode(self, lease: Lease, request: Request, tokens: Tokens) -> None:
        for length in range(len(request.prompt) + 1, len(tokens) + 1):
            self.cache.poll()
            self._allocate(lease, length)
            if length in lease.save_pages and request.keeps_output:
                self._commit(lease, tokens[:length])
            else:
                self.cache.advance(lease, length)

    def _allocate(self, lease: Lease, length: int) -> None:
        try:
            self.cache.allocate(lease, length)
        except OutOfPagesError:  # copies to host hold pages
            self.cache.drain()
            self.cache.allocate(lease, length)

    def _commit(self, lease: Lease, tokens: Tokens) -> None:
        state = lease.save_pages.get(len(tokens))
        states = {} if state is None else {len(tokens): state}
        self.cache.commit(lease, tokens, states)


each = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)


@each
def test_the_ceiling_is_reached_or_the_cause_named(exhibit: Exhibit) -> None:
    visitor = Visitor(exhibit)
    found = visitor.play(exhibit)
    assert found.hit_tokens == exhibit.ceiling - exhibit.gap
    assert found.lost == exhibit.lost
    assert sum(found.lost.values()) >= exhibit.gap, "what is lost has a cause"
    assert not visitor.cache.tree.check()


@each
def test_the_ceiling_is_the_best_that_any_cache_can_do(exhibit: Exhibit) -> None:
    assert ceiling(exhibit) == exhibit.ceiling


def test_the_exhibits_are_different_failures() -> None:
    assert len(EXHIBITS) >= 30
    assert len({exhibit.name for exhibit in EXHIBITS}) == len(EXHIBITS)
    assert len({exhibit.thread for exhibit in EXHIBITS}) == len(EXHIBITS)


def test_the_page_shows_them_all() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/museum/museum_page.py writes it"
