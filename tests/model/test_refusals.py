"""A call that refuses leaves no trace but evictions: the same life with refusals and without them, in every policy.

Of each life there are two caches. One hears only the calls that succeed, the other also calls that are refused, between them.
Whatever the refusals evict nothing in, both remember the same after each call: uses, stamps, visits, locks, copies, statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest
from kinds import SETS

from unified_tree import POLICIES, BlockBudget, Component, Key, OutOfPagesError, UnifiedTreeError
from unified_tree.controllers import HostTier, Lease, PrefixCache, WritePolicy
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.nodes.effect import EffectKind
from unified_tree.nodes.line import Line
from unified_tree.nodes.node import Value
from unified_tree.policies.density.turns import Session, latest
from unified_tree.terms.tier import NodeId

PAGE_SIZE = 2
HUGE = 10_000
UNCOUNTED = {"refused", "load_wait_s", "backed_up", "loaded"}


class Life:
    """One cache, a few leases and a batch; the same for the same seed, and so are the calls that it is asked to make."""

    def __init__(self, kinds: list[Component], seed: str, policy: str, write_policy: WritePolicy | None) -> None:
        rng = Random(seed)
        self.clock = VirtualClock()
        counts: dict[str, Any] = {"page_counts": {c.name: rng.choice([8, 12, 24]) for c in kinds if c.shares is None}}
        host = None
        if write_policy is not None:
            engine = SimulatedEngine(rng.randrange(100), self.clock)
            pages = {c.name: rng.choice([12, 60]) for c in kinds}
            host = HostTier(page_counts=pages, engine=engine, write_policy=write_policy, selective_hits=rng.choice([1, 2]))
        if rng.random() < 0.3:
            blocks = {c.name: rng.choice([1, 2, 3]) for c in kinds if c.shares is None}
            counts = {"budget": BlockBudget(block_count=20 * sum(blocks.values()), page_blocks=blocks)}
        self.cache = PrefixCache(kinds, PAGE_SIZE, **counts, host=host, policy=policy, time_s=lambda: self.clock.now / 1e9)
        self.batch = self.cache.batch(max_leases=3, max_tokens=60)
        self.leases: list[Lease] = []
        self.texts: list[list[int]] = [[]]

    def text(self, rng: Random) -> list[int]:
        old = rng.choice(self.texts)
        return old[: rng.choice([len(old), rng.randrange(len(old) + 1)])] + [
            rng.randrange(3) for _ in range(rng.randrange(1, 9))
        ]

    def step(self, seed: int) -> None:
        """A call that a scheduler makes; one without room ends its request."""
        rng, cache = Random(seed), self.cache
        name = rng.choice(["start", "start", "run", "run", "batch", "release", "poll", "evict"])
        if name == "start" and len(self.leases) < 4:
            tokens = self.text(rng)
            try:
                lease = cache.acquire(Key(tokens), [2] * rng.randrange(2), reserve_tokens=rng.choice([0, len(tokens)]))
            except OutOfPagesError:
                return
            self.texts.append(tokens)
            self.leases.append(lease)
        elif name == "run" and self.leases:
            lease = rng.choice(self.leases)
            try:
                cache.allocate(lease, max(lease.length, lease.prompt_tokens))
                self.publish(lease)
                if lease.row is None and rng.random() < 0.5:
                    self.batch.add(lease)
            except UnifiedTreeError:
                self.end(lease)
        elif name == "batch" and self.batch.leases:
            try:
                self.batch.allocate(rng.randrange(1, 4))
                self.batch.advance()
            except UnifiedTreeError:
                self.end(self.batch.leases[0])
        elif name == "release" and self.leases:
            self.end(rng.choice(self.leases))
        elif name == "poll":
            self.clock.advance(rng.choice([0, 100_000, 2_000_000]))
            cache.poll()
        elif name == "evict":
            cache.evict({each: rng.randrange(3) for each in cache.device.allocators})

    def publish(self, lease: Lease) -> None:
        """What of the prompt is new."""
        length = lease.prompt_tokens
        if lease.committed < length <= lease.known_tokens:
            states = {at: page for at, page in lease.save_pages.items() if at <= length // PAGE_SIZE * PAGE_SIZE}
            self.cache.commit(lease, length, states)

    def end(self, lease: Lease) -> None:
        self.leases.remove(lease)
        self.cache.release(lease)

    def refusals(self, seed: int) -> list[Callable[[], object]]:
        """Calls that cannot be done, of every kind that there is."""
        rng, cache, tree = Random(seed), self.cache, self.cache.tree
        tokens = self.text(rng)
        known = tree.match_prefix(Key(tokens), touch=False)
        calls: list[Callable[[], object]] = [
            lambda: cache.acquire(Key(tokens), reserve_tokens=HUGE),
            lambda: cache.acquire(Key(tokens), [2, 4], reserve_tokens=HUGE, request="it", may_load=False),
            lambda: cache.acquire(Key([*tokens, -1])),
            lambda: cache.acquire_to_fill(Key(tokens), HUGE),
            lambda: cache.acquire(Key(tokens), reserve_tokens=len(tokens) + self.room()),
            lambda: tree.insert(Key(tokens), {"full": np.array([-1])}),
            lambda: tree.insert(Key([7, 7, *tokens]), {}),
            lambda: tree.lock(known.reachable._replace(node=NodeId(10**6), length=PAGE_SIZE)),
            lambda: tree.transfers.load(known.reachable, self.refuse),
            lambda: tree.transfers.backup(known.reachable, self.refuse),
            lambda: tree.evict({"nothing": 1}),
            lambda: cache.evict({"nothing": 1}),
            lambda: self.batch.allocate(HUGE),
        ]
        if self.leases:
            lease = rng.choice(self.leases)
            calls += [
                lambda: cache.allocate(lease, HUGE),
                lambda: cache.allocate(lease, lease.length + self.room()),
                lambda: cache.advance(lease, lease.length + 1),
                lambda: cache.commit(lease, lease.length + HUGE),
                lambda: cache.preempt(lease, lease.length + HUGE),
                lambda: cache.truncate(lease, lease.length + 1),
                lambda: self.batch.remove(None),  # type: ignore[arg-type]
            ]
        return calls

    def room(self) -> int:
        """More tokens than all that is free or evictable has room for, by hardly a page."""
        pages = [pool.total for pool in self.cache.stats().pools.values() if pool.total is not None]
        return PAGE_SIZE * (min(pages) + 1)

    @staticmethod
    def refuse(needs: dict[str, int]) -> Any:
        raise OutOfPagesError(f"no room for {needs}")

    def evictions(self) -> object:
        """What was evicted so far."""
        stats = self.cache.stats()
        return stats.evictions, stats.deleted_nodes, [pool.victims for pool in stats.host_pools.values()]

    def remembered(self) -> dict[str, object]:
        """All that a refusal must leave as it was."""
        cache, state = self.cache, self.cache.tree.state
        now = cache.stats()
        stats = {each.name: getattr(now, each.name) for each in fields(now) if each.name not in UNCOUNTED}
        sessions = {node.id: _known(node.line) for node in state.nodes if node.line is not None}
        return {
            "clock": state.clock,
            "values": [
                (node.id, node.end, _told(value)) for node in state.nodes for tier in (node.device, node.host) for value in tier
            ],
            "roots": list(state.roots),
            "sessions": sessions,
            "stats": stats,
            "copies": [cache.counters.transfers[kind].count for kind in EffectKind],
            "effects": len(cache.tree.transfers.effects.open),
            "tree": cache.tree.dump(),
            "leases": [(lease.length, lease.computed, lease.committed, dict(lease.save_pages)) for lease in self.leases],
            "batch": (self.batch.lengths.tolist(), {name: ids.tolist() for name, ids in self.batch.tables.items()}),
        }


def _known(line: Line) -> object:
    """The policy's state of a line. Which turn is the last of its session is looked up, and noted then, when that is asked."""
    session = line.policy_state
    if not isinstance(session, Session):
        return None
    turn, places = latest(line), session.places or {}
    told = None if turn is None else (turn.at, turn.end, turn.turns, turn.is_open)
    used = [(at, place.uses, place.last, place.is_open) for at, place in places.items()]
    stairs: list[tuple[int, int]] = []
    stair = session.stairs
    while stair is not None:
        stairs.append((stair.end, stair.use))
        stair = stair.next
    saves: list[tuple[int, int, int]] = []
    save = session.saves
    while save is not None:
        saves.append((save.length, save.use, save.short))
        save = save.next
    return told, used, saves, stairs


