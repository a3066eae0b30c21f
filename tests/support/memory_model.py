"""A fake model runner: a memory whose pages hold the very prefix that was computed into them.

It runs leases of a PrefixCache as a model would and objects to any byte that is not what was put in for that prefix, to a
write into a page the lease does not own, and to any page with two owners or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import Lease, PrefixCache

Content = tuple[str, bool, tuple[int, ...], frozenset[str]]
"""Namespace, whether bigrams, the tokens up to the page's last computed one, and which sharers were computed as well."""


@dataclass(eq=False)
class Request:
    """A request under way: its tokens so far, and how many of them are computed."""

    lease: Lease
    tokens: list[int]
    computed: int
    states: dict[int, int] = field(default_factory=dict)

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.computed >= self.lease.prompt_tokens


class Runner:
    """Runs requests over one cache."""

    def __init__(self, cache: PrefixCache, components: Sequence[Component]) -> None:
        self.cache = cache
        self.owners = [c for c in components if c.shares is None]
        self.components = components
        self.memory: dict[tuple[str, int], Content] = {}
        self.requests: list[Request] = []

    def start(self, tokens: Sequence[int], namespace: str = "", checkpoints: Sequence[int] = (), **options: bool) -> Request:
        """Acquire, verify every cached byte, and copy the state."""
        lease = self.cache.acquire(Key(list(tokens), namespace), checkpoints, **options)
        request = Request(lease, list(tokens), lease.compute_from)
        self.requests.append(request)
        self._verify(request)
        return request

    def _content(self, request: Request, length: int) -> tuple[str, bool, tuple[int, ...]]:
        return request.lease.key.namespace, request.lease.key.bigram, tuple(request.tokens[:length])

    def _verify(self, request: Request) -> None:
        lease, size = request.lease, self.cache.page_size
        assert 0 <= lease.compute_from <= lease.cached_tokens < len(request.tokens)
        assert lease.cached_tokens % size == lease.compute_from % size == 0
        for component in self.components:
            match component.coverage:
                case Point():
                    if component.shares is None:
                        self._copy_state(request, component)
                    continue
                case Path():
                    first = 0
                case Trailing(window_tokens=window):
                    first = max(0, lease.cached_tokens - window) // size
                    if lease.replayed_tokens:
                        continue
            ids = lease.pages(component.name)
            for i in range(first, lease.cached_tokens // size):
                if component.shares is not None and not component.required:
                    continue
                if ids[i] < 0:
                    assert not component.required, f"{component.name} lacks page {i} of a hit"
                    continue
                *content, valid = self.memory[component.shares or component.name, int(ids[i])]
                assert tuple(content) == self._content(request, (i + 1) * size), f"{component.name}: page {i} is another's"
                assert component.shares is None or component.name in valid

    def _copy_state(self, request: Request, component: Component) -> None:
        lease = request.lease
        for copy in lease.state_copies:
            assert copy.component == component.name
            assert copy.target == lease.state_page != copy.source
            content = self.memory[component.name, copy.source]
            assert content[:3] == self._content(request, lease.cached_tokens)
            self.memory[component.name, copy.target] = content
        assert lease.state_copies or not lease.cached_tokens or not component.required

    def compute(self, request: Request, length: int, without: Sequence[str] = ()) -> None:
        """Run the model up to `length` tokens, for which the lease has pages: write what it is to write."""
        lease, size, begin = request.lease, self.cache.page_size, request.computed
        assert begin < length <= len(request.tokens)
        self._read(request)
        valid = frozenset(c.name for c in self.components if c.shares is not None and c.name not in without)
        for component in self.owners:
            if isinstance(component.coverage, Point):
                continue
            ids, write_from = lease.pages(component.name), lease.write_from[component.name]
            for i in range(begin // size, -(-length // size)):
                end = min(length, (i + 1) * size)
                if end <= write_from or (ids[i] < 0 and not component.required):
                    continue
                assert ids[i] >= 0, f"{component.name}: no page to write token {end} to"
                assert i >= lease.tables[component.name].private_from, f"{component.name}: page {i} is the tree's"
                kept = self.memory[component.name, int(ids[i])][3] & valid if i * size < begin else valid
                self.memory[component.name, int(ids[i])] = (*self._content(request, end), kept)
        self._compute_states(request, begin, length)
        request.computed = length

    def _read(self, request: Request) -> None:
        """What the next token attends to is there, whatever the lease has published or given back since."""
        lease, size, end = request.lease, self.cache.page_size, request.computed
        for component in self.owners:
            match component.coverage:
                case Point():
                    continue
                case Path():
                    first = 0
                case Trailing(window_tokens=window):
                    first = max(0, end - window)
                    if lease.replayed_tokens and first < lease.write_from[component.name]:
                        continue
            ids = lease.pages(component.name)
            for i in range(first // size, -(-end // size)):
                if ids[i] < 0:
                    assert not component.required, f"{component.name}: page {i} of {end} tokens is gone"
                    continue
                content = self.memory[component.name, int(ids[i])]
                upto = min(end, (i + 1) * size)
                assert (*content[:2], content[2][:upto]) == self._content(request, upto), (
                    f"{component.name}: page {i} is another's"
                )

    def _compute_states(self, request: Request, begin: int, length: int) -> None:
        lease, name = request.lease, self.cache.point
        if name is None:
            return
        assert lease.state_page is not None
        for at, page in lease.save_pages.items():
            if begin < at <= length:
                self.memory[name, page] = (*self._content(request, at), frozenset())
                request.states[at] = page
        self.memory[name, lease.state_page] = (*self._content(request, length), frozenset())
        request.states = {at: page for at, page in request.states.items() if lease.save_pages.get(at) == page}

    def commit(
        self, request: Request, *, resumable: bool | None = None, without: Sequence[str] = (), states: bool = True
    ) -> None:
        """Publish all that is computed."""
        end = request.computed // self.cache.page_size * self.cache.page_size
        given = {at: page for at, page in request.states.items() if at <= end} if states else {}
        tokens = np.array(request.tokens[: request.computed])
        self.cache.commit(request.lease, tokens, given, resumable=resumable, without=without)
        request.states = {at: page for at, page in request.states.items() if at not in given}

    def reject(self, request: Request, length: int) -> None:
        """Take back draft tokens."""
        self.cache.truncate(request.lease, length)
        del request.tokens[max(length, request.lease.prompt_tokens) :]
        request.computed = min(request.computed, length)
        request.states = {at: page for at, page in request.states.items() if at <= length}

    def finish(self, request: Request) -> None:
        """Release."""
        self.cache.release(request.lease)
        self.requests.remove(request)

    def held(self, request: Request, component: Component) -> list[int]:
        """The pages of a component that are a lease's own."""
        lease = request.lease
        if isinstance(component.coverage, Point):
            running = [] if lease.state_page is None else [lease.state_page]
            return [*lease.save_pages.values(), *running]
        table = lease.tables[component.name]
        ids = table.slice(max(table.held_from, table.private_from), table.size).tolist()
        return [page for page in ids if page >= 0]

    def check(self) -> None:
        """The tree is sound, every page has one owner, and the figures agree."""
        cache = self.cache
        assert (broken := cache.tree.check()) == [], f"{broken}\n{cache.tree.dump()}"
        stats = cache.stats()
        assert stats.leases == len(self.requests)
        for component in self.owners:
            pool = stats.pools[component.name]
            held = [page for request in self.requests for page in self.held(request, component)]
            assert len(held) == len(set(held)) == pool.leased, f"{component.name}: {sorted(held)}, {pool}"
            ledger = cache.tree.pool(component.name).ledger
            assert not any(ledger.owns(page) for page in held)
            assert pool.used == pool.tree + pool.leased <= (pool.total or 1 << 62)

    def end(self) -> None:
        """Release all; every page comes home."""
        for request in list(self.requests):
            self.finish(request)
        for component in self.owners:
            pool = self.cache.stats().pools[component.name]
            assert (pool.leased, pool.protected) == (0, 0)
            self.cache.device.give_back(self.cache.tree.evict({component.name: pool.tree}).freed)
        assert self.cache.tree.node_count == 0
        assert all(pool.used == 0 for pool in self.cache.stats().pools.values())
