"""A prompt that comes again hits all that can be hit of it, in worlds of random kinds, pages, grids, chunks and branches.

The oracle is arithmetic. A repeat computes its last token, and what fills no page or grid step. With windows and no states a
prompt that shares its beginning with any earlier one hits as many whole pages of that.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Component, Key, Path, Point
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.transfer_engines import NullEngine

WINDOWS = {
    "full": [FULL],
    "window": [FULL, swa(3)],
    "wide window": [FULL, swa(37)],
    "two windows": [FULL, swa(3), swa(21, name="wide")],
    "optional window": [FULL, swa(5, required=False)],
}
STATES = {
    "states": [FULL, Component(name="mamba", coverage=Point())],
    "gridded states": [FULL, Component(name="mamba", coverage=Point(), save_grid_tokens=8)],
    "windows and states": [FULL, swa(9), Component(name="mamba", coverage=Point())],
    "two paths and states": [FULL, Component(name="packed", coverage=Path()), Component(name="mamba", coverage=Point())],
}


class World:
    """A cache without limits, and what was computed in it."""

    def __init__(self, kinds: list[Component], rng: Random) -> None:
        self.rng = rng
        self.page = rng.choice([1, 2, 4, 8])
        self.cache = PrefixCache(kinds, self.page)
        self.grid = self.cache.layout.save_grid_tokens
        self.seen: list[list[int]] = []
        self.advances = True

    def prompt(self) -> list[int]:
        """New, or one that goes on from somewhere in an earlier one; often of whole pages or grid steps."""
        rng = self.rng
        old = rng.choice(self.seen) if self.seen and rng.random() < 0.7 else []
        tokens = old[: rng.choice([len(old), rng.randrange(len(old) + 1)])]
        tokens = tokens + [rng.randrange(3) for _ in range(rng.randrange(1, 60))]
        step = rng.choice([1, self.page, self.grid])
        return tokens[: max(step, len(tokens) // step * step)]

    def serve(self, tokens: list[int], *, answers: int = 0) -> int:
        """A request's whole life, in chunks of any length that end where states are saved; what it hit."""
        cache, rng = self.cache, self.rng
        with cache.acquire(Key(np.array(tokens))) as lease:
            self._run(lease, len(tokens))
            assert cache.tree.check() == []
            text = tokens + [rng.randrange(3) for _ in range(answers)]
            if answers:
                cache.allocate(lease, len(text))
                cache.commit(lease, np.array(text))
            self.seen.append(text)
            return lease.cached_tokens

    def _run(self, lease: Lease, length: int) -> None:
        cache, rng = self.cache, self.rng
        at = lease.compute_from
        while lease.is_loading:
            cache.drain()
        while at < length:
            end = min(length, at + rng.choice([1, 7, 64, 1000]), lease.next_stop(at) or length)
            cache.allocate(lease, end)
            if self.advances and rng.random() < 0.5:
                cache.advance(lease, end)  # windows that nothing needs come free before they are published
            states = {end: lease.save_pages[end]} if end in lease.save_pages else {}
            cache.commit(lease, end, states)
            at = end

    def common(self, tokens: list[int]) -> int:
        """How many of its first tokens an earlier text has."""
        longest = 0
        for text in self.seen:
            pairs = zip(tokens, text, strict=False)
            longest = max(longest, next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(text))))
        return longest


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kinds", [*WINDOWS, *STATES])
def test_an_exact_repeat_hits_all_but_what_must_be_computed_again(kinds: str, seed: int) -> None:
    world = World((WINDOWS | STATES)[kinds], Random(f"{kinds} {seed}"))
    for _ in range(8):
        tokens = world.prompt()
        world.serve(tokens, answers=world.rng.choice([0, 0, 5]))
        assert world.serve(tokens) == (len(tokens) - 1) // world.grid * world.grid


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("write_policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
@pytest.mark.parametrize("kinds", [*WINDOWS, *STATES])
def test_it_does_so_from_host_too(kinds: str, write_policy: WritePolicy, seed: int) -> None:
    """Write-back copies what no request uses, all of it if all is to be free or copied."""
    host = HostTier(page_counts={}, engine=NullEngine(), write_policy=write_policy, low_water=1.0, max_backup_share=1.0)
    world = World((WINDOWS | STATES)[kinds], Random(f"host {kinds} {seed}"))
    counts = {component.name: 4096 for component in world.cache.layout.components}  # in endless pools no copy is ever due
    world.cache = PrefixCache(world.cache.layout.components, world.page, counts, host=host)
    for _ in range(6):
        tokens = world.prompt()
        world.serve(tokens, answers=world.rng.choice([0, 0, 5]))
        world.cache.poll()
        world.cache.drain()
        world.cache.evict(counts)
        with world.cache.acquire(Key(np.array(tokens))) as lease:
            assert lease.cached_tokens == (len(tokens) - 1) // world.grid * world.grid
            world.cache.drain()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kinds", WINDOWS)
def test_a_branch_anywhere_hits_what_any_prompt_has_of_it(kinds: str, seed: int) -> None:
    world = World(WINDOWS[kinds], Random(f"branch {kinds} {seed}"))
    world.advances = False
    for _ in range(20):
        tokens = world.prompt()
        expected = min(world.common(tokens), len(tokens) - 1) // world.page * world.page
        assert world.serve(tokens, answers=0) == expected


@pytest.mark.parametrize("kinds", ["window", "wide window", "windows and states", "states"])
def test_all_samples_of_a_prompt_but_the_first_hit_it(kinds: str) -> None:
    """While the first still runs, as `n` samples and best-of do."""
    world = World((WINDOWS | STATES)[kinds], Random(kinds))
    tokens = np.arange(world.grid * 12)
    first = world.cache.acquire(Key(tokens))
    world._run(first, tokens.size)
    samples = [world.cache.acquire(Key(tokens)) for _ in range(4)]
    assert [each.cached_tokens for each in samples] == [tokens.size - world.grid] * 4


def test_where_pages_are_short_a_prompt_still_hits_its_repeat() -> None:
    """What goes first is spare: windows before those of the end, and the state at the very end."""
    kinds = [FULL, swa(6), Component(name="mamba", coverage=Point())]
    cache = PrefixCache(kinds, 2, {"full": 400, "swa": 4 * 12, "mamba": 12})
    world = World(kinds, Random(1))
    world.cache, world.page, world.grid = cache, 2, 2
    prompts = [list(range(first, first + 20)) for first in range(0, 800, 100)]
    for prompt in prompts:
        world.serve(prompt)
    assert [world.serve(prompt) for prompt in prompts[-4:]] == [18] * 4


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kinds", ["window", "wide window", "two windows", "states", "gridded states", "windows and states"])
def test_nothing_that_a_repeat_needs_goes_before_what_an_older_prompt_keeps(kinds: str, seed: int) -> None:
    """Of a kind that is short all that is stranded or spare goes first, and then what was used least recently."""
    world = World((WINDOWS | STATES)[kinds], Random(f"short {kinds} {seed}"))
    world.cache = PrefixCache(world.cache.layout.components, world.page, policy="lru")
    short = world.rng.choice([component.name for component in world.cache.layout.components[1:]])
    tokens = world.prompt()
    world.serve([1000 + token for token in range(100)])
    world.serve(tokens, answers=world.rng.choice([0, 0, 5]))
    while (evicted := world.cache.evict({short: 1})).victims > evicted.lost:
        assert world.cache.tree.check() == []
    assert world.serve(tokens) == (len(tokens) - 1) // world.grid * world.grid