def _told(value: Value | None) -> object:
    if value is None:
        return None
    marks = None if value.marks is None else dict(value.marks)
    place = (value.is_placed, value.rank, value.second_rank, value.urgency) if value.is_placed else None
    return value.pages, value.touched, value.hits, value.created, value.locks, value.copied, value.was_read, marks, place


def live(kinds: str, seed: str, policy: str, write_policy: WritePolicy | None, steps: int) -> int:
    """Live one life twice; returns how many calls were refused and evicted nothing."""
    plain = Life(SETS[kinds], seed, policy, write_policy)
    vexed = Life(SETS[kinds], seed, policy, write_policy)
    rng, refused, before = Random(seed), 0, vexed.remembered()
    for step in range(steps):
        evicted, call = vexed.evictions(), rng.randrange(1 << 20)
        tried = rng.sample(range(len(vexed.refusals(call))), 3)
        for at in tried:
            try:
                vexed.refusals(call)[at]()
            except UnifiedTreeError:
                pass
            else:
                if vexed.remembered() != before or vexed.evictions() != evicted:
                    return refused  # it was no refusal after all: the lives part here
            if vexed.evictions() != evicted:
                return refused
            refused += 1
        now = vexed.remembered()
        assert now == before, (step, tried, call, [(k, now[k], before[k]) for k in now if now[k] != before[k]])
        seed_of_step = rng.randrange(1 << 20)
        plain.step(seed_of_step)
        vexed.step(seed_of_step)
        before = vexed.remembered()
        assert before == plain.remembered(), step
    return refused


WRITE_POLICIES = [None, *WritePolicy]


@pytest.mark.halved
@pytest.mark.parametrize("write_policy", WRITE_POLICIES, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_life_with_refusals_is_the_life_without(policy: str, write_policy: WritePolicy | None) -> None:
    drawn = Random(f"{policy} {write_policy}").sample(list(SETS), 6)
    refused = sum(live(kinds, f"{kinds} {policy}", policy, write_policy, 25) for kinds in drawn)
    assert refused > 100


@pytest.mark.deep
@pytest.mark.parametrize("write_policy", WRITE_POLICIES, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_long_lives_with_refusals_are_those_without(policy: str, write_policy: WritePolicy | None) -> None:
    for kinds in SETS:
        for i in range(20):
            live(kinds, f"deep {kinds} {policy} {i}", policy, write_policy, 100)
