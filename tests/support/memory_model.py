"""A fake model runner: it runs leases of a PrefixCache as a model would, over a memory that knows what every page holds.

It objects to any byte that is not what was put in for that prefix, namespace and weights version, to a write into a page that
the lease does not own, and to any page with two owners or none, on either tier. Cached pages are read behind the gates, a
layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page_memory import Content, PageMemory
from page_truth import of_owners, wrong_pages

from unified_tree import Chunked, Component, Key, LeaseError, Path, Point, Tier, Trailing
from unified_tree.controllers import Lease, PrefixCache
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.declare.owners import owned
from unified_tree.nodes.effect import EffectKind

TOKEN_BYTES = 8


def arrives(lease: Lease) -> bool:
    """Whether the state of a lease's prompt came, or comes, from another server."""
    return lease.compute_from > lease.cached_tokens


@dataclass(eq=False)
class Request:
    """A request under way: its tokens so far, and how many of them are computed.

    Attributes:
        version: of the weights when it was admitted.
        lent: the array under its key, which is not copied and is used for other tokens after the release.
        verified: whether all that was cached was found to be right, and the state was copied.
        states: pages that hold saved states, by length.
        follows: whether it had a state to begin from, so that those it computes are right; `strayed`: whether its running state
            has seen tokens that were rejected, and was not taken back yet.
        late: lengths for which a page was offered when the run had passed them and had not told the cache.
    """

    lease: Lease
    tokens: list[int]
    computed: int
    version: int
    lent: NDArray[np.int64]
    verified: bool = False
    states: dict[int, int] = field(default_factory=dict)
    follows: bool = False
    strayed: bool = False
    late: set[int] = field(default_factory=set)

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.computed >= self.lease.prompt_tokens


def available_pages(cache: PrefixCache, name: str) -> tuple[int, int]:
    """How many pages of a device pool are free, and how many could be."""
    stats, free = cache.stats(), cache.device.allocators[name].free_pages
    if stats.budget is None:
        return free, free + stats.pools[name].evictable
    blocks = stats.budget.total - stats.budget.used + stats.budget.evictable
    return free, blocks // stats.budget.pool_page_blocks[name]


