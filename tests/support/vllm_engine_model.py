"""A model of the part of vLLM that the connector sees: block tables by group, chunks, aborts, loads that take several steps.

What a block holds is a number that follows from all tokens before it and the namespace, so a wrong block is seen when a request
resumes on it. A block that was just allocated holds garbage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import torch

from unified_tree import Path, Point, Tier, Trailing
from unified_tree.components import Composition
from unified_tree.controllers.adapters.vllm import (
    BlockGroup,
    HostIndex,
    ScheduledRequest,
    SchedulerSide,
    StepReport,
    page_counts,
)
from unified_tree.controllers.adapters.vllm.block_group import NO_LAYER, NO_LAYER_BYTES, over_stages
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
from unified_tree.controllers.adapters.vllm.scheduler_store import SchedulerStore
from unified_tree.controllers.adapters.vllm.worker_side import WorkerSide
from unified_tree.controllers.adapters.vllm.worker_store import WorkerStore
from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.storage_tier.store_settings import StoreSettings
from unified_tree.declare.page_format import Shard
from unified_tree.declare.tenants import Tenants

PAGE = 4
PROMPT = [number * 7 % 3 for number in range(6 * PAGE + 1)]
GARBAGE = -1
PREFETCH = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, room_pages=1, max_host_share=1.0)
PATH = BlockGroup(index=0, coverage=Path(), layer_names=("full",), block_bytes=PAGE * 8)
WINDOW = BlockGroup(index=1, coverage=Trailing(PAGE + 1), layer_names=("window.a", "window.b"), block_bytes=2 * PAGE * 8)
STATE = BlockGroup(index=1, coverage=Point(), layer_names=("state",), block_bytes=8)
DRAFT = "draft"
"""A layer of a draft model, which reads the token behind a position, too."""
DRAFTED = BlockGroup(index=0, coverage=Path(), layer_names=("full", DRAFT), block_bytes=2 * PAGE * 8)
MODELS = {"full": [PATH], "window": [PATH, WINDOW], "state": [PATH, STATE], "drafted": [DRAFTED]}
STAGES: dict[str, list[tuple[str, ...]]] = {
    "full": [("full",), ()],
    "window": [("full", "window.a"), ("window.b",)],
    "state": [("state",), ("full",)],
    "drafted": [("full",), (DRAFT,)],
}
"""The layers of each pipeline stage."""


def staged(group: BlockGroup, names: Sequence[str]) -> BlockGroup:
    """A group as the worker of a stage with these layers has it."""
    held = tuple(name for name in group.layer_names if name in names)
    size = group.block_bytes // len(group.layer_names) * len(held)
    return replace(group, layer_names=held or (NO_LAYER,), block_bytes=size or NO_LAYER_BYTES)


def prompt(first: int = 0, length: int = 5 * PAGE + 1) -> list[int]:
    """Tokens that count from `first` on."""
    return list(range(first, first + length))


def files(path: FilePath) -> StoreSettings:
    """A store of files, which up to four workers share."""
    return StoreSettings.of({"engine": "file", "directory": str(path), "capacity_bytes": 1 << 25, "shares": 4})


def content(layer: str, namespace: str, inputs: Sequence[Hashable]) -> int:
    """What a layer holds after these inputs."""
    return hash((layer, namespace, tuple(inputs))) & 0x7FFFFFFF


@dataclass(frozen=True)
class Place:
    """Where an image lies in a prompt."""

    offset: int
    length: int


@dataclass(frozen=True)
class Image:
    """An image in a prompt, whose tokens are placeholders."""

    identifier: str
    mm_position: Place


@dataclass(eq=False)
class Request:
    """A request of the model.

    Attributes:
        mm_features: its images.
        prompt_embeds: shape [tokens, hidden]; instead of all tokens, or of those of which `prompt_is_token_ids` says False.
    """

    request_id: str
    namespace: str
    all_token_ids: list[int]
    output_tokens: int
    computed: int = 0
    is_loading: bool = False
    is_aborted: bool = False
    blocks: list[list[int]] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    mm_features: list[Image] = field(default_factory=list)
    prompt_embeds: torch.Tensor | None = None
    prompt_is_token_ids: list[bool] | None = None
    session: str | None = None
    given: object = None

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def inputs(self, length: int) -> list[Hashable]:
        """What the model is given for its first tokens: a token, a part of an image, or an embedding."""
        found: list[Hashable] = list(self.all_token_ids[:length])
        for at, row in enumerate([] if self.prompt_embeds is None else self.prompt_embeds[:length].tolist()):
            if self.prompt_is_token_ids is None or not self.prompt_is_token_ids[at]:
                found[at] = ("embedding", *row)
        for image in self.mm_features:
            begin = image.mm_position.offset
            for at in range(begin, min(length, begin + image.mm_position.length)):
                found[at] = (image.identifier, at - begin)
        return found


class Delayed(Executor):
    """Runs what was submitted when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            self.waiting.pop(0)()


