"""SGLang's `BasePrefixCache` over a `UnifiedTree`.

SGLang's scheduler owns the slots of running requests and asks this cache three things: the longest boundary (a length one can
resume from) of a prompt, to keep what a request has computed (`checkpoint`), and to give slots back (`evict`). The slots stay
SGLang's: nothing is copied, and the tree knows pages by names of its own (`page_names`), so that no call waits for the device.

SGLang passes node handles around; here a handle is a `Boundary`. It survives splits. Nothing protects it before `lock`, which
fails if what it needs has been evicted.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
    TreeLock,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from unified_tree import Component, Key, Path, Point, Trailing, UnifiedTree
from unified_tree.controllers.adapters.sglang.answers import FixedAnswers, SessionAnswers, StoreAnswers
from unified_tree.controllers.adapters.sglang.assembly import TierBuilder, is_in_host_memory
from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW, DevicePools
from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
from unified_tree.controllers.adapters.sglang.kv_events import KvEvents
from unified_tree.controllers.adapters.sglang.observation import Observation
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.request_rows import RequestRows, RunningStates
from unified_tree.controllers.adapters.sglang.settings import MissSettings
from unified_tree.controllers.adapters.sglang.tiers import HostPoolSize, LayerGate, Tiers
from unified_tree.controllers.adapters.sglang.waiting_order import depth_first_order
from unified_tree.declare.settings import TreeSettings
from unified_tree.lookup.matching import path_boundary

if TYPE_CHECKING:
    from unified_tree.controllers.counters.observers import CacheObserver
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
    from unified_tree.controllers.ranks import RankWatch
    from unified_tree.declare.tenants import Tenants
    from unified_tree.terms.results import Boundary


def _looked_at(key: RadixKey) -> int:
    """How many tokens of a prompt SGLang asks for."""
    return len(key.token_ids) if key.limit is None else min(key.limit, len(key.token_ids))


class UnifiedTreeCache(FixedAnswers, StoreAnswers, SessionAnswers, BasePrefixCache):  # type: ignore[misc]
    """The prefix cache that SGLang's scheduler calls.

    Args:
        params: SGLang's.
        policy: the eviction policy, by name.
        has_windows: the model has sliding-window layers beside full attention.
        has_states: the model has recurrent states.
        state_grid_tokens: the lengths at which states can be saved are multiples of this.
        tiers: builds the host tier; None without one.
        watch: over the other ranks, closed with the cache; None for a single rank.
        misses: how the causes of misses are kept and told; None for not at all.
        inspector: where the inspector's page is; None for none.
        observers: are told of the requests, and closed with the cache.
        adapters: weights versions of LoRA adapters by SGLang's id, with which the extra keys of their requests end; for ids
            that may mean other weights in another life of the server.
        event_groups: KV events tell of windows and states, too.
        infers: a request without a session supersedes the states that it resumed from.
        tenants: groups of namespaces and their shares; None for none. `RequestKeys.tenant` says how they name a request's.
        arrives: windows and states of every prompt arrive from a prefill server, so full attention alone decides what is a hit.

    Attributes:
        misses: why prompts had to be computed; None if that is not asked for.
        sessions: those of the requests; None without `--enable-session-radix-cache` and `infers`.
        observation: what is told of the cache.
    """

    def __init__(
        self,
        params: CacheInitParams,
        policy: str,
        *,
        has_windows: bool,
        has_states: bool,
        state_grid_tokens: int = 1,
        tiers: TierBuilder | None = None,
        watch: RankWatch | None = None,
        misses: MissSettings | None = None,
        inspector: InspectorSettings | None = None,
        observers: Sequence[CacheObserver] = (),
        adapters: Mapping[str, str] | None = None,
        event_groups: bool = False,
        infers: bool = False,
        tenants: Tenants | None = None,
        arrives: bool = False,
    ) -> None:
        self._has_event_groups = event_groups
        self._watch = watch
        self.enable_session_radix_cache: bool = params.enable_session_radix_cache
        self._infers, self.has_one_clock = infers, watch is None and params.pp_size == 1
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.draft_swa_window = params.draft_swa_window
        self.sliding_window_size: int | None = params.swa_retain_window if has_windows else None
        self.tree_components = tuple(name for name, has in ((FULL, True), (WINDOW, has_windows), (STATE, has_states)) if has)
        self._policy, self._arrives = policy, arrives
        # As in SGLang's own tree: a state is after so many tokens, of which pairs would be one fewer.
        self.is_eagle = params.is_eagle and not has_states
        self._keys = RequestKeys(is_bigram=self.is_eagle, adapters=adapters or {}, tenants=tenants)
        self._has_windows, self._has_states, self._extra_buffer = has_windows, has_states, params.enable_mamba_extra_buffer
        self._components = [Component(name=FULL, coverage=Path())]
        if self.sliding_window_size is not None:
            self._components.append(Component(name=WINDOW, coverage=Trailing(self.sliding_window_size)))
        self._grid_tokens = state_grid_tokens if has_states else 1
        if has_states:
            self._components.append(Component(name=STATE, coverage=Point(), save_grid_tokens=state_grid_tokens))
        self._builder = tiers
        if tiers is not None:
            self._components = tiers.described(self._components)
        if params.enable_metrics:
            self.init_metrics_collector()
        if params.enable_kv_cache_events:
            self.kv_events = KVCacheEventRecorder(
                enabled=True,
                page_size=self.page_size,
                dynamo_format=params.dynamo_kv_event_format,
                lora_names=params.kv_event_lora_names,
            )
        self._tiers: Tiers | None = None
        self.gate = LayerGate(self._wait_layer, 0 if tiers is None else tiers.layer_count)
        self.observation = Observation(
            [component.name for component in self._components],
            self._keys,
            misses or MissSettings(memory_mib=0),
            inspector,
            self.page_size,
            self.metrics_collector,
            observers,
        )
        self.reset()

    def watch_layers(self, worker: Any) -> None:
        """Let the model's layers wait at the gate for pages that are being loaded.

        Args:
            worker: SGLang's `tp_worker`, which says which batch runs.
        """
        self.token_to_kv_pool_allocator.get_kvcache().register_layer_transfer_counter(self.gate)
        worker.register_hicache_layer_transfer_counter(self.gate)

    def _wait_layer(self, load: Load, layer: int) -> None:
        assert self._tiers is not None
        self._tiers.wait_layer(load, layer)

    def reset(self) -> None:
        """Forget everything but the store. SGLang clears its allocators itself."""
        self._close_tiers(keeps_store=True)
        pool = self.req_to_token_pool
        self._pools = DevicePools(
            self.token_to_kv_pool_allocator,
            self.page_size,
            window_tokens=self.sliding_window_size,
            state_allocator=pool.mamba_allocator if self._has_states else None,
            in_host_memory=is_in_host_memory(self.token_to_kv_pool_allocator),
        )
        self.tree = self._new_tree(self._pools)
        self.observation.begin(self.tree)
        self.misses = self.observation.misses
        self._tree_pools = {name: self.tree.pool(name) for name in self.tree_components}
        self._full_pool = self._tree_pools[FULL]
        self._states = RunningStates(pool, extra_buffer=self._extra_buffer, evict_one=self._evict_state)
        self._device = DeviceTier(self.tree, self._pools, self.observation.counters)
        self._tiers = None
        if self._builder is not None:
            self._tiers = self._builder.build(self.tree, self._device, self._pools, self.observation.counters)
        self.observation.show(self.tree, self._device, self._tiers)
        self._events: KvEvents | None = None
        if self.kv_events is not None:
            self._events = self._device.watcher = KvEvents(self.tree, self.kv_events, has_groups=self._has_event_groups)
            if self._tiers is not None:
                self._tiers.controller.host.watcher = self._events
            self.kv_events.record_all_cleared()
        self._rows = RequestRows(
            self.tree,
            self._pools,
            self._keys,
            pool,
            states=self._states if self._has_states else None,
            window_kind=ComponentType.SWA if self._has_windows else None,
            new_lock=TreeLock,
            events=self._events,
            tiers=self._tiers,
            misses=self.misses,
            sessions=self._begin_sessions(self.tree, self.observation.counters),
        )

    def _new_tree(self, pools: DevicePools) -> UnifiedTree:
        """An empty tree. It knows how many pages there are only where groups of namespaces divide them."""
        device: dict[str, int] = {}
        host: dict[str, int] = {}
        if self._keys.tenants is not None:
            device = {name: pools.page_count(name) + 1 for name in self.tree_components}  # SGLang counts from 1
            host = {} if self._builder is None else self._builder.page_counts(self._components, pools)
        return UnifiedTree(
            self._components,
            self.page_size,
            policy=self._policy,
            page_counts=device,
            host_page_counts=host,
            settings=TreeSettings(ghost_bytes=self.observation.memory_bytes),
            tenants=self._keys.tenants,
        )

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """The longest boundary of a prompt on device. With `cow_mamba` the request's own slot starts from the state there."""
        key = self._key(params.key)
        match = self.tree.match_prefix(key)
        if self._arrives:
            match = match._replace(device=path_boundary(self.tree.state, match.known))
        if self.misses is not None:
            self.misses.matched(params.req, match, _looked_at(params.key))
        if self._tiers is not None and match.device.length:
            self._tiers.controller.hit(match.device)
        if params.cow_mamba and self._has_states and not self._arrives and match.device.length:
            self._start_from(params.req, match.device)
        branch = next(iter(match.save_at), None)
        on_host = {} if self._tiers is None else self._tiers.host_needs(match)
        best = match.reachable if on_host else match.device
        windows = self._tiers.window_pages(match) if on_host and self._has_windows and self._tiers is not None else 0
        return MatchResult(
            device_prefix_len=match.device.length,
            last_device_node=match.device,
            last_host_node=best,
            best_match_node=best,
            host_hit_length=best.length - match.device.length,
            swa_host_hit_length=windows * self.page_size,
            mamba_host_hit_length=on_host.get(STATE, 0),
            swa_branching_seqlen=branch if self._has_windows else None,
            mamba_branching_seqlen=branch if self._has_states else None,
            full_kv_hit_length=match.path_length,
        )

    def _start_from(self, req: Any, boundary: Boundary) -> None:
        """Give a request the state of a boundary, which is locked meanwhile: a slot may have to be evicted."""
        receipt = self.tree.lock(boundary)
        try:
            source = self._pools.state_slots(self.tree.pages(receipt.boundary, STATE))
            self._states.start_from(req.kv, source)
        finally:
            receipt.release()

    def _evict_state(self) -> None:
        self.evict(EvictParams(mamba_num=1))

    def _key(self, key: RadixKey) -> Key:
        return self._keys.key(key.token_ids, _looked_at(key), key.extra_key, key.cache_salt)

    def maybe_hand_to_session(self, req: Any) -> None:
        """A request of the batch that was just put together has its slots."""
        if self.misses is not None:
            self.misses.admitted(req)
        if self.sessions is not None:
            self.sessions.admitted(req)

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Boundary]:
        """Start to load what a prompt has on host; the tokens gained and where the request resumes, or (0, where it would have
        resumed) if there is no room for them."""
        req, best = params.req, params.best_match_node
        assert self._tiers is not None, "only a match with a host tier has something to load"
        takes_state = self._has_states and not req.kv.holds_mamba
        load = self._tiers.begin_load(best, best.length - req.last_node.length, takes_state=takes_state)
        if load is None:
            if self.misses is not None:
                self.misses.not_loaded(req, self._tiers.unloaded)
            return 0, req.last_node
        if self._has_states:
            names = self.tree.transfers.pages_with_loads(load.boundary, STATE)
            self._states.start_from(req.kv, self._pools.state_slots(names))
        return load.boundary.length - req.last_node.length, load.boundary

    def ready_to_load_host_cache(self) -> int:
        """Submit the copies of the batch that was just put together; its number for the layers to wait by, or -1."""
        return -1 if self._tiers is None else self.gate.open(self._tiers.start_batch())

    def check_hicache_events(self) -> None:
        """Apply ended copies and start due ones; once a scheduler's step."""
        if self._tiers is not None:
            self._tiers.poll()
            self.observation.tell_store(self._tiers)

    def flush_pending_backups(self) -> None:
        """A batch has ended. Copies were submitted by then; hints end, caps hold, the inspector does a slice of its work."""
        self._poll_hints()
        self._device.hold_caps()
        self.observation.step()

    @property
    def full_kv_pool_host(self) -> HostPoolSize | None:
        """The size of the host pool, which SGLang's metrics read."""
        return None if self._tiers is None else HostPoolSize(self._tiers.controller.host.allocators[FULL], self.page_size)

    def release_host_resources(self) -> None:
        """End all hints, stop all copies, and close the store. Idempotent."""
        self._end_hints()
        if self._watch is not None:
            self._watch.close()
        self.observation.close()
        self._close_tiers()

    def _close_tiers(self, *, keeps_store: bool = False) -> None:
        if self._tiers is not None:
            self.observation.tell_store(self._tiers, is_last=True)
            try:
                self._tiers.close(keeps_engine=True)
            finally:
                if not keeps_store:
                    assert self._builder is not None, "which has built the tiers"
                    self._builder.store.close()

    def touch_prefix(self, key: RadixKey) -> None:
        """Refresh the recency of what a waiting prompt would use."""
        self.tree.match_prefix(self._key(key))

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Put what a request has, up to its last saved state, into the tree, and let its row refer to the tree's own pages."""
        if self._arrives and self._has_windows:
            self._free_unwritten(req, up_to)
        self._rows.checkpoint(req, up_to)

    def _free_unwritten(self, req: Any, token_count: int) -> None:
        """Free a request's windows before those that its next token reads: of a prompt that has just arrived, no others were
        sent.

        SGLang's decode server reserves one token more of a window than its prefill server sends. Where a page begins in
        between, the first reserved page of a window is one that nothing was written to.
        """
        from sglang.srt.mem_cache.common import free_swa_out_of_window_slots

        free_swa_out_of_window_slots(
            req,
            token_count,
            sliding_window_size=self.sliding_window_size,
            page_size=self.page_size,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            supports_prefix_sharing=False,  # else it keeps a page more
        )

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:
        """Free the slots of a row at ascending half-open ranges of its positions, which begin at whole pages."""
        if self._has_windows or not self._pools.in_host_memory:
            super().free_kv_row(kv, ranges)
        else:
            self._rows.free(kv.req_pool_idx, ranges)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """A request's row is free. One that was not checkpointed still has its states."""
        if self.sessions is not None:
            self.sessions.released(req, is_over=checkpointed and req.finished())
        if self.misses is not None:
            self.misses.released(req)
        if not checkpointed and self._has_states:
            self._states.settle(req, None, is_kept=False, is_finished=True)

    def lock(self, node: Boundary) -> TreeLock | None:
        """Lock what a boundary needs, or its path where the rest arrives. Raises StaleBoundaryError if it is gone."""
        if not node.length:
            return TreeLock(node, None)
        wanted = (FULL,) if self._arrives else None
        receipt = None if self._tiers is None else self._tiers.lock_of(node)
        return TreeLock(node, receipt or self.tree.lock(node, components=wanted), swa_released=self._arrives)

    def unlock(self, lock: TreeLock | None) -> None:
        """Release a lock; None is allowed."""
        if lock is not None and lock.receipt is not None:
            lock.receipt.release()
            lock.receipt = None
            if self._tiers is not None:
                self._tiers.controller.left(lock.node)

    def release_swa_prefix_lock(self, req: Any) -> None:
        """The request's window has moved past its prefix, whose window can be evicted from now on."""
        lock = req.lock
        if self._has_windows and lock is not None and not lock.swa_released:
            lock.swa_released = True
            if lock.receipt is not None:
                lock.receipt.release(WINDOW)

    def path_device_indices(self, node: Boundary) -> torch.Tensor:
        """The full-attention slots from the root to a boundary, int64 [length], in device memory."""
        return self._rows.path_slots(node, node.length)

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """The full-attention slots of a request's matched prefix, int64 [prefix_len], in device memory."""
        return self._rows.path_slots(req.last_node, req.prefix_len)

    def dfs_weight_order(self, node_handles: Sequence[Boundary]) -> list[int]:
        """See `depth_first_order`."""
        return depth_first_order(self.tree, node_handles)

    def evict(self, params: EvictParams) -> EvictResult:
        """Evict at least so many tokens, window tokens and states, or as many as can go; their slots are free at once."""
        start = time.perf_counter()
        full, windows, states = self._device.evict_tokens(params.num_tokens, params.swa_num_tokens, params.mamba_num)
        if self.metrics_collector is not None:
            self.update_eviction_metrics(full, start)
        return EvictResult(full, windows, states)

    def _evictable(self, name: str) -> int:
        pool = self._tree_pools.get(name)
        return 0 if pool is None else pool.evictable_pages

    def _protected(self, name: str) -> int:
        """Locked pages of the tree, and those that loads are filling."""
        return len(self._pools.names(name)) - self._evictable(name)

    def full_evictable_size(self) -> int:
        """Full-attention tokens that eviction could free now. SGLang asks several times a step."""
        return self._full_pool.evictable_pages * self.page_size

    evictable_size = full_evictable_size

    def swa_evictable_size(self) -> int:
        """Window tokens that eviction could free now."""
        return self._evictable(WINDOW) * self.page_size

    def mamba_evictable_size(self) -> int:
        """States that eviction could free now."""
        return self._evictable(STATE)

    def full_protected_size(self) -> int:
        """Full-attention tokens of the tree that are locked."""
        return self._protected(FULL) * self.page_size

    protected_size = full_protected_size

    def swa_protected_size(self) -> int:
        """Window tokens of the tree that are locked."""
        return self._protected(WINDOW) * self.page_size

    def mamba_protected_size(self) -> int:
        """States of the tree that are locked."""
        return self._protected(STATE)

    def total_size(self) -> tuple[int, int]:
        """Full-attention tokens and window tokens in the tree."""
        windows = self._tree_pools[WINDOW].used_pages if self._has_windows else 0
        return self._full_pool.used_pages * self.page_size, windows * self.page_size

    def supports_swa(self) -> bool:
        """Whether windows are cached."""
        return self._has_windows

    def supports_mamba(self) -> bool:
        """Whether recurrent states are cached."""
        return self._has_states

    def swa_retain_floor(self, req: Any) -> int | None:
        """With windows and saved states: a running request keeps its window before the last state that was saved."""
        length: int | None = req.kv.mamba_last_track_seqlen
        if not self._has_states or self.sliding_window_size is None or length is None:
            return None
        return length - self.sliding_window_size

    def sanity_check(self) -> None:
        """SGLang calls this when idle. Raises AssertionError for a broken invariant of the tree, or a page with two owners."""
        problems = [str(violation) for violation in self.tree.check()]
        is_busy = self._tiers is not None and self._tiers.is_busy
        for name in self.tree_components if not is_busy else ():
            used, named = self._tree_pools[name].used_pages, len(self._pools.names(name))
            if used != named:
                problems.append(f"{name}: the tree has {used} pages, {named} are named")
        assert not problems, "\n".join(problems)

    def pretty_print(self) -> None:
        """Print the tree, a node a line."""
        print(self.tree.dump())

    def available_and_evictable_str(self) -> str:
        """What SGLang adds to a message when it is out of memory."""
        lines = []
        for name in self.tree_components:
            pages = self._pools.free_pages(name), self._evictable(name), self._protected(name)
            free, evictable, protected = (count * (1 if name == STATE else self.page_size) for count in pages)
            lines.append(f"{name}: {free} free, {evictable} evictable and {protected} locked in the tree\n")
        return "".join(lines)

    def all_values_flatten(self) -> torch.Tensor:
        """All full-attention slots in the tree, in device memory. Cost: O(tree)."""
        return self._pools.path_slots(self._names(FULL))

    def all_mamba_values_flatten(self) -> torch.Tensor:
        """All state slots in the tree, in device memory. Cost: O(tree)."""
        return self._pools.state_slots(self._names(STATE))

    def _names(self, component: str) -> NDArray[np.int64]:
        index = self.tree.state.layout.index_of(component)
        values = (node.device[index] for node in self.tree.state.nodes)
        return np.frombuffer(b"".join(value.pages for value in values if value is not None), np.int64)
