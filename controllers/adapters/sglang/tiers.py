"""Host memory and a store behind SGLang's device pools.

A request whose prompt continues on host is admitted with a load: its pages are copied back while the model runs, and each layer
waits at a gate for its own. Backups and prefetches run beside; `poll` applies what has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.sglang.device_pools import STATE, WINDOW
from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover, last_layer
from unified_tree.controllers.cache.admission import LOAD_FAILED, NO_ROOM
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.host.host_tier import HostTier, WritePolicy
from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
from unified_tree.controllers.pools import HostLayout
from unified_tree.controllers.pools.host_pool import host_pools
from unified_tree.controllers.ranks.rank_agreement import SingleRank
from unified_tree.controllers.transfer_engines import CpuEngine, CudaEngine
from unified_tree.controllers.transfer_engines.schedule import step_blocks
from unified_tree.controllers.weights.weights import Weights
from unified_tree.terms.errors import OutOfPagesError, StaleBoundaryError, TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.device_pools import DevicePools
    from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineTensors
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.controllers.pages.page_allocator import PageAllocator
    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.pools.page_mover import PageMover
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier import StorageController, StorageTier
    from unified_tree.controllers.transfer_engines.cuda_engine import Lane
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer, TransferEngine
    from unified_tree.declare.keys import Key
    from unified_tree.declare.page_format import PageFormat
    from unified_tree.misses.causes import StoreLoss
    from unified_tree.nodes.effect import EffectKind
    from unified_tree.terms.results import Boundary, Match
    from unified_tree.tree import UnifiedTree


TOO_LITTLE_MEMORY = (
    "give a smaller --hicache-ratio or --hicache-size (host.ratio, host.gib, host.pages), "
    "or on CPU a smaller --max-total-tokens"
)
"""What to do if the host pages do not fit."""
LAUNCHES = 800
"""Kernels that are on a stream at a time: about a thousand fit into its queue before launching blocks."""


def host_memory(tensors: Mapping[str, EngineTensors], page_counts: Mapping[str, int]) -> dict[str, HostPool]:
    """Host pools for the pages of these tensors, by component; pinned if those are on a GPU.

    Raises ConfigurationError if they do not fit into the memory that is free.
    """
    formats = {name: found.format for name, found in tensors.items()}
    pin = any(found.device.type == "cuda" for found in tensors.values())
    return host_pools(formats, page_counts, layout=HostLayout.PAGE_FIRST_DIRECT, pin=pin, remedy=TOO_LITTLE_MEMORY)


def stream_engine(
    movers: Mapping[str, PageMover], formats: Mapping[str, PageFormat], lanes: Mapping[EffectKind, Lane]
) -> CudaEngine:
    """The engine of copies on streams, whose steps are large enough for pages of one token, and few enough for many layers.

    SGLang has a tensor for each layer and part, so a step of all layers launches up to two kernels for each.
    """
    launches = max(2 * len(found.layer_ids) * len(found.parts) for found in formats.values())
    return CudaEngine(
        movers,
        lanes,
        window_steps=max(2, LAUNCHES // launches),
        chunk_blocks=step_blocks(formats),
    )


class LoadLock:
    """Keeps the pages of a load for a request, as a receipt keeps those on device."""

    __slots__ = ("_controller", "_load")

    def __init__(self, controller: HybridCacheController, load: Load) -> None:
        self._controller = controller
        self._load = load

    @property
    def boundary(self) -> Boundary:
        """Where the request resumes."""
        return self._load.boundary

    def wait(self) -> None:
        """Return when the load is over and its pages are the tree's. Raises TransferError if it failed."""
        if not self._load.has_ended:
            self._controller.wait(self._load)
        if self._load.error is not None:
            raise TransferError(self._load.error)

    def release(self, component: str | None = None) -> None:
        """Stop keeping the pages; a load for which no request waits is cancelled. One component alone is kept until the end."""
        if component is None:
            self._controller.release(self._load)


