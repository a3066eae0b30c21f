"""A whole server in virtual time: requests over a PrefixCache with a host tier, everything decided by one seed.

A tick lets time pass, polls mostly, and does a few things drawn from the scenario's actions; then everything is checked: all
laws of the tree, the owner of every page and the content of every page on both tiers. What happened goes into a digest, so
that two runs can be compared.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kinds import SETS
from memory_model import Request, Runner, available_pages
from page_memory import PageMemory
from scenario import Scenario
from sim_sessions import SimSessions
from sim_store import SimStore
from watched_engine import WatchedEngine

from unified_tree import Key, OutOfPagesError, Tier, TransferError, TreeSettings
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.counters.latency import LatencyStats
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.testing import SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock

Prompt = tuple[str, list[int]]
Books = tuple[int, list[int], str | None]
NEIGHBOURS = 1_000_000
"""Versions of weights from here on are those of another deployment."""


class SimServer:
    """One life of a server, or of several, one after another, over the same store.

    Args:
        directory: for the store, where it shall lie in files.
        rank, ranks: of several servers with the same load, whose transfers and stores have luck of their own; their
            histories must be the same.
        beside: a server whose store it shares. Its load is the same, its luck another, and so are its weights once they have
            changed: whoever is given the other's bytes finds out.

    Attributes:
        events: how often what of interest happened.
        history: of one among ranks, what it did and what its tree was.
    """

    def __init__(
        self,
        scenario: Scenario,
        directory: Path | None = None,
        rank: int = 0,
        ranks: Consensus | None = None,
        beside: SimServer | None = None,
    ) -> None:
        s = self.scenario = scenario
        luck = s.seed + 1_000_003 * rank + (0 if beside is None else 500_009)
        self.kinds = SETS[s.kinds]
        self.rng = Random(f"life {s.seed}")
        self.clock = VirtualClock()
        self.memory: PageMemory = PageMemory(self.kinds, None if beside is None else beside.memory.known)
        self.store: SimStore | None = None
        if beside is not None and beside.store is not None:
            self.store = beside.store.beside(self.memory, self.clock, luck)
        elif s.store is not None:
            self.store = SimStore(self.kinds, s.store, self.memory, self.clock, luck, directory)
        self.luck = luck
        self.first_version = 0 if beside is None else NEIGHBOURS
        self.ranks = ranks
        self.is_alone = ranks is None
        self.history: list[str] = []
        self.weights = 0
        self.weights_name = "weights 0"
        self.has_own_weights = False
        self.tick = 0
        self.starts = 0
        self.started_at = 0
        self.events: Counter[str] = Counter()
        self._start()
        self.swap_store()
        self.waiting: deque[Prompt] = deque()
        self.texts: list[Prompt] = []
        self._digest = hashlib.sha256()
        self.neighbour: SimServer | None = None
        if s.neighbour and self.store is not None and self.is_alone and beside is None:
            self.neighbour = SimServer(s, beside=self)

    def _start(self) -> None:
        """A cache that knows nothing yet, over memory that holds nothing."""
        s = self.scenario
        simulated = SimulatedEngine(
            self.luck + self.starts, self.clock, s.latencies, s.faults, self.memory.movers(), s.remembered
        )
        self.engine = WatchedEngine(simulated, self.memory)
        tier = HostTier(
            page_counts=s.host_pages if s.host_budget is None else {},
            budget=s.host_budget,
            engine=self.engine,
            write_policy=s.write_policy,
            selective_hits=s.selective_hits,
            low_water=s.low_water,
            lost_share=s.lost_share,
            worth_share=s.worth_share,
            max_backup_share=s.max_backup_share,
            exclusive=s.exclusive,
            load_cost=s.load_cost,
        )
        self.cache = PrefixCache(
            self.kinds,
            s.page_size,
            s.device_pages if s.budget is None else None,
            budget=s.budget,
            policy=s.policy,
            rebuild=s.rebuild,
            host=tier,
            ranks=self.ranks,
            max_versions=s.max_versions,
            **self._session_settings(),
        )
        self.runner = Runner(self.cache, self.kinds, self.memory)
        self.sessions: SimSessions | None = None
        if s.sessions is not None:
            self.sessions = SimSessions(s.sessions, self.cache, Random(f"talk {s.seed} {self.starts}"))

    def _session_settings(self) -> dict[str, Any]:
        s = self.scenario.sessions
        if s is None:
            return {}
        return {
            "settings": TreeSettings(session_texts=s.session_texts),
            "max_sessions": s.max_sessions,
            "max_hints": s.max_hints,
            "infer_sessions": s.infers,
            "time_s": self._time_s,
        }

    def _time_s(self) -> float:
        return self.clock.now / 1e9

    def run(self) -> str:
        """The whole life; the digest of its history."""
        try:
            for tick in range(self.scenario.ticks):
                self.tick = tick
                self._one_tick()
                if self.neighbour is not None:
                    self.neighbour.tick = tick
                    self.neighbour._one_tick()
            self._end()
            self._end_neighbour()
        except Exception as error:
            seed, ticks = self.scenario.seed, self.scenario.ticks
            error.add_note(f"seed {seed} failed in tick {self.tick} of {ticks}: {self.scenario}")
            error.add_note(f"to replay: python tests/support/sim_server.py {ticks} {seed}")
            raise
        self._add_up()
        return self._digest.hexdigest()

    def _end_neighbour(self) -> None:
        other = self.neighbour
        if other is not None:
            other._end()
            other._add_up()
            self._note(other._digest.hexdigest())
            self.events.update({f"neighbour: {name}": count for name, count in other.events.items()})

    def _add_up(self) -> None:
        """A cache's figures, at its end."""
        stats = self.cache.stats()
        copies = [replace(moved, latency=LatencyStats()) for moved in (stats.backed_up, stats.loaded)]
        stats = replace(
            stats, load_wait_s=0, ages={}, backed_up=copies[0], loaded=copies[1], is_compiled=False
        )  # but for what the wall clock says
        self._note(f"{stats}")
        assert sum(stats.misses.values()) == stats.prompt_tokens - stats.hit_tokens
        self._count_up(stats.drops)
        self.events.update(
            loads=stats.loads, loaded=stats.loaded.count, backed_up=stats.backed_up.count, lost=stats.lost,
            host_hits=stats.host_hit_tokens, repeats=self.engine.repeats, storage_hits=stats.storage_hit_tokens,
            store_failed=stats.misses["store_failed"],
        )  # fmt: skip

    def _count_up(self, drops: object) -> None:
        assert isinstance(drops, dict)
        bugs = [reason for reason in drops if "Error" in reason]
        assert not bugs, bugs
        self.events.update({f"drop: {reason}": count for reason, count in drops.items()})

    def _note(self, what: str) -> None:
        self._digest.update(what.encode() + b"\n")
        if not self.is_alone:
            self.history.append(what)

    def _one_tick(self) -> None:
        s, rng = self.scenario, self.rng
        self.clock.advance(rng.randrange(s.tick_ns))
        if self.tick == s.dies_at:
            self.engine.die(refuse=s.refuses)
        if rng.random() < s.poll:
            with self._refusal():
                self.cache.poll()
        names = rng.choices(list(s.actions), list(s.actions.values()), k=rng.randrange(1, 4))
        for name in names:
            self._talk()
            outcome = getattr(self, name)()
            self._note(f"{self.tick} {self.clock.now if self.is_alone else 'some time'} {name} {outcome}")
            if outcome:
                self.events[f"{name}: {outcome}"] += 1
        self.runner.check()
        self._check_bounds()
        self._note(self.cache.tree.dump())

    def _talk(self) -> None:
        """Perhaps the cache is told of a session, or of a request to come."""
        said = "" if self.sessions is None else self.sessions.talk()
        if said:
            self.events[f"told: {said}"] += 1
            self._note(f"told {said} {self.cache.stats().hints}")

    def _check_bounds(self) -> None:
        """What waits and what is remembered stays within what was set."""
        assert self.cache.weights.named_count <= 2 * self.scenario.max_versions
        if self.sessions is not None:
            self.sessions.check()
        if self.cache.storage is not None:
            figures, policy = self.cache.storage.stats(), self.cache.storage.tier.prefetch
            assert figures.prefetches_open <= policy.max_open
            assert figures.prefetches_ended <= policy.max_outcomes
            assert figures.failed_pages <= policy.max_failed_pages
            assert figures.boundaries_to_retry <= self.cache.storage.tier.persist.max_waiting

    def _refusal(self) -> AbstractContextManager[None]:
        """A dead engine may refuse what it is given, and that is told; a living one never does."""
        return suppress(TransferError) if self.engine.refuses else nullcontext()

    def _pick(self) -> Request | None:
        return self.rng.choice(self.runner.requests) if self.runner.requests else None

    def arrive(self) -> str:
        """A prompt comes, and is admitted if there is room."""
        s = self.scenario
        if len(self.waiting) < 4:
            namespace, tokens = self._prompt()
            self.waiting.append((namespace, tokens))
            self.cache.prefetch(_name(namespace, tokens), Key(tokens, namespace))
        if len(self.runner.requests) >= s.max_running:
            return ""
        namespace, tokens = self.waiting[0]
        if not self.cache.prefetched(_name(namespace, tokens)):
            self.waiting.rotate(-1)
            return "waits for its prefetch"
        outcome = self._admit(namespace, tokens)
        if outcome != "refused":
            self.waiting.popleft()
        return outcome

    def _admit(self, namespace: str, tokens: list[int]) -> str:
        rng = self.rng
        checkpoints = [rng.randrange(1, len(tokens) + 1) for _ in range(rng.randrange(3))]
        session = None if self.sessions is None else self.sessions.of_prompt(namespace, tokens)
        before, save_output = self._books(), rng.random() < 0.7
        options: dict[str, Any] = {"save_output": save_output, "request": _name(namespace, tokens), "session": session}
        try:
            request = self.runner.start(tokens, namespace, checkpoints, **options)
        except OutOfPagesError:
            self._refused(before, lambda: self.cache.acquire(Key(tokens, namespace), checkpoints, **options))
            return "refused"
        if self.sessions is not None:
            self.sessions.admitted(namespace, tokens, session)
        self._remember(namespace, tokens)
        return "loading" if request.lease.is_loading else "admitted"

    def _books(self) -> Books:
        """What must not change when a call is refused; but what a hint loads, it waits for."""
        stats = self.cache.stats()
        dump = None if self.cache.hints.loading else self.cache.tree.dump()
        return stats.leases, [pool.leased for pool in stats.pools.values()], dump

    def _refused(self, before: Books, again: Callable[[], object]) -> None:
        """A call was refused: it has changed nothing, and no hint was the reason."""
        assert not self.cache.hints.loading
        assert before[2] is None or self._books() == before
        sessions = self.sessions
        if sessions is not None and sessions.rng.random() < sessions.scenario.takes_back:
            sessions.take_all_back()
            with pytest.raises(OutOfPagesError):
                again()
            self.events["refused again without hints"] += 1

    def _prompt(self) -> Prompt:
        rng, s = self.rng, self.scenario
        if self.runner.requests and rng.random() < s.twins:
            twin = rng.choice(self.runner.requests)
            return twin.lease.key.namespace, list(twin.tokens)
        was_restarted = self.starts and self.tick < self.started_at + 30
        if self.texts and (was_restarted or rng.random() < s.turns):
            namespace, old = rng.choice(self.texts)
        else:
            namespace, old = rng.choice(s.namespaces), []
        tokens = old[: rng.choice([len(old), rng.randrange(len(old) + 1)])]
        return namespace, tokens + self._letters(rng.randrange(1, s.longest))

    def _letters(self, count: int) -> list[int]:
        return [self.rng.randrange(self.scenario.letters) for _ in range(count)]

    def _remember(self, namespace: str, tokens: list[int]) -> None:
        self.texts.append((namespace, tokens))
        if len(self.texts) > self.scenario.max_texts:
            self.texts.pop(self.rng.randrange(len(self.texts)))

    def step(self) -> str:
        """A prefill chunk, or some decoded tokens, of one request; published mostly."""
        request = self._pick()
        if request is None:
            return ""
        was_loading = request.lease.is_loading
        target = self.runner.extend(request, self.rng, longest=self.scenario.longest_step, letters=self.scenario.letters)
        before = self._books()
        try:
            self.cache.allocate(request.lease, target)
        except OutOfPagesError:
            self._refused(before, lambda: self.cache.allocate(request.lease, target))
            self.runner.finish(request)
            return "no room"
        try:
            self.runner.compute(request, target, self.runner.optional if self.rng.random() < 0.3 else [])
            self._publish(request)
        except TransferError:
            return self._retry(request)
        if len(request.tokens) > 60 or (request.prefilled and self.rng.random() < 0.2):
            return self._finish(request)
        return "over a load" if was_loading else "done"

    def _finish(self, request: Request) -> str:
        """It ends; some give their running state, as that of what they have computed or of less."""
        length, outcome = (
            self.rng.choice([request.computed, request.computed, self.rng.randrange(request.computed)]),
            "finished",
        )
        if request.lease.state_page is not None and self.rng.random() < 0.6 and self.runner.donate(request, length):
            outcome = "finished with its state"
        self.runner.finish(request)
        return outcome

    def _publish(self, request: Request) -> None:
        rng = self.rng
        if rng.random() < self.scenario.publish:
            self.runner.commit(request, resumable=rng.choice([None, None, True, False]), states=rng.random() < 0.85)
            self._remember(request.lease.key.namespace, request.tokens[: request.computed])
        elif rng.random() < 0.5:
            self.runner.advance(request)

    def _retry(self, request: Request) -> str:
        """What it resumes from did not come: it starts again."""
        self.waiting.append((request.lease.key.namespace, request.tokens))
        self.runner.finish(request)
        return "load failed"

    def reject(self) -> str:
        """Speculation went wrong: tokens are taken back, as long as no window has moved past them."""
        request = self._pick()
        if request is None:
            return ""
        lease = request.lease
        floor = max(lease.committed, lease.prompt_tokens) if request.prefilled else max(lease.committed, request.computed)
        if floor >= max(request.computed, lease.length):
            return ""
        length = self.rng.randrange(floor, max(request.computed, lease.length) + 1)
        if length > lease.length or not self.runner.may_reject(lease, length):
            return ""
        try:
            self.runner.reject(request, length)
        except TransferError:
            return self._retry(request)
        return "cut"

    def preempt(self) -> str:
        """A request gives up its pages and waits to be admitted again."""
        request = self._pick()
        if request is None:
            return ""
        namespace, most = request.lease.key.namespace, max(request.computed, request.lease.cached_tokens)
        length = self.rng.choice([most, most, 0, request.lease.cached_tokens, self.rng.randrange(most + 1)])
        try:
            self.runner.preempt(request, length, states=self.rng.random() < 0.7, by_number=self.rng.random() < 0.5)
        except TransferError:
            return self._retry(request)
        self.waiting.appendleft((namespace, request.tokens))
        return "nothing kept" if not length else "done"

    def abort(self) -> str:
        """A request is given up, those that are loading rather than others."""
        loading = [request for request in self.runner.requests if request.lease.is_loading]
        request = self.rng.choice(loading) if loading else self._pick()
        if request is None:
            return ""
        self.runner.finish(request)
        return "while loading" if loading else "done"

    def cancel_transfer(self) -> str:
        """The engine gives up a transfer, whatever it is."""
        if not self.engine.flights:
            return ""
        ticket = self.rng.choice(list(self.engine.flights))
        self.engine.cancel(ticket)
        return self.engine.flights[ticket].kind.name

    def invalidate(self) -> str:
        """Weights are updated, seldom."""
        if self.rng.random() < 0.7:
            return ""
        loading = any(request.lease.is_loading for request in self.runner.requests)
        self._new_weights(self.rng.choice([None, *self.scenario.namespaces]))
        if self.rng.random() < 0.3:
            if self.rng.random() < 0.5:
                with self._refusal():
                    self.cache.poll()
                self.runner.check()
            self._new_weights(self.rng.choice([None, *self.scenario.namespaces]))
            return "twice"
        return "while loading" if loading else "done"

    def _new_weights(self, namespace: str | None) -> None:
        self.weights += 1  # the same prompt has other bytes from now on, in a store, too
        name, named = self._weights_name(), self.rng.random() < 0.5
        self.runner.invalidate(namespace, name if named else None)
        self.runner.versions[namespace] += self.first_version
        self.has_own_weights = namespace is not None or self.has_own_weights
        if namespace is None:
            self.weights_name = name

    def _weights_name(self) -> str:
        return f"weights {self.weights} of {'a neighbour' if self.first_version else 'ours'}"

    def hoard(self) -> str:
        """Free pages are taken away for a while, so that allocations fail."""
        tier = self.rng.choice([Tier.DEVICE, Tier.HOST])
        bounded = self.scenario.device_pages if tier is Tier.DEVICE else self.scenario.host_pages
        if not bounded:
            return ""
        self.runner.hoard_pages(tier, self.rng.choice(list(bounded)), self.rng.randrange(1, 8))
        return tier.name

    def unhoard(self) -> str:
        """They come back."""
        self.runner.unhoard()
        return ""

    def squeeze(self) -> str:
        """A burst of work passes through the device pools and leaves little behind."""
        for name, pool in self.cache.stats().pools.items():
            if pool.total is not None:
                free, most = available_pages(self.cache, name)
                self.cache.device.reserve({name: free + self.rng.randrange(most - free + 1)})
        return "done"

    def flush(self) -> str:
        """Everything goes to host, as far as there is room; seldom."""
        if self.rng.random() < 0.7:
            return ""
        with self._refusal():
            self.cache.flush()
        return "done"

    def drain(self) -> str:
        """All transfers are waited for; seldom."""
        if self.rng.random() < 0.7:
            return ""
        with self._refusal():
            self.cache.drain()
            assert not self.engine.flights
        return "done"

    def settle(self) -> str:
        """A request waits for all that it loads and reads it."""
        request = self._pick()
        if request is None or request.verified:
            return ""
        try:
            self.runner.verify(request)
        except TransferError:
            return self._retry(request)
        return "verified"

    def explain(self) -> str:
        """Somebody asks why a prompt would not resume further."""
        namespace, tokens = self._prompt()
        self.cache.explain(Key(tokens, namespace))
        return ""

    def forget(self) -> str:
        """All that nobody uses leaves the device, or the host, or both as after a restart; seldom."""
        if self.rng.random() < 0.5:
            return ""
        tiers = self.rng.choice([[Tier.DEVICE], [Tier.HOST], [Tier.DEVICE, Tier.HOST], [Tier.DEVICE, Tier.HOST]])
        self._forget(tiers)
        return " and ".join(tier.name for tier in tiers)

    def _forget(self, tiers: list[Tier]) -> None:
        tree, controller = self.cache.tree, self.cache.controller
        assert controller is not None
        every = {Tier.DEVICE: self.cache.device, Tier.HOST: controller.host}
        for tier in tiers * 2:
            for name in every[tier].allocators:
                every[tier].free_evicted(tree.evict({name: tree.pool(name, tier).used_pages}, tier))

    def recall(self) -> str:
        """An old text goes on when nobody but the store knows of it, and has some time for its prefetch; seldom."""
        is_busy = len(self.runner.requests) >= self.scenario.max_running
        if self.store is None or not self.texts or is_busy or self.rng.random() < 0.5:
            return ""
        with self._refusal():
            self.cache.flush()
        self._forget([Tier.DEVICE, Tier.HOST])
        namespace, tokens = self.rng.choice(self.texts)
        tokens = tokens + self._letters(self.rng.randrange(1, 3))
        if not self.cache.prefetch(_name(namespace, tokens), Key(tokens, namespace)):
            return "not asked for"
        for _ in range(40):
            self.clock.advance(self.scenario.tick_ns)
            with self._refusal():
                self.cache.poll()
            if self.cache.prefetched(_name(namespace, tokens)):
                break
        return self._admit(namespace, tokens)

    def leave(self) -> str:
        """Who waits for a prefetch goes away."""
        if not self.waiting:
            return ""
        namespace, tokens = self.waiting.popleft()
        self.cache.cancel(_name(namespace, tokens))
        return "done"

    def abandon(self) -> str:
        """A prompt comes that nobody will ever ask for again."""
        namespace, tokens = self._prompt()
        return "begun" if self.cache.prefetch(("abandoned", self.tick), Key(tokens, namespace)) else ""

    def swap_store(self) -> str:
        """The store is attached for the first time, taken away, or replaced."""
        if self.store is None or (self.tick and self.rng.random() < 0.9):
            return ""
        self._count_prefetched()
        if self.cache.storage is not None and self.rng.random() < 0.5:
            self.cache.detach_storage()
            return "detached"
        self.cache.attach_storage(self.store.tier(self.weights_name))
        return "attached"

    def restart(self) -> str:
        """The server ends, with all its requests, and another begins that has nothing but the store; seldom."""
        if self.store is None or self.rng.random() < 0.6:
            return ""
        if self.rng.random() < 0.8:
            with self._refusal():
                self.cache.flush()
        self._end()
        self._add_up()
        self.starts += 1
        self.started_at = self.tick
        self.waiting.clear()
        if self.has_own_weights:  # the next one has a single name for all namespaces
            self.weights += 1
            self.weights_name, self.has_own_weights = self._weights_name(), False
        versions = self.runner.versions
        self.memory = self.store.memory = PageMemory(self.kinds, self.memory.known)
        self._start()
        self.runner.versions = versions
        self.cache.attach_storage(self.store.tier(self.weights_name))
        return "done"

    def _count_prefetched(self) -> None:
        if self.cache.storage is not None:
            self.events["prefetched"] += self.cache.storage.stats().prefetched_tokens

    def _end(self) -> None:
        """Everything is let go, in one of two ways; then every page is home."""
        self._count_prefetched()
        if self.scenario.closes_at_work or self.engine.refuses:
            self.cache.close()
            self.runner.check()
            assert not any(request.lease.is_loading for request in self.runner.requests)
            self.cache.poll()
        self.runner.end()
        self.cache.close()
        self.cache.close()
        assert not self.engine.flights
        assert not self.memory.busy


def _name(namespace: str, tokens: list[int]) -> tuple[str, tuple[int, ...]]:
    """What a waiting prompt's prefetch is called."""
    return namespace, tuple(tokens)


def main(ticks: int, *seeds: int) -> None:
    """Replay lives as they were, with everything that went wrong."""
    for seed in seeds:
        print(f"seed {seed}: {SimServer(Scenario.of(seed, ticks)).run()}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