class EngineModel:
    """One engine with the connector behind it.

    Args:
        kind: of MODELS.
        seed: decides everything.
        host_bytes: of each worker.
        workers: how many.
        stages: the layers of each worker; all have all of them if left out.
        pace: of loads, how many end in a step.
        store: of every worker; None without.
        weights_version: of what is stored.
        prefetch: how long a request waits for the store.
        inspector: where the inspector's page is; None for none.
        observers: are told of the requests.
        sleeps: vLLM has its sleep mode enabled.
        tenants: groups of namespaces.
    """

    def __init__(
        self,
        kind: str,
        seed: int,
        *,
        host_bytes: int = 4000,
        workers: int = 1,
        stages: Sequence[Sequence[str]] | None = None,
        verify: bool = False,
        pace: Sequence[int] = (0, 0, 1, 3),
        store: StoreSettings | None = None,
        weights_version: str = "1",
        prefetch: PrefetchPolicy = PREFETCH,
        inspector: InspectorSettings | None = None,
        observers: Sequence[CacheObserver] = (),
        sleeps: bool = False,
        tenants: Tenants | None = None,
    ) -> None:
        self.pace = pace
        self.weights = 0
        self.groups = MODELS[kind]
        self.random = random.Random(seed)
        self.held = [self.groups] * workers if stages is None else [
            [staged(group, names) for group in self.groups] for names in stages
        ]  # fmt: skip
        workers = len(self.held)
        largest = over_stages(self.groups, [[group.block_bytes for group in held] for held in self.held])
        counts = page_counts(largest, PAGE, host_bytes, 2 * PAGE)
        index = HostIndex(largest, PAGE, counts, "lru", 1 << 20, tenants)
        stores = None if store is None else SchedulerStore(index, workers, weights_version, prefetch)
        self.side = SchedulerSide(
            index, worker_count=workers, hash_tokens=PAGE, store=stores, inspector=inspector, observers=observers,
            asks_after_sleep=sleeps, has_paired_keys=kind == "drafted",
        )  # fmt: skip
        self.block_count = 120
        self.free = list(range(1, self.block_count))
        self.caches = [
            {name: torch.full((self.block_count, 1 if name == "state" else PAGE), GARBAGE) for group in held
             for name in group.layer_names if name != NO_LAYER} for held in self.held
        ]  # fmt: skip
        self.delays = [Delayed() for _ in range(workers)]
        self.workers = [
            WorkerSide(
                held, counts, loads=delay, verify=verify, shard=Shard(rank, workers),
                open_store=None if store is None else partial(self.open_store, held, store, Shard(rank, workers)),
                weights=lambda: str(self.weights).encode() if sleeps else None,
            )
            for rank, (held, delay) in enumerate(zip(self.held, self.delays, strict=True))
        ]  # fmt: skip
        for worker, caches in zip(self.workers, self.caches, strict=True):
            worker.register(caches, self.block_count)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.asked: list[tuple[str, list[int]]] = []
        self.outputs: list[tuple[StepReport | None, set[str], set[str]]] = []
        self.received: dict[str, int] = {}
        self.failed: set[str] = set()
        self.hit_tokens = 0
        self.prompts: dict[str, int] = {}
        self.computed_tokens = 0

    def open_store(
        self, held: Sequence[BlockGroup], store: StoreSettings, shard: Shard, pages: Mapping[str, BlockPages]
    ) -> WorkerStore:
        """A worker's store, as the connector opens it."""
        formats = {name: each.pool.format for name, each in pages.items()}
        components = tuple(replace(group.component, format=formats[group.name]) for group in held)
        return WorkerStore.open(Composition(name="model", page_size=PAGE, components=components), pages, store, shard)

    def add(self, request: Request) -> None:
        """A request arrives."""
        self.asked.append((request.namespace, request.all_token_ids))
        self.side.begin(request, request.namespace, session=request.session, given=request.given)
        self.prompts[request.request_id] = request.num_tokens
        self.admit(request)

    def serve(self, tokens: Sequence[int], namespace: str = "", output_tokens: int = 1) -> int:
        """Serve a prompt to its end, with nothing beside it; how many of its tokens were a hit."""
        before = self.hit_tokens
        self.add(Request(f"r{len(self.asked)}", namespace, list(tokens), output_tokens))
        self.settle()
        return self.hit_tokens - before

    def admit(self, request: Request) -> None:
        """Ask for a hit, and begin to load it; ask again with the next step while the store fetches."""
        hit = self.side.matched_tokens(request, 0)
        if hit is None:
            self.waiting.append(request)
            return
        assert hit % PAGE == 0
        assert hit < request.num_tokens
        self.running.append(request)
        request.blocks = [[] for _ in self.groups]
        self.grow(request, hit, hit)
        if hit:
            self.side.load(request.request_id, request.blocks, hit)
            request.is_loading, request.computed = True, hit

    def step(self) -> None:
        """Everybody who is not loading computes a chunk; the workers copy, and report what they have done some steps later."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self.admit(request)
        scheduled = [self.compute(request) for request in list(self.running) if not request.is_loading]
        plan = self.side.plan(scheduled)
        for worker, delay in zip(self.workers, self.delays, strict=True):
            if plan.reset_job is not None:
                worker.answer_reset(plan.reset_job, plan.resets)
            worker.start_loads(plan.loads)
            worker.start_store(plan.messages)
            delay.run(self.random.choice(self.pace))
            worker.save(plan.saves)
            received = worker.take_received()
            delay.run(self.random.choice(self.pace))
            self.outputs.append((worker.take_report(), *received))
        while self.outputs and self.random.random() < 0.7:
            self.take_output()
        self.resume()
        for request in list(self.running):
            if not request.is_loading and request.output_tokens <= 0:
                self.finish(request)
        assert not self.side.index.tree.check()

    def take_output(self) -> None:
        """What a worker did in one step reaches the scheduler."""
        report, received, failed = self.outputs.pop(0)
        if report is not None:
            self.side.complete(report)
        self.failed |= failed
        for name in received:
            self.received[name] = self.received.get(name, 0) + 1

    def resume(self) -> None:
        """Requests whose load ended compute on; their blocks must hold what was promised."""
        for request in list(self.running):
            if not request.is_loading or self.received.get(request.request_id) != len(self.workers):
                continue
            del self.received[request.request_id]
            request.is_loading = False
            if request.is_aborted:
                self.finish(request)
            elif request.request_id in self.failed:
                self.release(request)
                self.admit(request)
            else:
                self.check(request)
                self.hit_tokens += request.computed

    def check(self, request: Request) -> None:
        """All that the next token reads is there."""
        length = request.computed
        for rank, caches in enumerate(self.caches):
            for group in self.groups:
                for index in range(group.coverage.first_page(length, PAGE), length // PAGE):
                    for name in group.layer_names:
                        if name not in caches:
                            continue
                        held = caches[name][request.blocks[group.index][index]].tolist()
                        assert held == self.expected(group, name, request, index, rank), f"{name}: block {index} of {request}"

    def expected(self, group: BlockGroup, layer: str, request: Request, index: int, rank: int) -> list[int]:
        """What block `index` must hold in one worker."""
        layer = f"{layer} of {rank} with weights {self.weights}"
        begin, end = index * PAGE, (index + 1) * PAGE
        ahead = layer.startswith(DRAFT)
        lengths = [end] if group.coverage.is_exact else list(range(begin + 1 + ahead, end + 1 + ahead))
        return [content(layer, request.namespace, request.inputs(length)) for length in lengths]

    def compute(self, request: Request) -> ScheduledRequest:
        """A chunk, or an output token."""
        self.computed_tokens += max(0, self.prompts.pop(request.request_id, 0) - request.computed)
        left = request.num_tokens - request.computed
        chunk = min(left, self.random.choice([PAGE, 2 * PAGE, 5 * PAGE]))
        end = request.computed + chunk
        last = (request.num_tokens - 1) // PAGE * PAGE
        if STATE in self.groups and (end < request.num_tokens or request.computed < last):
            end = max(min(end, last) // PAGE * PAGE, request.computed + 1)
        self.grow(request, request.computed, end)
        if end == request.num_tokens:
            request.output_tokens -= 1
            request.all_token_ids.append(self.random.randrange(3))
        states = []
        for group in self.groups:
            for index in range(request.computed // PAGE, end // PAGE):
                block = request.blocks[group.index][index]
                if group.coverage.is_exact and (index + 1) * PAGE != end:
                    continue
                if group.coverage.is_exact:
                    states.append((group.index, block, end))
                for rank, caches in enumerate(self.caches):
                    for name in caches.keys() & set(group.layer_names):
                        caches[name][block] = torch.tensor(self.expected(group, name, request, index, rank))
        request.computed = end
        table = request.blocks
        return ScheduledRequest(request_id=request.request_id, end_tokens=end, block_table=lambda: table, states=states)

    def grow(self, request: Request, before: int, end: int) -> None:
        """Blocks for tokens up to `end`; those that no later token needs are freed, as vLLM does before a step."""
        for group in self.groups:
            table = request.blocks[group.index]
            first = group.coverage.first_page(before, PAGE) if before else 0
            for index in range(min(first, len(table))):
                self.give_back(table, index)
            while len(table) < -(-end // PAGE):
                table.append(self.allocate() if len(table) >= first else 0)

    def allocate(self) -> int:
        """A block full of garbage."""
        block = self.free.pop(self.random.randrange(len(self.free)))
        for caches in self.caches:
            for cache in caches.values():
                cache[block] = GARBAGE
        return block

    def give_back(self, table: list[int], index: int) -> None:
        """A block is not the request's any more."""
        if table[index]:
            self.free.append(table[index])
        table[index] = 0

    def release(self, request: Request) -> None:
        """All blocks of a request are free."""
        for table in request.blocks:
            for index in range(len(table)):
                self.give_back(table, index)
        self.running.remove(request)
        request.computed = 0

    def abort(self, request: Request) -> None:
        """The client is gone. The blocks of a load in flight stay until it ends."""
        request.is_aborted = True
        self.side.end(request.request_id)
        if request in self.waiting:
            self.waiting.remove(request)
        elif not request.is_loading:
            self.release(request)

    def finish(self, request: Request) -> None:
        """The request has all its tokens."""
        self.side.end(request.request_id)
        self.release(request)

    def sleep(self, *, weights: int = 0, is_rebuilt: bool = False) -> None:
        """Sleep and wake up, with other weights or the same. What runs begins anew, and vLLM's cache holds garbage; it is the
        same memory, or other tensors if it is rebuilt.
        """
        while any(request.is_loading or request.request_id in self.prompts for request in self.running):
            self.step()
        for request in list(self.running):
            self.release(request)
            self.waiting.append(request)
        self.side.reset()
        for worker, caches in zip(self.workers, self.caches, strict=True):
            worker.give_back()
            for name in caches:
                caches[name] = torch.full_like(caches[name], GARBAGE) if is_rebuilt else caches[name].fill_(GARBAGE)
            if is_rebuilt:
                worker.register(caches, self.block_count)
            worker.restore()
        self.weights = weights

    def settle(self) -> None:
        """Run until nothing is in flight; then no page is lost, and nothing is locked."""
        while (
            self.waiting
            or self.running
            or self.side.has_work
            or any(report for report, _, _ in self.outputs)
            or any(delay.waiting for delay in self.delays)
        ):
            self.step()
        assert not self.side.open_jobs
        assert self.side.misses is not None
        assert sum(self.side.misses.ledger.tokens) == self.computed_tokens, "the causes sum to what was computed"
        assert not self.side.misses.ledger.in_flight.count
        pools = {group.name: self.side.index.tree.pool(group.name, Tier.HOST) for group in self.groups}
        assert {name: pool.used_pages for name, pool in pools.items()} == self.side.index.used_pages
        assert all(pool.protected_pages == 0 for pool in pools.values())

    def index_only_forgets(self) -> None:
        """The host is empty, and the weights are the same."""
        self.side.index.tree.invalidate()
        index = self.side.index
        while index.tree.is_reclaimable:
            reclaimed = index.tree.reclaim(1000)
            for freed in (reclaimed.freed, reclaimed.freed_elsewhere):
                index.host.free_all(freed)

    def close(self) -> None:
        """The engine ends."""
        for worker in self.workers:
            worker.close()
        self.side.close()


def traffic(engine: EngineModel, count: int, *, aborts: float = 0.1) -> None:
    """Requests with shared heads, continued conversations and branches, several at a time."""
    pick, past = engine.random, [[engine.random.randrange(3) for _ in range(30)] for _ in range(2)]
    for number in range(count):
        head = pick.choice(past)
        tokens = [*head[: pick.randrange(len(head) + 1)], *(pick.randrange(3) for _ in range(pick.randrange(1, 12)))]
        request = Request(f"r{number}", pick.choice(["", "", "salt"]), tokens[:44], pick.randrange(1, 12))
        engine.add(request)
        past.append(request.all_token_ids)
        for _ in range(pick.randrange(1, 6)):
            engine.step()
        if (engine.running or engine.waiting) and pick.random() < aborts:
            victim = pick.choice(engine.running + engine.waiting)
            if not victim.is_aborted:
                engine.abort(victim)
        while len(engine.running) + len(engine.waiting) > 3:
            engine.step()
    engine.settle()
