"""A host tier of the SGLang backend over plain tensors, without SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import sglang_pools as kv
import torch
from sglang_allocators import SlotAllocator, StateAllocator, WindowAllocator
from watchdog import until

from unified_tree import Component, Key, Path, Point, Trailing, UnifiedTree
from unified_tree.components import Composition
from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW, DevicePools
from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
from unified_tree.controllers.adapters.sglang.engine_tensors import RankParts, engine_tensors
from unified_tree.controllers.adapters.sglang.kept_store import KeptStore
from unified_tree.controllers.adapters.sglang.tiers import LoadLock, Tiers, host_memory
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.pools.host_pool import HostPool
from unified_tree.controllers.ranks.rank_agreement import RankAgreement
from unified_tree.controllers.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.policies import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.storage_tier.store_settings import StoreSettings
from unified_tree.controllers.transfer_engines.cuda_engine import Lane
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.results import Boundary

SIZE, PAGES, STATES, TOKENS = 2, 8, 4, list(range(8))
KINDS = ("full", "windows", "states", "index keys", "drafted", "drafted states")


class Served:
    """One life of a cache with a host tier; `publish` writes a prompt's own numbers into its pages.

    The life after a flush is given the one before, whose host memory and store it has.

    With lanes it is as on a GPU: page numbers are not read, and streams copy.
    """

    def __init__(
        self,
        kind: str,
        files: FilePath | None = None,
        lanes: Mapping[EffectKind, Lane] | None = None,
        write_policy: WritePolicy = WritePolicy.WRITE_THROUGH,
        window_tokens: int = SIZE,
        ranks: RankAgreement | None = None,
        before: Served | None = None,
        weights: str | None = "1",
        has_stages: bool = False,
    ) -> None:
        self.kind = kind
        self.has_states, slots = kind.endswith("states"), (PAGES + 1) * SIZE
        allocator: Any = WindowAllocator(PAGES, PAGES, SIZE) if kind == "windows" else SlotAllocator(PAGES, SIZE)
        pools: dict[str, Any] = {
            "windows": lambda: kv.windowed(slots, slots),
            "states": lambda: kv.hybrid(slots),
            "drafted states": lambda: kv.hybrid(slots),
            "index keys": lambda: kv.sparse(slots, SIZE),
        }
        is_drafted = kind.startswith("drafted")
        self.tensors = engine_tensors(
            pools.get(kind, lambda: kv.attention(slots, 2))(),
            kv.with_states(STATES + 1),
            SIZE,
            RankParts.of(0, 1),
            has_windows=kind == "windows",
            has_states=self.has_states,
            draft_pools=[kv.attention(slots, 1)] if is_drafted else (),
            draft_state_pools=[kv.with_states(STATES + 1).mamba_pool] if is_drafted and self.has_states else (),
        )
        coverage: dict[str, Any] = {FULL: Path(), WINDOW: Trailing(window_tokens), STATE: Point()}
        components = [
            Component(
                name=name,
                coverage=coverage[each.shares or name],
                format=each.format,
                shares=each.shares,
            )
            for name, each in self.tensors.items()
        ]
        self.owners = [component.name for component in components if component.shares is None]
        self.tree = UnifiedTree(components, SIZE)
        states = StateAllocator(STATES) if self.has_states else None
        self.in_host_memory = lanes is None
        self.pools = DevicePools(
            allocator,
            SIZE,
            window_tokens=window_tokens if kind == "windows" else None,
            state_allocator=states,
            in_host_memory=self.in_host_memory,
        )
        self.device = DeviceTier(self.tree, self.pools, CacheCounters())
        host = host_memory(self.tensors, dict.fromkeys(self.tensors, 16)) if before is None else before.host
        self.host: Mapping[str, HostPool] = host
        self.tiers = Tiers(
            self.tree,
            self.device,
            self.pools,
            self.tensors,
            host,
            write_policy=write_policy,
            lanes=lanes,
            ranks=ranks,
            has_stages=has_stages,
        )
        model = Composition(name="model", page_size=SIZE, components=self.tree.components, tensor_parallel=1, rank=0)
        self.store: KeptStore = (
            KeptStore(lambda settings, _: store(FilePath(settings.options["directory"]), model, host), "first", "life")
            if before is None
            else before.store
        )
        if files is not None:
            options = {"directory": str(files)}
            self.store.open(StoreSettings(engine="file", options=options, weights_version=weights), "timeout")
        self.store.follow(self.tiers)

    def uses_store(self) -> bool:
        return self.tiers.storage is not None

    def flushed(self) -> Served:
        """The life after a flush."""
        self.tiers.close(keeps_engine=True)
        return Served(self.kind, before=self)

    def found(self, tokens: Sequence[int] = TOKENS) -> int:
        """How many tokens of a prompt the store brings to host."""
        if self.tiers.prefetch("request", Key([*tokens, 0])):
            until(lambda: self.polled().is_prefetched("request"), "the prefetch ends")
        return self.tiers.end_prefetch("request")

    def stored(self) -> Served:
        """Itself, when the prompt is computed and in the store."""
        self.publish()
        until(lambda: not self.polled().is_busy, "the store has it")
        return self

    def publish(self) -> None:
        """Compute the prompt, and have it copied to host."""
        self.tiers.controller.committed(self.compute())
        self.tiers.controller.drain()

    def compute(self, count: int = len(TOKENS)) -> Boundary:
        """Compute the first tokens of the prompt; where the tree has them."""
        row = self.pools._allocator.alloc(count)[:: self.tree.page_size]
        offered = self.pools.offer(row.numpy() if self.in_host_memory else row, range(0))
        pages, states = {FULL: offered.full}, {}
        if WINDOW in self.tensors:
            pages[WINDOW] = offered.windows
        if self.has_states:
            states[STATE] = {count: int(self.pools.allocate(STATE, 1)[0])}
        result = self.tree.insert(Key(TOKENS[:count]), pages, states, keep_spare=True)
        self.pools.settle(offered, result)
        for at, rows in enumerate(self.contents(result.boundary)):
            numbers = torch.arange(rows[0][rows[1]].numel()).view(rows[0][rows[1]].shape) + 100.0 * at + 1
            rows[0][rows[1]] = numbers.to(rows[0].dtype)
        return result.boundary

    def contents(self, boundary: Boundary) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor, and the pages of it that belong to a boundary."""
        for name, each in self.tensors.items():
            names = self.tree.transfers.pages_with_loads(boundary, name)
            pages = torch.as_tensor(self.pools.names(each.shares or name).pages(names.copy()))
            for parts in each.by_part.values():
                yield from ((tensor, pages) for tensor in parts)

    def prompt_bytes(self) -> list[torch.Tensor]:
        """What the pages of the prompt hold on device."""
        return [tensor[pages].clone() for tensor, pages in self.contents(self.tree.match_prefix(Key(TOKENS)).device)]

    def check_bytes(self, wanted: list[torch.Tensor]) -> None:
        assert all(torch.equal(a, b) for a, b in zip(self.prompt_bytes(), wanted, strict=True))

    def forget(self) -> None:
        """Evict all from device, and spoil what was there."""
        self.device.evict(dict.fromkeys(self.owners, PAGES))
        assert [self.pools.free_pages(name) for name in self.owners] == [self.pools.page_count(name) for name in self.owners]
        for each in self.tensors.values():
            for parts in each.by_part.values():
                for tensor in parts:
                    tensor.view(torch.uint8).fill_(255)

    def begin(self) -> LoadLock | None:
        match = self.tree.match_prefix(Key(TOKENS))
        assert self.tiers.host_needs(match)
        load = self.tiers.begin_load(match.reachable, match.reachable.length, takes_state=self.has_states)
        if load is None:
            return None
        lock = self.tiers.lock_of(load.boundary)
        assert self.tiers.lock_of(load.boundary) is None, "a load has one request"
        return lock

    def begun(self) -> LoadLock:
        """The lock of a load of the prompt, for which there is room."""
        lock = self.begin()
        assert lock is not None
        return lock

    def loaded(self) -> LoadLock:
        """As `begun`, when the load is over."""
        lock = self.begun()
        self.tiers.start_batch()
        lock.wait()
        return lock

    def polled(self) -> Tiers:
        self.tiers.poll()
        return self.tiers

    def check_nothing_is_lost(self) -> None:
        self.tiers.controller.drain()
        assert not self.tree.check()
        for name in self.owners:
            assert len(self.pools.names(name)) == self.tree.pool(name).used_pages
            assert self.pools.free_pages(name) + len(self.pools.names(name)) == self.pools.page_count(name)


def store(files: FilePath, model: Composition, host: Mapping[str, Any]) -> StorageTier:
    options = {"directory": str(files), "capacity_bytes": 1 << 22}
    prefetch = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1)
    return StorageTier.open("file", model, memory=host, weights_version="1", options=options, prefetch=prefetch)
