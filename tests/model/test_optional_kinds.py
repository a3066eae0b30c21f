"""A cache with an optional kind of state beside one without it: whatever is lost of that kind, no request hits less.

Both serve the same requests from pools of the same size. The optional kind is left out of commits, evicted alone on device
and on host, and has few pages of its own. Requests that run may hold them all, and others begin or go on without it. Beside
optional windows and states nothing else is evicted: a tree that keeps them has more nodes, and so evicts in other pieces.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from kinds import DRAFT, FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import BlockBudget, Component, Key, OutOfPagesError, Path, Point, Tier
from unified_tree.controllers import HostTier, LoadCost, PrefixCache, WritePolicy
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.transfer_engines import NullEngine

MODELS = {"full": [FULL], "window": [FULL, swa(5)], "rebuilt window": [FULL, swa(5, rebuild_tokens=10)], "state": [FULL, MAMBA]}
OPTIONAL = {
    "draft in shared pages": [DRAFT],
    "draft of its own": [OWN_DRAFT],
    "draft of a window": [swa(6, required=False, name="draft")],
    "two drafts": [DRAFT, swa(3, required=False, name="draft_swa")],
    "sums of blocks": [Component(name="draft", coverage=Path(), required=False, tokens_per_slot=2)],
    "state": [Component(name="draft", coverage=Point(), required=False)],
    "state in a state's page": [Component(name="draft", coverage=Point(), required=False, shares="mamba")],
    "state on a grid": [Component(name="draft", coverage=Point(), required=False, save_grid_tokens=4)],
}
SEEDS = 5


class Twins:
    """The same requests to two caches, which must hit the same."""

    def __init__(self, model: list[Component], optional: list[Component], seed: int) -> None:
        self.random = random = Random(seed)
        self.page = random.choice([2, 4])
        self.optional = [c.name for c in optional]
        policy, host = random.choice(["lru", "lfu", "fifo"]), random.random() < 0.6
        room = random.choice([12, 40]) if all(c.coverage.is_path for c in optional) else 400
        self.most_held = random.choice([0, 2]) if room > 12 else 0
        write_policy = random.choice(list(WritePolicy))
        self.caches = []
        for components in (model, [*model, *optional]):
            few = 5 if self.most_held else 12
            counts = {c.name: self.few(c, few) if c.name in self.optional else room for c in components if c.shares is None}
            tier = None
            if host:
                wide = {c.name: 2 if c.name in self.optional else 2 * room for c in components}
                tier = HostTier(
                    page_counts=wide, engine=NullEngine(), write_policy=write_policy, load_cost=LoadCost(min_tokens=1)
                )
            self.caches.append(PrefixCache(components, self.page, counts, policy=policy, host=tier))
        self.seen: list[list[int]] = []
        self.expected = dict.fromkeys(self.optional, 0)
        self.hits = self.given_up = self.refused = 0
        self.held: list[list[Lease]] = []

    def few(self, optional: Component, pages: int) -> int:
        """Of a state a request takes a page or three, of others one for some tokens."""
        return self.random.choice([2, 5, 12]) if optional.coverage.is_exact else pages

    def live(self, steps: int) -> None:
        """Serve, and lose the optional kind in between."""
        for _ in range(steps):
            if self.random.random() < 0.3:
                self._lose()
            self._serve()
            for cache in self.caches:
                assert cache.tree.check() == []
        assert dict(self.caches[1].stats().hit_tokens_without) == self.expected
        assert self.caches[0].stats().hit_tokens_without == {}
        while self.held:
            self._release(0)
        for cache in self.caches:
            assert not any(pool.leased for pool in cache.stats().pools.values())
            cache.close()

    def _lose(self) -> None:
        cache, name, tier = self.caches[1], self.random.choice(self.optional), self.random.choice([Tier.DEVICE, Tier.HOST])
        shares = next(c.shares for c in cache.tree.components if c.name == name)
        if tier is Tier.DEVICE and shares is None:
            cache.device.free_evicted(cache.tree.evict({name: 9}))
        elif tier is Tier.HOST and cache.controller is not None:
            cache.controller.host.free_evicted(cache.tree.evict({name: 9}, Tier.HOST))

    def _serve(self) -> None:
        random = self.random
        old = random.choice(self.seen) if self.seen and random.random() < 0.8 else []
        prompt = [*old[: random.randint(0, len(old))], *(random.randrange(4) for _ in range(random.randint(1, 9)))][:22]
        without = [name for name in self.optional if random.random() < 0.4]
        self.seen.append(prompt)
        reserve = random.choice([0, 0, len(prompt), len(prompt) + 4])
        leases = [self._acquire(cache, prompt, reserve) for cache in self.caches]
        for cache in self.caches:
            cache.drain()
        plain, other = leases
        if plain is None or other is None:
            assert plain is other, f"{prompt}: an optional kind refused a request"
            self.refused += 1
            return
        self.given_up += len(other.given_up)
        assert other.cached_tokens == plain.cached_tokens, f"{prompt}: an optional kind changed a hit"
        assert (other.compute_from, other.host_tokens) == (plain.compute_from, plain.host_tokens)
        self.hits += plain.compute_from
        for name in self._lacked(other):
            self.expected[name] += other.compute_from
        chunk = random.choice([self.page, len(prompt)])  # what is computed in parts gives windows up on its way
        for cache, lease in zip(self.caches, (plain, other), strict=True):
            for end in range(plain.compute_from + chunk, len(prompt), chunk):
                self._allocate(cache, lease, end)
                cache.advance(lease, end)
            self._allocate(cache, lease, len(prompt))
            left_out = without if cache is self.caches[1] else []
            saved = {} if cache.layout.point in left_out else lease.save_pages
            states = {length: page for length, page in saved.items() if length <= len(prompt)}
            cache.commit(lease, prompt, states, without=left_out)
        self.held.append([plain, other])
        while len(self.held) > self.most_held:
            self._release(random.randrange(len(self.held)))

    def _acquire(self, cache: PrefixCache, prompt: list[int], reserve: int) -> Lease | None:
        """None if it is refused."""
        try:
            return cache.acquire(Key(np.array(prompt)), reserve_tokens=reserve)
        except OutOfPagesError:
            return None

    def _allocate(self, cache: PrefixCache, lease: Lease, length: int) -> None:
        """Go on without the optional kinds that have no pages; a required one must have them."""
        while True:
            try:
                cache.allocate(lease, length)
                break
            except OutOfPagesError as error:
                short = error.component
            assert short in self.optional, f"{short} is required"
            assert short not in lease.given_up
            cache.allocate(lease, lease.length, without=[short])
            self.given_up += 1

    def _release(self, index: int) -> None:
        for cache, lease in zip(self.caches, self.held.pop(index), strict=True):
            cache.release(lease)

    def _lacked(self, lease: Lease) -> list[str]:
        """What a lease's own tables say that it lacks of what a hit needs."""
        lacked = []
        for c in self.caches[1].tree.components:
            if c.name in self.optional and lease.compute_from:
                if c.coverage.is_exact and c.shares is None:
                    lacks = not lease.state_copies
                elif c.coverage.is_exact:
                    lacks = not self.caches[1].tree.pages(lease.boundary, c.name).size
                    assert lacks == (c.name in lease.missing)
                else:
                    first = c.coverage.first_page(lease.cached_tokens, self.page)
                    needed = range(first, lease.cached_tokens // self.page)
                    gone = range(*lease.missing.get(c.name, (0, 0)))
                    lacks = any(page in gone or lease.page(c.name, page) < 0 for page in needed)
                lacked += [c.name] * lacks
        return lacked


def fits(model: str, optional: str) -> bool:
    """Whether a model has at most one state with pages of its own, and one that shares its page."""
    states = [c for c in [*MODELS[model], *OPTIONAL[optional]] if c.coverage.is_exact]
    return [c.shares is None for c in states] in ([], [True], [True, False])


@pytest.mark.parametrize("optional", OPTIONAL)
@pytest.mark.parametrize("model", MODELS)
def test_an_optional_kind_never_shortens_a_hit(model: str, optional: str) -> None:
    if not fits(model, optional):
        pytest.skip("one state, no other, has pages of its own")
    hits = lacking = given_up = 0
    for seed in range(SEEDS):
        twins = Twins(MODELS[model], OPTIONAL[optional], seed)
        twins.live(25)
        hits += twins.hits
        lacking += sum(twins.expected.values())
        given_up += twins.given_up
    assert hits > lacking / len(OPTIONAL[optional]) > 0, "some hits have it, and some lack it"
    has_own_pages = any(c.shares is None for c in OPTIONAL[optional])
    assert (given_up > 0) == has_own_pages, "some requests find no page of it"


def test_a_kind_that_gates_would_be_seen() -> None:
    """The same kinds, required, shorten hits."""
    required = [replace(c, required=True) for c in OPTIONAL["draft of a window"]]

    def live() -> None:
        for seed in range(SEEDS):
            Twins(MODELS["full"], required, seed).live(25)

    with pytest.raises(AssertionError, match="an optional kind changed a hit"):
        live()


def one_budget(model: str, optional: str, seed: int) -> tuple[int, int]:
    """Serve requests, one at a time, from a cache whose kinds share a budget. It must serve each that an empty cache of the
    required kinds alone serves, with a page more for the state that a hit copies. Returns how many lost an optional kind, and
    how many were refused.
    """
    random = Random(seed)
    kinds, page = MODELS[model], random.choice([2, 4])
    own = [c for c in OPTIONAL[optional] if c.shares is None]
    blocks = {c.name: random.randint(1, 4) for c in [*kinds, *own]}
    copied = blocks["mamba"] if model == "state" else 0
    room = random.randint(6, 30)
    budget = BlockBudget(block_count=room + copied, page_blocks=blocks)
    cache = PrefixCache([*kinds, *OPTIONAL[optional]], page, budget=budget, policy=random.choice(["lru", "cost"]))
    required = BlockBudget(block_count=room, page_blocks={c.name: blocks[c.name] for c in kinds})
    names = [c.name for c in own]
    seen: list[list[int]] = []
    given_up = refused = 0
    for _ in range(30):
        old = random.choice(seen) if seen and random.random() < 0.8 else []
        prompt = [*old[: random.randint(0, len(old))], *(random.randrange(4) for _ in range(random.randint(1, 9)))][:30]
        reserve, length = random.choice([0, len(prompt)]), len(prompt) + random.choice([0, 0, 8])
        alone = PrefixCache(kinds, page, budget=required)
        can_begin = can_run = True
        try:
            lease = alone.acquire(Key(prompt), reserve_tokens=reserve)
            can_run = alone.can_allocate(lease, length)
        except OutOfPagesError:
            can_begin = False
        try:
            lease = cache.acquire(Key(prompt), reserve_tokens=reserve)
        except OutOfPagesError:
            assert not can_begin, f"{seed}: an optional kind refused {prompt}"
            refused += 1
            continue
        seen.append(prompt)
        try:
            cache.allocate(lease, length)
        except OutOfPagesError:
            if can_begin and can_run:
                cache.allocate(lease, length, without=names)
            else:
                cache.release(lease)
                continue
        assert cache.tree.check() == []
        without = [name for name in names if random.random() < 0.2]
        saved = {} if cache.layout.point in without else {n: p for n, p in lease.save_pages.items() if n <= len(prompt)}
        cache.commit(lease, prompt, saved, without=without)
        given_up += bool(lease.given_up)
        cache.release(lease)
        assert cache.tree.check() == []
    assert not any(pool.leased for pool in cache.stats().pools.values())
    cache.close()
    return given_up, refused


@pytest.mark.parametrize("optional", [name for name, kinds in OPTIONAL.items() if any(c.shares is None for c in kinds)])
@pytest.mark.parametrize("model", MODELS)
def test_in_one_budget_an_optional_kind_refuses_nothing(model: str, optional: str) -> None:
    if not fits(model, optional):
        pytest.skip("one state, no other, has pages of its own")
    given_up = refused = 0
    for seed in range(SEEDS + 2):
        lost, late = one_budget(model, optional, seed)
        given_up, refused = given_up + lost, refused + late
    assert given_up > 0 < refused