class HostPoolSize:
    """How full a host pool is, in tokens, as SGLang's metrics ask.

    Args:
        allocator: of the pool.
        page_size: tokens a page.
    """

    def __init__(self, allocator: PageAllocator, page_size: int) -> None:
        self._allocator = allocator
        self._page_size = page_size

    @property
    def logical_size(self) -> int:
        """Tokens that fit into the pool."""
        return (self._allocator.page_count or 0) * self._page_size

    def available_size(self) -> int:
        """Tokens of free pages."""
        return self._allocator.free_pages * self._page_size


class Tiers:
    """The host tier, and the store behind it, of one cache.

    Args:
        tree: of the cache.
        device: its device pools.
        pools: the same, with the names of their pages.
        tensors: where SGLang keeps the state, by component.
        host: the host pools, by component.
        write_policy: when boundaries are copied to host.
        lanes: the streams of a GPU's copies, one a direction; None on a CPU, where a thread copies.
        ranks: agreement with the other ranks; closed with the tiers. None for a single rank.
        counters: of the cache.
        has_stages: some of the ranks are in other stages of a pipeline. Then ranks agree on what the store has alone; copies
            end for all of them at the same calls, see `SettledEngine`.

    Attributes:
        unloaded: why the last load that could not begin did not, as a cause of misses and its detail.
    """

    def __init__(
        self,
        tree: UnifiedTree,
        device: DeviceTier,
        pools: DevicePools,
        tensors: Mapping[str, EngineTensors],
        host: Mapping[str, HostPool],
        *,
        write_policy: WritePolicy,
        lanes: Mapping[EffectKind, Lane] | None = None,
        ranks: RankAgreement | None = None,
        counters: CacheCounters | None = None,
        has_stages: bool = False,
    ) -> None:
        self._tree = tree
        self.counters = counters or CacheCounters()
        self._ranks = ranks or SingleRank()
        formats = {name: found.format for name, found in tensors.items()}
        movers = {name: EngineMover(found, pools.names(found.shares or name), host[name]) for name, found in tensors.items()}
        engine: TransferEngine = CpuEngine(movers) if lanes is None else stream_engine(movers, formats, lanes)
        if has_stages:
            engine = SettledEngine(engine)
        counts = {name: pool.page_count for name, pool in host.items()}
        tier = HostTier(page_counts=counts, engine=engine, write_policy=write_policy)
        agreement = SingleRank() if has_stages else self._ranks
        self.controller = HybridCacheController(tree, device, tier, self.counters, agreement)
        device.finish_copy = self.controller.finish_one
        self._starting: dict[Boundary, Load] = {}
        self.unloaded = NO_ROOM
        self._batch: list[Load] = []
        self._open: list[Load] = []
        self._has_stages = has_stages
        self._loads_first = has_stages or STATE in formats
        self._last_layer = last_layer(tensors)
        self._last_of_all = max(found.layer_ids[-1] for found in formats.values())
        self.storage: StorageController | None = None

    def attach(self, tier: StorageTier) -> None:
        """Put a store behind the host tier, which has none. Raises ConfigurationError for one that cannot keep its pages."""
        from unified_tree.controllers.storage_tier import StorageController, TierStore

        assert self.storage is None, "a store is attached already"
        weights = Weights(self._tree, self._ranks, 16_384)
        shared = TierStore(self._tree, self.controller.host, tier, self.counters, weights, self._ranks)
        self.storage = StorageController(shared)
        weights.attached(tier.weights_version)
        self.controller.storage = self.storage

    def detach(self, *, keeps_engine: bool = False) -> None:
        """Go on without the store: reads and writes that run are cancelled, and requests wait for none. Blocks as long as the
        engine's calls do. No effect without a store."""
        if self.storage is not None:
            storage, self.storage, self.controller.storage = self.storage, None, None
            storage.close(keeps_engine=keeps_engine)

    def host_needs(self, match: Match) -> dict[str, int]:
        """Device pages that loading the rest of a match would take, by component; empty if it is not worth loading."""
        gain = match.reachable.length - match.device.length
        if gain <= 0 or not self.controller.is_worth_loading(match.reachable, gain):
            return {}
        return self._tree.transfers.load_needs(match.reachable)

    def window_pages(self, match: Match) -> int:
        """Device pages of windows that loading the rest of a match takes: those it fills, and those it keeps from eviction."""
        pool = self._tree.pool(WINDOW)
        resumed = self._tree.lock(match.device)
        evictable = pool.evictable_pages
        kept = self._tree.transfers.lock_present(match.reachable)
        needs = self._tree.transfers.load_needs(match.reachable).get(WINDOW, 0) + evictable - pool.evictable_pages
        kept.release()
        resumed.release()
        return needs

    def begin_load(self, boundary: Boundary, tokens: int, *, takes_state: bool) -> Load | None:
        """Start to load a boundary back; None if there is no room, or if it is gone."""
        try:
            load = self.controller.load(boundary, tokens, {STATE: 1} if takes_state else {})
        except (OutOfPagesError, StaleBoundaryError, TransferError) as error:
            self.counters.count_drop("no room to load" if isinstance(error, OutOfPagesError) else "load lost its boundary")
            self.unloaded = LOAD_FAILED if isinstance(error, TransferError) else NO_ROOM  # what is gone made room
            return None
        self._starting[load.boundary] = load
        self._batch.append(load)
        self._open.append(load)
        return load

    def finish_loads(self) -> None:
        """Wait for all loads that requests wait for, and apply them.

        Otherwise a prompt that one request computes and another loads would come into the tree twice: a load that ends after
        the insert gives up its pages, and the row of the other request refers to them.
        """
        loads, self._open = self._open, []
        for load in loads:
            if not (load.has_ended or load.is_released):
                self.controller.wait(load)

    def lock_of(self, boundary: Boundary) -> LoadLock | None:
        """The lock of a load that was just begun, for the request that it was begun for; None for any other boundary."""
        load = self._starting.pop(boundary, None)
        return None if load is None else LoadLock(self.controller, load)

    def start_batch(self) -> list[Load]:
        """Submit the copies of the loads that were begun since the last batch; those that its layers must wait for.

        A recurrent state is copied before the first layer runs, so a model with states waits here for its loads. So do stages
        of a pipeline, whose trees must have them at the same call.
        """
        loads = [load for load in self._batch if load.error is not None or not load.is_released]
        self._batch = []
        self.controller.submit()
        for load in loads if self._loads_first else ():
            self.controller.wait(load)
            if load.error is not None:
                raise TransferError(load.error)
        return [] if self._loads_first else loads

    def wait_layer(self, load: Load, layer: int) -> None:
        """Return when the pages of one layer have been loaded, or if no request waits for them. Raises TransferError if it
        failed. A draft runs behind the model, so the model's last layer waits for all of it."""
        if load.error is not None or not load.is_released:
            self.controller.wait_layer(load, layer if layer < self._last_layer else self._last_of_all)

    def poll(self) -> None:
        """Apply what has ended, and start what is due. Never blocks, but in pipeline stages."""
        self.controller.poll()
        if self._tree.state.rooms:
            self.controller.host.hold_caps()
        self._open = [load for load in self._open if not (load.has_ended or load.is_released)]
        if self.storage is not None:
            if self._has_stages:
                self._ranks.tick()
            self.storage.poll()

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """Start to fetch a waiting prompt from the store; whether there is something to wait for."""
        return self.storage is not None and self.storage.prefetch(request, key)

    def is_prefetched(self, request: Hashable) -> bool:
        """Whether a request waits no longer for the store."""
        return self.storage is None or self.storage.prefetcher.requests.is_ready(request)

    def end_prefetch(self, request: Hashable) -> int:
        """A request waits no longer; how many tokens the store added to its prefix on host. The next call returns 0."""
        return 0 if self.storage is None else self.storage.prefetcher.requests.stop_waiting(request)

    def due_tokens(self, request: Hashable) -> int:
        """How long a prefix the store would still bring for a request, as far as is known; 0 if it waits for nothing."""
        return 0 if self.storage is None else self.storage.prefetcher.requests.due_pages(request) * self._tree.page_size

    def store_loss(self, request: Hashable) -> StoreLoss | None:
        """What a fault of the store kept from a request's prompt, as far as is known; None for nothing."""
        return None if self.storage is None else self.storage.prefetcher.requests.loss_of(request)

    def cancel_prefetch(self, request: Hashable) -> None:
        """A request waits no longer. No effect for an unknown one."""
        if self.storage is not None:
            self.storage.prefetcher.requests.cancel(request)

    @property
    def is_busy(self) -> bool:
        """Whether any copy is under way."""
        return self.controller.is_busy or (self.storage is not None and self.storage.is_busy)

    def close(self, *, keeps_engine: bool = False) -> None:
        """Stop all copies, those that have begun too, and close the store, the engine and the agreement. Idempotent.

        Args:
            keeps_engine: leave the store's engine open, for the tiers of the next tree.
        """
        try:
            if self.storage is not None:
                self.storage.close(keeps_engine=keeps_engine)
        finally:
            try:
                self.controller.close()
            finally:
                self._ranks.close()


