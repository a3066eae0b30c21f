"""PrefixCache under random requests, with a host tier or without, every byte it hands out compared with what was put in.

Every bound is drawn from one up, so that queues overflow and searches end early in worlds of a few pages. A default run makes
at most 1,200 operations that Hypothesis searches and 800 of long lives for each set of kinds, the same every time; after each
of them everything is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kinds import SETS
from memory_model import Request, Runner, available_pages
from new_coverage import new_kinds  # noqa: F401  a fixture
from page_memory import PageMemory
from state_machines import search, walk
from tempers import TemperError, Tempers
from tensor_memory import TensorMemory, tensor_composition
from watched_engine import WatchedEngine

from unified_tree import (
    POLICIES,
    BlockBudget,
    Component,
    Key,
    LeaseError,
    OutOfPagesError,
    Point,
    TransferError,
    UnifiedTreeError,
)
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.pools import BlockArena, BlockLayout, DevicePool, HostArena
from unified_tree.controllers.testing import Faults, SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock

PAGE_SIZE = 2
SEEDS = st.integers(0, 1 << 20)
MAX_TABLES = 20
ABSURD: list[Any] = [-1, 1.5, float("nan"), float("inf"), True, None, "7", [7], 1 << 62, 1 << 70]

SESSIONS = (None, "main", "side", "other")


class CacheMachine(RuleBasedStateMachine):
    """A few requests at a time over pools that never suffice."""

    kinds: list[Component]
    operations = 0

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        rng = Random(seed)
        counts = self.device_memory(rng)
        self.tempers, rebuild = Tempers(rng.choice(list(POLICIES))), rng.random() < 0.8
        self.clock, memory = VirtualClock(), self.page_memory()
        host = self.host_tier(rng, memory) if rng.random() < 0.8 else None
        self.cache = PrefixCache(
            self.kinds,
            PAGE_SIZE,
            **counts,
            policy=self.tempers,
            rebuild=rebuild,
            save_limit=rng.choice([1, 2, 4]),
            draft_tokens=rng.choice([1, 2, 16]),
            host=host,
        )
        self.runner = Runner(self.cache, self.kinds, memory)
        self.batch = self.cache.batch(max_leases=3, max_tokens=rng.choice([40, 400]))
        self.texts: list[list[int]] = [[]]
        self.tables: list[tuple[Any, list[int]]] = []
        self.abandoned: list[Request] = []

    def page_memory(self) -> PageMemory:
        """What the pages hold."""
        return PageMemory(self.kinds)

    def device_memory(self, rng: Random) -> dict[str, Any]:
        """Pages of each pool."""
        counts = {c.name: rng.choice([3 if isinstance(c.coverage, Point) else 6, 6, 12, 24, 60]) for c in self.kinds}
        return {"page_counts": {c.name: counts[c.name] for c in self.kinds if c.shares is None}}

    def host_memory(self, rng: Random) -> dict[str, Any]:
        """The same on host."""
        return {"page_counts": {c.name: rng.choice([2, 12, 60]) for c in self.kinds}}

    def host_tier(self, rng: Random, memory: PageMemory) -> HostTier:
        """Host pools that may suffice, and an engine that may fail."""
        faults = Faults(fails=rng.choice([0, 0.1]), late=rng.choice([0, 0.3]), twice=rng.choice([0, 0.3]))
        simulated = SimulatedEngine(rng.randrange(100), self.clock, faults=faults, movers=memory.movers())
        return HostTier(
            **self.host_memory(rng),
            engine=WatchedEngine(simulated, memory),
            write_policy=rng.choice(list(WritePolicy)),
            selective_hits=rng.choice([1, 1, 2, 3]),
            queue_limit=rng.choice([1, 2, 4, 64]),
            reclaim_limit=rng.choice([1, 2, 4, 64]),
            low_water=rng.choice([0.0, 0.3, 1.0]),
            lost_share=rng.choice([0.0, 0.1, 1.0]),
            worth_share=rng.choice([0.0, 0.5, 1.0]),
            max_backup_share=rng.choice([0.3, 1.0]),
            exclusive=rng.random() < 0.5,
        )

    @property
    def active(self) -> list[Request]:
        """Requests that are run, not those that somebody acquired and never came back to."""
        return [r for r in self.runner.requests if r not in self.abandoned and not r.lease.is_arriving]

    @property
    def arriving(self) -> list[Request]:
        """Requests whose state is on its way from another server."""
        return [request for request in self.runner.requests if request.lease.is_arriving]

    def free_pages(self) -> tuple[dict[str, int], int]:
        stats = self.cache.stats()
        return {name: pool.leased for name, pool in stats.pools.items()}, stats.leases

    def snapshot(self) -> tuple[Any, str, int]:
        """What a refused call leaves as it was, and the prefetches under way."""
        return self.free_pages(), self.cache.tree.dump(), self.cache.hints.loading

    def is_as(self, before: tuple[Any, str, int], *, may_split: bool = False) -> bool:
        """Whether a refused call has left everything as it was, but for prefetches, which it waits for."""
        free, dump, loading = self.snapshot()
        return loading < before[2] or (free == before[0] and (may_split or dump == before[1]))

    @precondition(lambda self: len(self.active) < 4)
    @rule(seed=SEEDS)
    def acquire(self, seed: int) -> None:
        """A prompt that goes on from an older text somewhere."""
        rng = Random(seed)
        old = rng.choice(self.texts)
        tokens = old[: rng.choice([len(old), rng.randrange(len(old) + 1)])]
        tokens = tokens + [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
        checkpoints = [rng.randrange(1, len(tokens) + 1) for _ in range(rng.randrange(3))]
        before = self.snapshot()
        try:
            request = self.runner.start(
                tokens,
                rng.choice(["", "", "tenant"]),
                checkpoints,
                save_output=rng.random() < 0.7,
                session=Random(seed).choice(SESSIONS),
                reserve_tokens=Random(~seed).choice([0, 0, len(tokens), len(tokens) + 3]),
            )
        except OutOfPagesError as error:
            refused = error
        else:
            assert set(request.lease.given_up) <= set(self.cache.layout.can_give_up)
            self.texts.append(tokens)
            if rng.random() < 0.1 and not self.abandoned:
                self.abandoned.append(self.runner.requests[-1])
            return
        assert refused.component not in self.cache.layout.can_give_up
        assert self.is_as(before)

    @precondition(lambda self: len(self.runner.requests) < 6)
    @rule(seed=SEEDS)
    def acquire_arriving(self, seed: int) -> None:
        """A prompt whose state another server sends: no path that is on device is asked for again."""
        rng = Random(seed)
        old = rng.choice(self.texts)
        tokens = old[: rng.choice([len(old), rng.randrange(len(old) + 1)])]
        tokens = tokens + [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
        namespace, reserved = rng.choice(["", "", "tenant"]), rng.choice([0, len(tokens) + rng.randrange(9)])
        before = self.snapshot()
        there = path_on_device(self.cache, self.kinds, tokens, namespace)
        options: dict[str, Any] = {"may_load": rng.random() < 0.7, "save_output": rng.random() < 0.7}
        try:
            request = self.runner.start(tokens, namespace, arriving=True, reserve_tokens=reserved, **options)
        except OutOfPagesError:
            assert self.is_as(before, may_split=options["may_load"]), "only a load that was given up may have split a node"
            return
        assert request.lease.cached_tokens == there or request.lease.host_tokens > 0
        self.texts.append(tokens)

    @precondition(lambda self: self.arriving)
    @rule(seed=SEEDS)
    def arrive(self, seed: int) -> None:
        """A part of the path has come, or everything; or the other server is gone, or the request has to give way."""
        rng = Random(seed)
        request = rng.choice(self.arriving)
        lease = request.lease
        assert lease.state_tokens is None
        for call in (lambda: self.batch.add(lease), lambda: self.cache.truncate(lease, lease.prompt_tokens - 1)):
            with pytest.raises(LeaseError):
                call()
        fate = rng.random()
        if fate < 0.1:
            self.runner.finish(request)
            return
        try:
            if fate < 0.2:  # nothing is published that has not come, whatever the scheduler takes for computed
                assert self.cache.preempt(lease, lease.compute_from) == lease.committed
                self.runner.requests.remove(request)
                return
            if fate < 0.5 and lease.committed < lease.prompt_tokens - 1:
                self.runner.arrive(request, rng.randrange(lease.committed, lease.prompt_tokens))
                self.cache.commit(lease, request.computed)
                return
            self.runner.arrive(request, lease.prompt_tokens, self.runner.optional if rng.random() < 0.3 else [])
            self.runner.commit(request, resumable=rng.choice([None, None, True, False]))
            assert not lease.is_arriving
        except TransferError:
            self.load_failed(request)

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def run(self, seed: int) -> None:
        """A prefill chunk or a few tokens of decoding; published mostly. Without room, the request is aborted."""
        rng = Random(seed)
        request = rng.choice(self.active)
        target = self.runner.extend(request, rng, longest=8, letters=3)
        if request.lease.row is not None and target > self.batch.max_tokens:
            self.batch.remove(request.lease)
        before = self.snapshot()
        try:
            self.grow(request, target, rng)
        except OutOfPagesError:
            assert self.is_as(before)
            self.runner.finish(request)
            return
        self.keep_table(request, rng)
        without = self.runner.optional if rng.random() < 0.3 else []
        try:
            self.runner.compute(request, target, without)
            if rng.random() < 0.7:
                resumable = rng.choice([None, True, False])
                self.runner.commit(request, resumable=resumable, without=without, states=rng.random() < 0.8)
                self.texts.append(request.tokens[: request.computed])
            elif rng.random() < 0.5:
                self.runner.advance(request)
            self.keep_table(request, rng)
        except TransferError:
            self.load_failed(request)

    def grow(self, request: Request, target: int, rng: Random) -> None:
        """Find pages for a run. A request gives up the optional kinds that have none; only required ones refuse it."""
        layout = self.cache.layout
        optional = list(layout.can_give_up)
        given_up = [name for name in optional if rng.random() < 0.03]
        while True:
            before = self.snapshot()
            try:
                can = self.cache.can_allocate(request.lease, target, without=given_up)
                assert can or request.lease.length < target or request.lease.rebuilt_tokens
                self.cache.allocate(request.lease, target, without=given_up)
                assert set(given_up) <= set(request.lease.given_up) <= set(optional)
                return
            except OutOfPagesError as error:
                short = error.component
                if short not in optional:
                    raise
            assert self.is_as(before)
            assert short not in (*given_up, *request.lease.given_up)
            given_up.append(short)

    @property
    def batched(self) -> list[Request]:
        """The requests in the batch, by row."""
        return [next(request for request in self.runner.requests if request.lease is lease) for lease in self.batch.leases]

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def run_batch(self, seed: int) -> None:
        """A step of the batch, which somebody may enter or leave; some publish, some drafts are rejected."""
        rng = Random(seed)
        request = rng.choice(self.active)
        before = self.snapshot()
        try:
            if request.lease.row is None:
                self.batch.add(request.lease)
            elif rng.random() < 0.2:
                self.batch.remove(request.lease)
        except (OutOfPagesError, LeaseError):
            assert self.is_as(before)
        members = self.batched
        targets = [self.runner.extend(r, rng, longest=8, letters=3) if r in self.active else r.lease.length for r in members]
        news = [max(0, target - r.lease.length) for r, target in zip(members, targets, strict=True)]
        before = self.snapshot()
        try:
            self.batch.allocate(np.array(news, np.int64))
        except (OutOfPagesError, LeaseError) as error:  # or too long for the batch
            assert self.is_as(before)
            if isinstance(error, OutOfPagesError) and error.component in {c.name for c in self.cache.layout.optional}:
                lease = rng.choice(members).lease
                self.cache.allocate(lease, lease.length, without=[error.component])
            return
        for request, target in zip(members, targets, strict=True):
            if request in self.active and rng.random() < 0.9:
                self.keep_table(request, rng)
                self.runner.compute(request, target)
                if rng.random() < 0.3:
                    self.runner.commit(request, resumable=rng.choice([None, True, False]))
        if rng.random() < 0.8:
            for request in members:
                self.runner.follow_state(request)
            self.batch.advance(np.array([request.computed for request in members], np.int64))
        if rng.random() < 0.5:
            self.reject_in_batch(members, rng)

    def reject_in_batch(self, members: list[Request], rng: Random) -> None:
        """The last tokens of some requests are taken back, if no window has moved past them."""
        lengths = []
        for request in members:
            lease, floor = request.lease, max(request.lease.committed, request.lease.prompt_tokens)
            length = rng.randrange(floor, request.computed + 1) if request.computed > floor else lease.length
            lengths.append(length if self.runner.may_reject(lease, length) else lease.length)
        self.batch.truncate(np.array(lengths, np.int64))
        for request, length in zip(members, lengths, strict=True):
            self.runner.rejected(request, length)

    def keep_table(self, request: Request, rng: Random) -> None:
        """A page table, or its end, as somebody may keep it."""
        lease = request.lease
        if lease.failure is None:
            component, first = rng.choice(list(lease.tables)), rng.choice([0, 0, 1, 5])
            table = lease.pages(component, first)
            beyond = first + table.size + 1
            assert [lease.page(component, index) for index in range(first, beyond)] == [*table.tolist(), -1]
            self.tables = [*self.tables, (table, table.tolist())][-MAX_TABLES:]

    def load_failed(self, request: Request) -> None:
        """What a request resumes from did not come: that is told again, and it can be released."""
        assert self.cache.controller is not None
        with pytest.raises(TransferError):
            self.cache.wait_layer(request.lease, max(self.runner.memory.layers))
        self.runner.finish(request)

    @rule(seed=SEEDS)
    @precondition(lambda self: self.active)
    def run_more(self, seed: int) -> None:
        """Steps come twice as often as all else."""
        self.run(seed)

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def truncate(self, seed: int) -> None:
        """Reject draft tokens, as long as no window has moved past them."""
        rng = Random(seed)
        request = rng.choice(self.active)
        lease = request.lease
        floor = max(lease.committed, lease.prompt_tokens)
        if request.computed <= floor:
            return
        length = rng.randrange(floor, request.computed + 1)
        if self.runner.may_reject(lease, length):
            try:
                self.runner.reject(request, length)
            except TransferError:
                self.load_failed(request)

    @precondition(lambda self: self.runner.requests)
    @rule(seed=SEEDS)
    def release(self, seed: int) -> None:
        """Finish, or abort; now and then one that was abandoned."""
        rng = Random(seed)
        request = rng.choice(self.runner.requests)
        if request not in self.abandoned or rng.random() < 0.3:
            self.runner.finish(request)
            self.abandoned = [other for other in self.abandoned if other is not request]

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def preempt(self, seed: int) -> None:
        """At any moment of its life, also in the middle of a step, and with any part of what is computed kept."""
        rng = Random(seed)
        request = rng.choice(self.active)
        try:
            self.go_on_a_little(request, rng)
            lease, most = request.lease, max(request.computed, request.lease.cached_tokens)
            length = rng.choice([0, most, most, lease.cached_tokens, lease.committed, rng.randrange(most + 1)])
            self.runner.preempt(request, length, states=rng.random() < 0.7, by_number=rng.random() < 0.5)
        except TransferError:
            self.load_failed(request)

    def go_on_a_little(self, request: Request, rng: Random) -> None:
        """A request may get pages, and run, and have tokens rejected, and tells the cache nothing of what it has computed."""
        depth, lease = rng.randrange(4), request.lease
        target = self.runner.extend(request, rng, longest=8, letters=3) if depth else 0
        try:
            if depth:
                self.cache.allocate(lease, target)
        except (OutOfPagesError, LeaseError):  # or too long for the batch
            return
        if depth > 1:
            self.runner.compute(request, target)
        floor = max(lease.committed, lease.prompt_tokens)
        if depth > 2 and request.computed > floor:
            length = rng.randrange(floor, request.computed + 1)
            if self.runner.may_reject(lease, length):
                self.runner.reject(request, length)

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def donate(self, seed: int) -> None:
        """The running state's own page is published at the end of a request, as the state of some length."""
        rng = Random(seed)
        request = rng.choice(self.active)
        if request.lease.state_page is None or not request.computed:
            return
        length = rng.choice([request.computed, request.lease.computed, rng.randrange(request.computed + 1)])
        try:
            if self.runner.donate(request, length):
                self.runner.finish(request)
        except TransferError:
            self.load_failed(request)

    @precondition(lambda self: self.active)
    @rule(seed=SEEDS)
    def ask_for_nonsense(self, seed: int) -> None:
        """A call that means nothing is refused and changes nothing."""
        rng = Random(seed)
        request, value = rng.choice(self.active), rng.choice(ABSURD)
        cache, lease = self.cache, request.lease
        computed = np.array(request.tokens[: max(request.computed, lease.committed)])
        states = dict(lease.save_pages)
        calls: list[Callable[[], object]] = [
            lambda: cache.allocate(lease, value),
            lambda: cache.advance(lease, value),
            lambda: cache.truncate(lease, value),
            lambda: self.batch.allocate(value if value != 1 << 62 else -1),
            lambda: self.batch.truncate(np.full(len(self.batch.leases) + 1, 0)),
            lambda: self.batch.remove(value),
            lambda: cache.commit(lease, -7 if isinstance(value, list) else value),
            lambda: cache.commit(lease, computed, {**states, repr(value): 0}),  # type: ignore[dict-item]
            lambda: cache.commit(lease, computed, {**states, PAGE_SIZE: value}),
            lambda: cache.commit(lease, computed, states, without=[value]),
            lambda: cache.commit(lease, np.append(computed, [1] * (lease.length + 1))),
            lambda: cache.acquire(Key([1, 2, 3]), [1, -1]),
            lambda: cache.acquire(Key([1, 2, 3]), [value], request=[]),  # type: ignore[arg-type]
            lambda: cache.acquire(Key([1, -2, 3])),
            lambda: cache.invalidate(7),  # type: ignore[arg-type]
            lambda: cache.release(value),
            lambda: lease.pages(value),
            lambda: lease.page(value, 0),
        ]
        before = self.snapshot()
        with pytest.raises(UnifiedTreeError):
            rng.choice(calls)()
        assert self.is_as(before)

    @rule(seed=SEEDS)
    def poll(self, seed: int) -> None:
        """Time passes, and what has ended meanwhile is applied."""
        self.clock.advance(Random(seed).choice([0, 20_000, 100_000, 2_000_000]))
        self.cache.poll()
        session, hints = SESSIONS[1 + seed % 3], self.cache.hints
        if seed % 7 == 0:
            self.cache.end_session(session)
        elif seed % 7 < 5:
            [hints.retain, hints.pin, hints.demote, hints.share, hints.prefetch][seed // 7 % 5](session)

    @rule(seed=SEEDS)
    def burst(self, seed: int) -> None:
        """Much passes through the device pools; it must not meet anything that is not pinned and yet cannot go."""
        rng = Random(seed)
        for name in self.cache.stats().pools:
            free, most = available_pages(self.cache, name)
            self.cache.device.reserve({name: free + rng.randrange(most - free + 1)})

    @rule(seed=SEEDS)
    def lose_temper(self, seed: int) -> None:
        """The eviction policy raises in the middle of an allocation or an eviction; nothing may be lost or changed by that."""
        rng = Random(seed)
        before = self.free_pages()
        names = list(self.cache.stats().pools)
        with self.tempers.short(rng.randrange(4)):
            try:
                if rng.random() < 0.3:
                    self.batch.allocate(rng.randrange(9))
                elif self.active and rng.random() < 0.7:
                    lease = rng.choice(self.active).lease
                    self.cache.allocate(lease, lease.length + rng.randrange(9))
                else:
                    self.cache.device.reserve({rng.choice(names): rng.randrange(1, 9)})
            except TemperError:
                assert self.free_pages() == before
            except (OutOfPagesError, LeaseError):
                pass

    @rule(seed=SEEDS)
    def settle(self, seed: int) -> None:
        """All transfers end, or everything goes to host, or weights are updated; seldom."""
        rng = Random(seed)
        name = rng.choice(["drain", "flush", "invalidate", "", "", "", "", ""])
        if name == "invalidate":
            for _ in range(rng.choice([1, 1, 2, 3])):
                self.runner.invalidate(rng.choice([None, "", "tenant"]))
                if rng.random() < 0.3:
                    self.cache.poll()
        elif name:
            getattr(self.cache, name)()

    @invariant()
    def sound(self) -> None:
        """The tree is sound, every page has one owner, and what was handed out stays what it was."""
        type(self).operations += 1
        assert all(table.tolist() == ids for table, ids in self.tables)
        self.runner.check()

    def may(self, name: str) -> bool:
        """Whether an operation of a walk can come now."""
        if name in {"acquire", "acquire_arriving"}:
            return len(self.runner.requests) < 6 if name == "acquire_arriving" else len(self.active) < 4
        if name == "arrive":
            return bool(self.arriving)
        return bool(self.active) or name in {"poll", "burst", "settle", "lose_temper"}

    def teardown(self) -> None:
        """Everything released, every page comes home."""
        if hasattr(self, "runner"):
            self.runner.end()
            self.cache.close()


class SharedMachine(CacheMachine):
    """The same where all pools of a tier share its memory: pages of one block or of many, budgets of hardly a page or more."""

    def device_memory(self, rng: Random) -> dict[str, Any]:
        return {"budget": a_budget(rng, [c.name for c in self.kinds if c.shares is None], [12, 40, 120])}

    def host_memory(self, rng: Random) -> dict[str, Any]:
        return {"budget": a_budget(rng, [c.name for c in self.kinds], [1, 12, 60, 120])}


def a_budget(rng: Random, names: list[str], pages: list[int]) -> BlockBudget:
    """A budget of so many small pages, or of one page of the largest kind."""
    blocks = {name: rng.choice([1, 1, 2, 3, 7, 30]) for name in names}
    count = rng.choice(pages) * rng.choice([1, *blocks.values()])
    return BlockBudget(block_count=max(count, *blocks.values(), 1), page_blocks=blocks)


class TensorMachine(CacheMachine):
    """The same over real tensors: device pools or an arena, and host memory that all pools share, from hardly a page on."""

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        super().start(seed)
        if isinstance(self.device, BlockArena):
            self.device.serve(self.cache)

    def device_memory(self, rng: Random) -> dict[str, Any]:
        model = tensor_composition(self.kinds, PAGE_SIZE)
        size_bytes, block_bytes = rng.choice([3_000, 15_000, 60_000]), rng.choice([64, 128, 192, 1024, None])
        self.host = HostArena(model, size_bytes, block_bytes=block_bytes)
        self.device: dict[str, DevicePool] | BlockArena
        if rng.random() < 0.5:
            self.device = BlockArena(model, BlockLayout.of(model, rng.choice([8_000, 14_000])))
            return {"budget": self.device.layout.budget}
        counts = {c.name: rng.choice([6, 12, 24]) for c in self.kinds if c.shares is None}
        self.device = {c.name: DevicePool(self.host.formats[c.name], counts[c.shares or c.name]) for c in self.kinds}
        return {"page_counts": counts}

    def page_memory(self) -> PageMemory:
        return TensorMemory(self.kinds, self.device, self.host)

    def host_memory(self, rng: Random) -> dict[str, Any]:  # noqa: ARG002, drawn before the memory was made
        return {"budget": self.host.budget, "tables": self.host.tables}


def path_on_device(cache: PrefixCache, kinds: list[Component], tokens: list[int], namespace: str) -> int:
    """Up to which length every required path of a prompt is on device, short of its last token, found page by page."""
    held, root = set[tuple[int, ...]](), cache.tree.state.roots.get((namespace, False))
    paths = [cache.tree.state.layout.index[c.name] for c in kinds if c.required and c.coverage.is_path]
    for node in cache.tree.state.nodes:
        if node.root is not root or node.parent is None or any(node.device[i] is None for i in paths):
            continue
        edges, at = [], node
        while at.parent is not None:
            edges.append(bytes(at.edge))
            at = at.parent
        known = np.frombuffer(b"".join(reversed(edges)), np.int64).tolist()
        held.update(tuple(known[:end]) for end in range(node.start + PAGE_SIZE, node.end + 1, PAGE_SIZE))
    length = 0
    while length + PAGE_SIZE < len(tokens) and tuple(tokens[: length + PAGE_SIZE]) in held:
        length += PAGE_SIZE
    return length


OPERATIONS = (
    *["run", "run_batch"] * 3,
    *["acquire_arriving", "arrive", "arrive"],
    *(
        "acquire",
        "truncate",
        "release",
        "preempt",
        "donate",
        "poll",
        "poll",
        "burst",
        "settle",
        "ask_for_nonsense",
        "lose_temper",
    ),
)
SHORT_REQUESTS = (
    *["acquire", "run", "run", "release", "poll"] * 4,
    *["acquire_arriving", "arrive"] * 2,
    "settle",
    "burst",
    "truncate",
    "preempt",
    "donate",
    "run_batch",
    "lose_temper",
)
"""Many requests, so that there is much to load back."""


@pytest.mark.parametrize("kinds", SETS)
def test_every_byte_is_what_was_put_in(kinds: str, record_property: Any) -> None:
    record_property("operations", search(CacheMachine, kinds, max_examples=30, stateful_step_count=40, derandomize=True))


@pytest.mark.parametrize("kinds", SETS)
def test_every_byte_is_what_was_put_in_through_a_long_life(kinds: str, record_property: Any) -> None:
    record_property("operations", sum(walk(CacheMachine, kinds, f"{kinds} {i}", 200, OPERATIONS) for i in range(4)))


@pytest.mark.parametrize("kinds", SETS)
def test_every_byte_is_what_was_put_in_where_pools_share_memory(kinds: str, record_property: Any) -> None:
    operations = search(SharedMachine, kinds, max_examples=15, stateful_step_count=40, derandomize=True)
    operations += sum(walk(SharedMachine, kinds, f"shared {kinds} {i}", 200, OPERATIONS) for i in range(3))
    record_property("operations", operations)


@pytest.mark.parametrize("kinds", ["indexer and carry-over", "window and mamba", "two windows"])
def test_every_byte_is_what_was_put_in_over_tensors(kinds: str, record_property: Any) -> None:
    lives = (walk(TensorMachine, kinds, f"tensors {kinds} {i}", 300, SHORT_REQUESTS, looks_every=10) for i in range(5))
    operations = sum(lives)
    record_property("operations", operations)


def test_a_coverage_that_is_new_needs_no_change_elsewhere(new_kinds: str, record_property: Any) -> None:  # noqa: F811
    record_property("operations", sum(walk(CacheMachine, new_kinds, f"new {new_kinds} {i}", 120, OPERATIONS) for i in range(3)))


@pytest.mark.deep
@pytest.mark.parametrize("machine", [CacheMachine, SharedMachine, TensorMachine])
@pytest.mark.parametrize("kinds", SETS)
def test_every_byte_is_what_was_put_in_for_long(machine: type[CacheMachine], kinds: str, record_property: Any) -> None:
    operations = search(machine, kinds, max_examples=150, stateful_step_count=100)
    operations += sum(walk(machine, kinds, f"deep {kinds} {i}", 1000, OPERATIONS) for i in range(20))
    record_property("operations", operations)
    print(f"{kinds}: {operations:,} operations")