class Runner:
    """Runs requests over one cache.

    Attributes:
        hoard: pages that nobody uses but that are taken all the same, by tier and component.
        versions: how often each namespace, or all (None), was invalidated.
    """

    def __init__(self, cache: PrefixCache, components: Sequence[Component], memory: PageMemory | None = None) -> None:
        self.cache = cache
        self.owners = [c for c in components if c.shares is None]
        self.components = components
        self.optional = [c.name for c in components if not c.required]
        self.memory = PageMemory(components) if memory is None else memory
        self.requests: list[Request] = []
        self.hoard: dict[tuple[Tier, str], list[int]] = {}
        self.versions: dict[str | None, int] = {}

    def version_of(self, namespace: str) -> int:
        """How often what a namespace holds was invalidated."""
        return self.versions.get(None, 0) + self.versions.get(namespace, 0)

    def invalidate(self, namespace: str | None = None, weights_version: str | None = None) -> None:
        """New weights."""
        self.cache.invalidate(namespace, weights_version)
        self.versions[namespace] = self.versions.get(namespace, 0) + 1

    def start(self, tokens: Sequence[int], namespace: str = "", checkpoints: Sequence[int] = (), **options: Any) -> Request:
        """Acquire; verify every cached byte and copy the state, at once unless they are still on their way."""
        lent = np.array(tokens, np.int64)
        lease = self.cache.acquire(Key(lent, namespace, copy=False), checkpoints, **options)
        is_arriving = lease.is_arriving
        request = Request(
            lease, list(tokens), lease.cached_tokens if is_arriving else lease.compute_from, self.version_of(namespace), lent
        )
        self.requests.append(request)
        if is_arriving:
            assert (lease.compute_from, lease.misses, lease.state_copies) == (len(tokens), [], ())
            assert lease.cached_tokens < len(tokens) <= lease.length
            if not lease.is_loading:
                self.verify(request)
            return request
        assert 0 <= lease.compute_from <= lease.cached_tokens < len(request.tokens)
        assert lease.cached_tokens % self.cache.page_size == lease.compute_from % self.cache.page_size == 0
        ends = [lease.compute_from, *(miss.end for miss in lease.misses)]
        assert [miss.begin for miss in lease.misses] == ends[:-1], lease.misses
        assert ends[-1] == len(tokens) and all(miss.tokens > 0 for miss in lease.misses), lease.misses
        if not lease.is_loading:
            self.verify(request)
        return request

    def _content(self, request: Request, length: int) -> Content:
        data = np.array(request.tokens[:length], np.int64).tobytes()
        if not self.cache.sharing.is_on:
            return request.lease.namespace, request.version, data
        key = request.lease.tree_key
        if key.mark is not None:  # of a namespace that shares: what is not common is its owner's
            data = data[: key.mark.fork * 8] + owned(data[key.mark.fork * 8 :], key.mark.owner)
            data = of_owners(self.cache.tree, key.namespace, data)
        return key.namespace, request.version, data

    def verify(self, request: Request) -> None:
        """Read all that is cached, behind the gates, and copy the state. Raises TransferError if it did not come."""
        lease = request.lease
        for layer in self.memory.layers:
            self.cache.wait_layer(lease, layer)
            for component in self.components:
                if layer in self.memory.layers_of[component.name]:
                    self._verify_layer(request, component, layer)
        request.verified = True
        request.follows = arrives(lease) or not lease.cached_tokens or bool(lease.state_copies)

    def _verify_layer(self, request: Request, component: Component, layer: int) -> None:
        lease, size = request.lease, self.cache.page_size
        first = component.coverage.first_page(lease.cached_tokens, size)  # of a kind that is new
        last = lease.cached_tokens // size
        match component.coverage:
            case Point() if arrives(lease):
                return
            case Point():
                self._copy_state(request, component, layer)
                return
            case Path():
                first = 0
            case Chunked(chunk_tokens=chunk):
                first = lease.cached_tokens // chunk * chunk // size
            case Trailing(window_tokens=window):
                first = max(0, lease.cached_tokens - window) // size
                if lease.rebuilt_tokens:
                    return
        if arrives(lease) and not component.coverage.is_path:
            first = max(first, lease.tables[component.shares or component.name].first_held)
            last = min(last, lease.write_from[component.name] // size)
        ids = lease.pages(component.name).tolist()
        for i in range(first, last):
            if ids[i] < 0:
                assert not component.required, f"{component.name} lacks page {i} of a hit"
            else:
                self._expect(request, component.name, ids[i], layer, (i + 1) * size)

    def _expect(self, request: Request, component: str, page: int, layer: int, length: int) -> None:
        """Layer of a page begins with what belongs there up to `length` tokens."""
        found, wanted = self.memory.read(component, page, layer), self._content(request, length)
        right = found is not None and found[:2] == wanted[:2] and found[2].startswith(wanted[2])
        assert right, f"{component}: layer {layer} of page {page} should hold {wanted}, not {found}, for {request.lease}"

    def _copy_state(self, request: Request, component: Component, layer: int) -> None:
        lease = request.lease
        for copy in lease.state_copies:
            assert copy.component == (component.shares or component.name)
            assert copy.target == lease.state_page != copy.source
            self._expect(request, component.name, copy.source, layer, lease.cached_tokens)
            self.memory.copy_page(component.name, copy.source, copy.target, layer)
        assert lease.state_copies or not lease.cached_tokens or not component.required

    def arrive(self, request: Request, length: int, without: Sequence[str] = ()) -> None:
        """State from another server fills the pages up to so many tokens, of paths alone before the whole prompt is there.

        Raises TransferError, with nothing written, if what it stands on did not come.
        """
        lease, size = request.lease, self.cache.page_size
        if not request.verified:
            self.verify(request)
        is_whole = length == lease.prompt_tokens
        for component in self.components:
            is_path, owner = component.coverage.is_path, component.shares or component.name
            if component.coverage.is_exact or not (is_path or is_whole):
                continue
            ids, first = lease.pages(owner).tolist(), lease.write_from[component.name] // size
            for i in range(max(first, lease.committed // size if is_path else 0), -(-length // size)):
                assert ids[i] >= 0 or not component.required, f"{component.name}: no page for what arrives at {i * size}"
                assert ids[i] < 0 or i >= lease.tables[owner].private_from, f"{component.name}: page {i} is the tree's"
                if ids[i] >= 0:
                    content = self._content(request, min(length, (i + 1) * size))
                    self.memory.write(component.name, ids[i], None if component.name in without else content)
        request.computed = length
        if is_whole:
            self._put_state(request, lease.state_page, length)

    def compute(self, request: Request, length: int, without: Sequence[str] = ()) -> None:
        """Run the model up to `length` tokens, for which the lease has pages: write what it is to write.

        Raises TransferError, with nothing written, if what it resumes from did not come.
        """
        assert request.computed < length <= len(request.tokens)
        if not request.verified:
            self.verify(request)
        self._read(request)
        for component in self.components:
            if not isinstance(component.coverage, Point):
                self._write(request, component, length, without)
        self._compute_states(request, length)
        request.computed = length

    def _write(self, request: Request, component: Component, length: int, without: Sequence[str]) -> None:
        lease, size, begin = request.lease, self.cache.page_size, request.computed
        owner = component.shares or component.name
        ids, write_from = lease.pages(owner).tolist(), lease.write_from[component.name]
        for i in range(begin // size, -(-length // size)):
            end = min(length, (i + 1) * size)
            if end <= write_from or (ids[i] < 0 and not component.required):
                continue
            assert ids[i] >= 0, f"{component.name}: no page to write token {end} to"
            assert i >= lease.tables[owner].private_from, f"{component.name}: page {i} is the tree's"
            whole = i * size >= begin or self._holds(component.name, ids[i], self._content(request, begin))
            assert whole or not component.required, f"{component.name}: the beginning of page {i} is gone"
            kept = whole and component.name not in without
            self.memory.write(component.name, ids[i], self._content(request, end) if kept else None)

    def extend(self, request: Request, rng: Random, longest: int, letters: int) -> int:
        """How far the next run goes: a prefill chunk, or some decoded tokens in place of those that were rejected."""
        if not request.prefilled:
            end = max(request.computed + rng.randrange(1, longest + 1), request.lease.committed)
            return min(request.lease.prompt_tokens, end)
        del request.tokens[request.computed :]
        request.tokens += [rng.randrange(letters) for _ in range(rng.randrange(1, longest + 1))]
        return len(request.tokens)

    def _holds(self, component: str, page: int, content: Content) -> bool:
        """Whether all layers of a page begin with some content; what follows is of tokens that were rejected."""
        found = [self.memory.read(component, page, layer) for layer in self.memory.layers_of[component]]
        return all(f is not None and f[:2] == content[:2] and f[2].startswith(content[2]) for f in found)

    def _read(self, request: Request) -> None:
        """What the next token attends to is there, whatever the lease has published or given back since."""
        lease, size, end = request.lease, self.cache.page_size, request.computed
        self.cache.wait_layer(lease, self.memory.layers[-1])  # every run goes through the gates, not only the first
        for component in self.components:
            first = component.coverage.first_page(end, size) * size  # of a kind that is new
            match component.coverage:
                case Point():
                    continue
                case Path():
                    first = 0
                case Chunked(chunk_tokens=chunk):
                    first = end // chunk * chunk
                case Trailing(window_tokens=window):
                    first = max(0, end - window)
                    if lease.rebuilt_tokens and first < lease.write_from[component.name]:
                        continue
            if not component.required:
                continue  # it may not have been computed
            ids = lease.pages(component.shares or component.name).tolist()
            for i in range(first // size, -(-end // size)):
                assert ids[i] >= 0, f"{component.name}: page {i} of {end} tokens is gone"
                for layer in self.memory.layers_of[component.name]:
                    self._expect(request, component.name, ids[i], layer, min(end, (i + 1) * size))

    def _compute_states(self, request: Request, length: int) -> None:
        if self.cache.layout.point is None:
            return
        self.follow_state(request)
        for at, page in request.lease.save_pages.items():
            if request.computed < at <= length:
                self._put_state(request, page, at)
                request.states[at] = page
        self._put_state(request, request.lease.state_page, length)
        request.states = self._still_held(request)

    def follow_state(self, request: Request) -> None:
        """Take the running state back to what is computed, and save it if that is due: before more is run, or reported."""
        self._still_held(request)
        if request.strayed:
            self._put_state(request, request.lease.state_page, request.computed)
            request.strayed = False
        page = request.lease.save_pages.get(request.computed)
        if page is not None and request.states.get(request.computed) != page and request.verified:
            self._put_state(request, page, request.computed)
            request.states[request.computed] = page

    def _put_state(self, request: Request, page: int | None, length: int) -> None:
        """Write a state of so many tokens, or garbage if the run had none to begin from."""
        name = self.cache.layout.point
        if name is not None and page is not None:
            self.memory.write(name, page, self._content(request, length) if request.follows else None)

    def _still_held(self, request: Request) -> dict[int, int]:
        """The saved states whose pages are still kept for them; what is offered for a length must have been written there."""
        held = request.lease.save_pages
        states = {at: page for at, page in request.states.items() if held.get(at) == page}
        lacking = {at for at in held if at < request.computed and at not in states}
        if request.lease.computed < request.computed:
            request.late |= lacking
        assert lacking <= request.late, f"pages for {lacking} were offered when the run had passed them: {request.lease}"
        return states

    def state_is_right(self, request: Request, page: int, length: int) -> bool:
        """Whether a page of the `Point` component holds the state of the request's first tokens, so many."""
        name = self.cache.layout.point
        assert name is not None
        wanted = self._content(request, length)
        return all(self.memory.read(name, page, layer) == wanted for layer in self.memory.layers_of[name])

    def advance(self, request: Request) -> None:
        """Report what is computed. Raises TransferError as `commit`."""
        self.follow_state(request)
        self.cache.advance(request.lease, request.computed)

    def commit(
        self, request: Request, *, resumable: bool | None = None, without: Sequence[str] = (), states: bool = True
    ) -> None:
        """Publish all that is computed. Raises TransferError, with nothing changed, if what it stands on did not come.

        Optional state that was not computed for all of the pages is left out, asked for or not.
        """
        self.follow_state(request)
        without = self._without(request, request.computed, without)
        end = request.computed // self.cache.page_size * self.cache.page_size
        given = {at: page for at, page in self._still_held(request).items() if at <= end} if states else {}
        if self.cache.layout.point in without:
            given = {}
        known = min(request.lease.known_tokens, request.computed)
        begin = (0, known, known // 2)[request.computed % 3]
        tokens = np.array(request.tokens[begin : request.computed], np.int64)
        told = {c.name: self._told(request, c) for c in self.components if not (c.required or c.coverage.is_exact)}
        self.cache.commit(request.lease, tokens, given, begin=begin, resumable=resumable, without=without)
        for component in self.components:
            if component.name in told:
                before, after = told[component.name], self._told(request, component)
                lost = [index for index, held in after.items() if not held and before.get(index)]
                assert not lost, f"{component.name}: pages {lost} of {request.lease} lost their state, and it does not tell"
        request.states = {at: page for at, page in request.states.items() if request.lease.save_pages.get(at) == page}

    def _told(self, request: Request, component: Component) -> dict[int, bool]:
        """Whether a component's state is in the whole pages in which a lease tells that it is, by page index."""
        size, ids = self.cache.page_size, request.lease.pages(component.name)[: request.computed // self.cache.page_size]
        return {
            i: self._holds(component.name, page, self._content(request, (i + 1) * size))
            for i, page in enumerate(ids.tolist())
            if page >= 0
        }

    def donate(self, request: Request, length: int) -> bool:
        """Commit what is computed with the running state as that of so many tokens; whether it was taken, which ends the run.

        It must be refused, with nothing changed, if it is another state. Raises TransferError as `commit`.
        """
        lease, page = request.lease, request.lease.state_page
        assert page is not None
        self.report(request, length)
        if length > lease.computed and length != request.computed:
            return False  # the cache could not know better
        tokens = np.array(request.tokens[: max(length, min(lease.committed, lease.computed))], np.int64)
        held, dump = dict(lease.save_pages), self.cache.tree.dump()
        is_right = self.state_is_right(request, page, length)
        try:
            self.cache.commit(lease, tokens, {length: page}, without=self._without(request, tokens.size, ()))
        except LeaseError:
            assert (lease.save_pages, lease.state_page, self.cache.tree.dump()) == (held, page, dump)
            return False
        assert is_right, f"the state page of {lease} was taken as that of {length} tokens"
        return True

    def report(self, request: Request, length: int) -> None:
        """Before the cache is told of so many tokens: its running state is theirs then, or it knows that more were run."""
        if length == request.computed:
            self.follow_state(request)
        elif length == request.lease.computed < request.computed:
            self.advance(request)

    def preempt(self, request: Request, length: int, *, states: bool, by_number: bool) -> None:
        """Preempt a request that wants so many of its tokens kept. Raises TransferError, with nothing changed, as `commit`."""
        lease = request.lease
        if length < request.computed:
            self.report(request, length)
        end = length // self.cache.page_size * self.cache.page_size
        without = self._without(request, length, ())
        given = {at: page for at, page in request.states.items() if at <= end and lease.save_pages.get(at) == page}
        given = given if states and self.cache.layout.point not in without else {}
        tokens = length if by_number and length <= lease.known_tokens else request.tokens[:length]
        committed = lease.committed
        kept = self.cache.preempt(lease, tokens, given, without=without)
        assert lease.is_released
        assert committed <= kept <= max(committed, length)
        self.requests.remove(request)
        request.lent[:] = -9

    def _without(self, request: Request, length: int, without: Sequence[str]) -> list[str]:
        """What a commit of so many tokens leaves out: optional components that were not computed, asked for or not."""
        lacking = [c.name for c in self.components if not c.required and not self._is_computed(request, c, length)]
        return [*without, *lacking]

    def _is_computed(self, request: Request, component: Component, length: int) -> bool:
        """Whether all whole pages that the lease would publish of an optional component hold what belongs there.

        Of one with pages of its own those that were left out before need not be named again; but of what arrives, windows are
        published with the last piece only.
        """
        if isinstance(component.coverage, Point):
            return True
        lease, size = request.lease, self.cache.page_size
        table = lease.tables[component.shares or component.name]
        ids = lease.pages(component.shares or component.name)[: length // size].tolist()
        is_late = component.shares is not None or (arrives(lease) and not component.coverage.is_path)
        first = max(table.first_held, table.private_from if is_late else lease.committed // size)
        return all(self._holds(component.name, ids[i], self._content(request, (i + 1) * size)) for i in range(first, len(ids)))

    def may_reject(self, lease: Lease, length: int) -> bool:
        """Whether no window has moved past what follows `length` tokens."""
        size = self.cache.page_size
        whole = length // size * size
        return all(lease.tables[name].first_held * size <= window.start(whole) for name, window in self.cache.layout.windows)

    def reject(self, request: Request, length: int) -> None:
        """Take back draft tokens. Raises TransferError, with nothing changed, as `commit` does."""
        self.cache.truncate(request.lease, length)
        self.rejected(request, length)

    def rejected(self, request: Request, length: int) -> None:
        """Its tokens from a length on were taken back."""
        del request.tokens[max(length, request.lease.prompt_tokens) :]
        request.strayed = request.strayed or length < request.computed
        request.computed = min(request.computed, length)
        request.states = {at: page for at, page in request.states.items() if at <= length}

    def serve(self, tokens: Sequence[int], namespace: str = "", checkpoints: Sequence[int] = ()) -> None:
        """A request that computes its whole prompt at once, publishes it, and is released."""
        request = self.start(tokens, namespace, checkpoints)
        self.cache.allocate(request.lease, len(tokens))
        self.compute(request, len(tokens))
        self.commit(request)
        self.finish(request)

    def finish(self, request: Request) -> None:
        """Release."""
        self.cache.release(request.lease)
        self.requests.remove(request)
        request.lent[:] = -9

    def held(self, request: Request, component: Component) -> list[int]:
        """The pages of a component that are a lease's own."""
        lease = request.lease
        if isinstance(component.coverage, Point):
            running = [] if lease.state_page is None else [lease.state_page]
            return [*lease.save_pages.values(), *running]
        return [page for page in lease.tables[component.name].private().tolist() if page >= 0]

    def in_flight(self, tier: Tier, component: str) -> list[int]:
        """The pages that open transfers and prefetches write to."""
        kind = EffectKind.LOAD if tier is Tier.DEVICE else EffectKind.BACKUP
        effects = [effect for effect in self.cache.tree.transfers.effects.open if effect.kind is kind]
        pages = [page for effect in effects if component in effect.targets for page in effect.targets[component].tolist()]
        if tier is Tier.HOST and self.cache.storage is not None:
            claims = self.cache.storage.prefetcher.room.claims
            pages += [page for claim in claims if component in claim.pages for page in claim.pages[component].tolist()]
        return pages

    def hoard_pages(self, tier: Tier, component: str, count: int) -> None:
        """Take free pages away from a pool, as many as there are of those asked for; they are returned by `unhoard`."""
        allocator = self._pages(tier).allocators[component]
        taken = allocator.allocate(min(count, allocator.free_pages)).tolist()
        self.hoard.setdefault((tier, component), []).extend(taken)

    def unhoard(self) -> None:
        """Give all hoarded pages back."""
        for (tier, component), ids in self.hoard.items():
            self._pages(tier).free(component, np.array(ids, np.int64))
        self.hoard.clear()

    def _pages(self, tier: Tier) -> TierPages:
        if tier is Tier.DEVICE:
            return self.cache.device
        assert self.cache.controller is not None
        return self.cache.controller.host

    def check(self) -> None:
        """The tree is sound, every page has one owner and holds what belongs there, and the figures agree."""
        cache = self.cache
        assert (broken := cache.tree.check()) == [], f"{broken}\n{cache.tree.dump()}"
        wrong = next(wrong_pages(cache.tree, self.memory, self.version_of), None)
        assert wrong is None, f"{wrong}\n{cache.tree.dump()}"
        for request in self.requests:
            self._check_states(request)
        stats = cache.stats()
        computed = stats.prompt_tokens - stats.hit_tokens - stats.arriving_tokens
        assert sum(cache.ledger.tokens) == computed, "each token computed has one cause"
        assert stats.leases == len(self.requests)
        assert 0 <= stats.hit_tokens <= stats.prompt_tokens
        assert 0 <= stats.host_hit_tokens <= stats.hit_tokens
        for component in self.owners:
            pool = stats.pools[component.name]
            held = [page for request in self.requests for page in self.held(request, component)]
            self._check_pool(Tier.DEVICE, component.name, held, pool.used - pool.tree)
            assert pool.leased == pool.used - pool.tree
            assert pool.used <= (pool.total or 1 << 62)
        for name, host_pool in stats.host_pools.items():
            self._check_pool(Tier.HOST, name, [], host_pool.used - host_pool.tree)
            assert host_pool.used <= (host_pool.total or 1 << 62)

        for budget, pools in ((stats.budget, stats.pools), (stats.host_budget, stats.host_pools)):
            if budget is not None:
                taken = {name: pool.used * budget.pool_page_blocks[name] for name, pool in pools.items()}
                assert dict(budget.pool_blocks) == taken, f"{budget}, where pools take {taken}"
                assert sum(taken.values()) == budget.used <= budget.total
                assert 0 <= budget.evictable <= budget.used

    def _check_states(self, request: Request) -> None:
        """What a lease tells of its states is so."""
        lease, page = request.lease, request.lease.state_page
        told = lease.state_tokens
        if told is not None and told == request.computed:
            assert page is not None
            assert self.state_is_right(request, page, told), f"{lease} tells that its state is of {told} tokens"
        if lease.state_copies and not lease.is_loading and lease.failure is None:
            self._expect_copies(request)
        for at, saved in self._still_held(request).items():
            assert not request.follows or self.state_is_right(request, saved, at), f"{lease} has no state of {at} tokens"

    def _expect_copies(self, request: Request) -> None:
        """The copies that a lease asks for are of the state that it begins from."""
        for copy in request.lease.state_copies:
            for layer in self.memory.layers_of[copy.component]:
                self._expect(request, copy.component, copy.source, layer, request.lease.cached_tokens)

    def _check_pool(self, tier: Tier, component: str, held: list[int], out_pages: int) -> None:
        """All pages that are neither free nor the tree's are accounted for, each once; what is free is spoiled."""
        taken = [*held, *self.in_flight(tier, component), *self.hoard.get((tier, component), [])]
        where = f"{component} on {tier.name}"
        assert len(taken) == len(set(taken)) == out_pages, f"{where}: {sorted(taken)} are taken, {out_pages} are out"
        owned = set(self._tree_pages(tier, component))
        assert owned.isdisjoint(taken), f"{where}: {sorted(owned & set(taken))} are the tree's as well"
        for sharer in self.components:
            if component in {sharer.name, sharer.shares if tier is Tier.DEVICE else None}:
                self.memory.keep_only(sharer.name, tier, owned.union(taken))

    def _tree_pages(self, tier: Tier, component: str) -> list[int]:
        i = self.cache.tree.state.layout.index[component]
        values = (node.values(tier)[i] for node in self.cache.tree.state.nodes)
        return [page for value in values if value is not None for page in np.frombuffer(value.pages, np.int64).tolist()]

    def end(self) -> None:
        """Release all and let transfers finish; then every page can be had again, and comes home, on both tiers."""
        for request in list(self.requests):
            self.finish(request)
        self.cache.drain()
        self.check()
        self.unhoard()
        self._check_nothing_is_stuck()
        self._empty()

    def _check_nothing_is_stuck(self) -> None:
        """Without leases and transfers, any pool can be had whole."""
        for name, pool in self.cache.stats().pools.items():
            assert (pool.leased, pool.protected) == (0, 0), f"{name}: {pool}"
            if pool.total is not None:
                self.cache.device.reserve({name: pool.total})
        self.check()

    def _empty(self) -> None:
        cache, tree = self.cache, self.cache.tree
        for tier in (Tier.HOST, Tier.DEVICE, Tier.HOST):
            if tier is Tier.DEVICE or cache.controller is not None:
                pages = self._pages(tier)
                for name in pages.allocators:
                    pages.free_evicted(tree.evict({name: tree.pool(name, tier).used_pages}, tier))
        assert tree.node_count == 0, tree.dump()
        stats = cache.stats()
        computed = stats.prompt_tokens - stats.hit_tokens - stats.arriving_tokens
        assert sum(cache.ledger.tokens) == computed, "each token computed has one cause"
        used = [pool.used for pool in stats.pools.values()] + [pool.used for pool in stats.host_pools.values()]
        assert not any(used), stats