class LayerGate:
    """Where the layers of a model wait for their pages.

    SGLang calls it a layer transfer counter. Each batch that loads something has a number, and its layers wait for the loads of
    that batch.

    Attributes:
        num_layers: of the model; where a whole model is one graph of kernels, SGLang waits for the last.
        consumer_index: the batch that runs now.
    """

    REMEMBERED = 8

    def __init__(self, wait_layer: Callable[[Load, int], None], num_layers: int) -> None:
        self._wait_layer = wait_layer
        self.num_layers = num_layers
        self._batches: dict[int, list[Load]] = {}
        self._last = -1
        self.consumer_index = -1

    def open(self, loads: list[Load]) -> int:
        """The number of a batch with these loads; -1 without any."""
        if not loads:
            return -1
        self._last += 1
        self._batches[self._last] = loads
        self._batches.pop(self._last - self.REMEMBERED, None)
        return self._last

    def set_consumer(self, index: int) -> None:
        """The batch that runs now; -1 for one without loads."""
        self.consumer_index = index

    def wait_until(self, layer: int) -> None:
        """Return when the pages of one layer of the running batch are there. Raises TransferError if they will not come."""
        for load in self._batches.get(self.consumer_index, ()):
            self._wait_layer(load, layer)


class SettledEngine:
    """Another engine, of which every poll waits for all that was submitted, and has its completions in the order of tickets.

    It serves stages of a pipeline, each of which must see the same copies ended at the same call. Ranks of one stage agree on
    what has ended, and may wait for one another at any call. A stage must not: it would wait for the next stage in a call that
    this one makes when the stage has sent on what it computes after its own call. So nothing is agreed on here: copies that
    were submitted before a call of `poll` have ended when it returns, as each stage waits for its own.

    A copy that fails would leave this stage with another tree than the others have, so `poll` raises TransferError then. A
    transfer cannot be cancelled, for on one stage that might come too late.

    Args:
        engine: that copies.
    """

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        self._engine.submit(transfers)

    def poll(self) -> list[Completion]:
        """The completions of everything that was submitted, by ticket. Blocks; raises TransferError for one that failed."""
        self._engine.drain()
        found = sorted(self._engine.poll(), key=lambda completion: completion.ticket)
        for completion in found if not self._is_closed else ():
            if completion.error is not None:
                raise TransferError(f"transfer {completion.ticket}: {completion.error}; the other pipeline stages may have it")
        return found

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer."""
        self._engine.wait_layer(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """No effect: the transfer ends as it would."""

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._engine.wait(ticket)

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self._engine.drain()

    def close(self) -> None:
        """See TransferEngine.close."""
        self._is_closed = True
        self._engine.close()
