"""A scheduler over SGLang's real pools and allocators, without a model: thousands of requests in seconds.

Each slot holds a number that stands for all tokens up to its own. Before a forward the model reads what the kernels would read
(the whole prefix of full attention, the window, the state) and compares; so a page freed early, a window one token short or a
state of another prompt is seen at once. After each step every pool adds up: free + evictable + locked + owned by requests.

Requests are admitted by SGLang's own budgets, which read what is free and evictable, and slots are allocated later: behind the
loads of the batch, and for a long prompt steps later. As in SGLang, nothing but decoding may find no slot then.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.layers.dcp.layout import localize_dcp_indices
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    HybridLinearKVPool,
    HybridReqToTokenPool,
    MHATokenToKVPool,
    MLATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

MODULUS = 1 << 23
"""Numbers up to here are exact in float32."""
FULL_LAYERS, OTHER_LAYERS = [0, 2], [1, 3]
INDEX_WIDTH = 128
"""Bytes of an index key, behind which there are 4 of a scale: the only width that SGLang knows."""
NEW_TOKEN_RATIO = 0.02
"""The share of its answer that a running request is expected to need still. Too little: so some are taken back."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of model and its pools, in tokens and states."""

    page_size: int = 1
    full_tokens: int = 700
    window: int | None = None
    window_tokens: int = 300
    states: int = 0
    extra_buffer: bool = False
    grid: int = 64
    chunk: int = 64
    running: int = 4
    eagle: bool = False
    drafted: bool = False
    sessions: bool = False
    division: int = 1
    """Ranks that divide the tokens of each page (`--dcp-size`), whose full attention keeps latents. `page_size` and
    `full_tokens` are of all of them together."""
    index_keys: bool = False
    """Whether every rank keeps index keys of all tokens, too."""


class Pools:
    """SGLang's pools of one case, on one of several ranks."""

    def __init__(self, case: Case, rank: int = 0, ranks: int = 1) -> None:
        self.case, self.rank, self.ranks = case, rank, ranks
        arguments = ServerArgs(model_path="dummy", page_size=case.page_size)
        arguments._mamba_cache_chunk_size = case.grid
        set_global_server_args_for_scheduler(arguments)
        size = case.page_size
        common: dict[str, Any] = {"page_size": size, "dtype": torch.float32, "head_num": 1, "head_dim": 2, "device": "cpu"}
        context = case.full_tokens + 8 * size
        if case.states:
            shape = Mamba2StateShape.create(
                tp_world_size=1, intermediate_size=8, n_groups=1, num_heads=1, head_dim=8, state_size=2, conv_kernel=2
            )
            self.requests: Any = HybridReqToTokenPool(
                size=case.running + 1,
                mamba_size=case.states,
                mamba_spec_state_size=case.running + 1,
                max_context_len=context,
                device="cpu",
                enable_memory_saver=False,
                cache_params=Mamba2CacheParams(shape=shape, layers=OTHER_LAYERS),
                mamba_layer_ids=OTHER_LAYERS,
                enable_mamba_extra_buffer=case.extra_buffer,
            )
        else:
            self.requests = ReqToTokenPool(
                size=case.running + 1, max_context_len=context, device="cpu", enable_memory_saver=False
            )
        if case.window is not None:
            self.kv: Any = SWAKVPool(
                size=case.full_tokens,
                size_swa=case.window_tokens,
                swa_attention_layer_ids=OTHER_LAYERS,
                full_attention_layer_ids=FULL_LAYERS,
                **common,
            )
            self.allocator: Any = SWATokenToKVPoolAllocator(
                size=case.full_tokens,
                size_swa=case.window_tokens,
                page_size=size,
                dtype=torch.float32,
                device="cpu",
                kvcache=self.kv,
                need_sort=False,
            )
        else:
            if case.division > 1:
                self.kv = self._latents(common)
            elif case.states:
                self.kv = HybridLinearKVPool(
                    size=case.full_tokens,
                    full_attention_layer_ids=FULL_LAYERS,
                    enable_memory_saver=False,
                    mamba_pool=self.requests.mamba_pool,
                    **common,
                )
            else:
                self.kv = MHATokenToKVPool(size=case.full_tokens, layer_num=2, enable_memory_saver=False, **common)
            kind = TokenToKVPoolAllocator if size == 1 else PagedTokenToKVPoolAllocator
            paged = {} if size == 1 else {"page_size": size}
            self.allocator = kind(
                size=case.full_tokens, dtype=torch.float32, device="cpu", kvcache=self.kv, need_sort=False, **paged
            )
        self.draft: Any = None
        if case.drafted:
            self.draft = MHATokenToKVPool(
                size=case.full_tokens, layer_num=1, enable_memory_saver=False, **{**common, "head_num": 2}
            )

    def _latents(self, common: dict[str, Any]) -> Any:
        """The pool of one rank's tokens, in pages of its own."""
        case, count = self.case, self.case.division
        own = {**common, "size": case.full_tokens // count, "page_size": case.page_size // count}
        width = {"kv_lora_rank": 2, "qk_rope_head_dim": 1}
        if case.states:
            return HybridLinearKVPool(
                **own, **width, full_attention_layer_ids=FULL_LAYERS, mamba_pool=self.requests.mamba_pool, use_mla=True
            )
        own = {name: value for name, value in own.items() if not name.startswith("head")} | width
        if case.index_keys:
            return DSATokenToKVPool(**own, layer_num=2, enable_memory_saver=False, kv_cache_dim=3, index_head_dim=INDEX_WIDTH)
        return MLATokenToKVPool(**own, layer_num=2, enable_memory_saver=False)

    @property
    def params(self) -> CacheInitParams:
        case = self.case
        components = [ComponentType.FULL]
        if case.window is not None:
            components.append(ComponentType.SWA)
        if case.states:
            components.append(ComponentType.MAMBA)
        return CacheInitParams(
            disable=False,
            req_to_token_pool=self.requests,
            token_to_kv_pool_allocator=self.allocator,
            page_size=case.page_size,
            sliding_window_size=case.window,
            enable_mamba_extra_buffer=case.extra_buffer,
            tree_components=tuple(components),
            is_eagle=case.eagle,
            sidecar_draft_device_pools=() if self.draft is None else (self.draft,),
            enable_session_radix_cache=case.sessions,
        )

    def draft_rows(self) -> list[torch.Tensor]:
        """Its keys and values, in the slots of full attention."""
        return [] if self.draft is None else [*self.draft.k_buffer, *self.draft.v_buffer]

    def full_rows(self) -> list[torch.Tensor]:
        pool = getattr(self.kv, "full_kv_pool", self.kv)
        return [*pool.k_buffer, *pool.v_buffer] if self.case.division == 1 else list(pool.kv_buffer)

    def places(self, slots: torch.Tensor) -> torch.Tensor:
        """Where this rank keeps slots in those rows; below 0 for slots of other ranks."""
        places: torch.Tensor = localize_dcp_indices(slots, self.case.division, self.rank % self.case.division)
        return places

    def key_rows(self) -> list[torch.Tensor]:
        """A number of each slot's index keys, by layer, which every rank keeps of all slots."""
        keys = self.kv.index_k_with_scale_buffer if self.case.index_keys else []
        return [layer.view(torch.int32).view(-1, (INDEX_WIDTH + 4) // 4)[:, 0] for layer in keys]

    def free_full(self) -> int:
        return int(self.allocator.full_available_size() if self.case.window is not None else self.allocator.available_size())

    def window_rows(self) -> list[torch.Tensor]:
        return [*self.kv.swa_kv_pool.k_buffer, *self.kv.swa_kv_pool.v_buffer]

    def states(self) -> torch.Tensor:
        states: torch.Tensor = self.requests.mamba_pool.mamba_cache.temporal
        return states


class Request(SimpleNamespace):
    """What a cache reads of SGLang's `Req`."""

    def finished(self) -> bool:
        return bool(self.is_finished)

    def get_fill_ids(self) -> array[int]:
        ids: array[int] = self.full_untruncated_fill_ids[: self.extend_end]
        return ids

    def needs_host_load_back(self) -> bool:
        return bool(self.host_hit_length or self.swa_host_hit_length or self.mamba_host_hit_length)


@dataclass
class Counts:
    """What a run did."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0
    lost_draft_tokens: int = 0
    prefetched_tokens: int = 0
    retractions: int = 0
    aborts: int = 0
    finished: int = 0
    refused: int = 0
    flushes: int = 0


@dataclass
class Batch:
    """What is being put together for one forward of prefills.

    Attributes:
        budget: SGLang's, of what was free and evictable less what the batch has reserved.
        room: tokens that the batch may still compute.
        requests: those in it, in the order of admission.
    """

    budget: Any
    room: int
    requests: list[Request] = field(default_factory=list)


@dataclass
class Scheduler:
    """Runs requests against one cache, a step at a time.

    Args:
        pools: SGLang's.
        cache: any `BasePrefixCache` over them.
        has_host: whether to poll the cache and to open batches, as SGLang does with a hierarchical cache.
        has_store: whether to prefetch arrived prompts from a store.
    """

    pools: Pools
    cache: Any
    has_host: bool = False
    has_store: bool = False
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    prefilling: Request | None = None
    counts: Counts = field(default_factory=Counts)
    serial: int = 0
    _running_index: int = -1

    def __post_init__(self) -> None:
        self._evict_from_cache = self.cache.evict
        self.cache.evict = self.evict

    def evict(self, params: EvictParams) -> EvictResult:
        """Evict; what the cache says is evictable comes free."""
        cache = self.cache
        told = cache.full_evictable_size(), cache.swa_evictable_size(), cache.mamba_evictable_size()
        result = self._evict_from_cache(params)
        asked = params.num_tokens, params.swa_num_tokens, params.mamba_num
        freed = result.num_tokens_evicted, result.swa_num_tokens_evicted, result.mamba_num_evicted
        short = [(few, count, most) for few, count, most in zip(freed, asked, told, strict=True) if few < min(count, most)]
        assert not short, f"freed, asked for and evictable by what was told: {short}"
        return result

    def submit(
        self,
        tokens: list[int],
        new_tokens: int,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        *,
        session: str | None = None,
        hints: Any = None,
    ) -> Request:
        """A request arrives.

        Args:
            session: the name of its session, where the cache asks for sessions.
            hints: its KV hints.
        """
        self.serial += 1
        case = self.pools.case
        fitting = self.pools.allocator.max_new_tokens_for_memory(
            len(tokens),
            new_tokens,
            token_capacity=case.full_tokens,
            sliding_window_size=case.window,
            chunk_size=case.chunk,
        )
        new_tokens = new_tokens if fitting is None else max(1, fitting)  # as SGLang does when a request arrives
        handle = CacheRequestHandle(str(self.serial), 0)
        req = Request(
            rid=str(self.serial),
            handle=handle,
            cache_request_handle=handle,
            kv=ReqKvInfo(),
            origin_input_ids=array("q", tokens),
            full_untruncated_fill_ids=array("q", tokens),
            output_ids=array("q"),
            new_tokens=new_tokens,
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=None,
            session=None,
            session_id=session,
            session_generation=None if session is None else self.cache.ensure_session_generation(session),
            kv_hints=hints,
            finished_reason=None,
            kv_rotation_base=None,
            last_node=None,
            lock=None,
            prefix_len=0,
            extend_end=0,
            is_finished=False,
            is_booked=False,
            skip_radix_cache_insert=False,
            swa_branching_seqlen=None,
            mamba_branching_seqlen=None,
            decoded=0,
            chain=chain(tokens, extra_key if not cache_salt else f"{extra_key!r} {cache_salt!r}"),
        )
        self.waiting.append(req)
        if self.has_store:
            self._prefetch(req)
        return req

    def _prefetch(self, req: Request) -> None:
        ids = req.full_untruncated_fill_ids
        limit = max(0, len(ids) - 1)
        match = self.cache.match_prefix(
            MatchPrefixParams(key=RadixKey(ids, req.extra_key, limit=limit, cache_salt=req.cache_salt), req=req)
        )
        known = match.device_prefix_len + match.host_hit_length
        self.cache.prefetch_from_storage(
            req.handle,
            match.last_host_node,
            ids[known:limit],
            matched_prefix_tokens=ids[:known],
            extra_key=req.extra_key,
            cache_salt=req.cache_salt,
        )

    def step(self) -> None:
        """One scheduler's step: a batch of prefills if there is one to run, else a token for each running request."""
        if self.has_host:
            self.cache.check_hicache_events()
        if not self._prefill():
            self._decode()
        self.cache.flush_pending_backups()
        self.check()

    def _prefill(self) -> bool:
        """Admit what fits into a chunk, as one batch, and run it."""
        batch = self.new_batch()
        if self.prefilling is not None and not self._go_on(self.prefilling, batch):
            return False
        ready = [req for req in self.waiting if not self.has_store or self.cache.check_prefetch_progress(req.handle)]
        while ready and batch.room >= self._unit and len(self.running) + len(batch.requests) < self.pools.case.running:
            if not batch.budget.has_capacity():
                break
            req = ready.pop(0)
            if not self.admit(req, batch):
                self.counts.refused += 1
                break
            self.waiting.remove(req)
            if req.extend_end < len(req.full_untruncated_fill_ids):
                break
        index = self.cache.ready_to_load_host_cache() if self.has_host else -1
        if not batch.requests:
            return False
        for req in batch.requests:
            self._place(req)
        if self.has_host:
            self.cache.gate.set_consumer(index)
        if self.pools.case.states:
            self._start_states(batch.requests)
        for req in batch.requests:
            self._forward(req, req.prefix_len, req.extend_end)
        if not self.running:
            self._running_index = index  # the first batch becomes the running one, with its number
        self.prefilling = None
        for req in batch.requests:
            self._ended(req)
        return True

    def new_batch(self) -> Batch:
        """An empty batch beside what runs."""
        budget = self.pools.allocator.create_prefill_budget(self.cache)
        budget.total_offset += sum((req.new_tokens - len(req.output_ids)) * NEW_TOKEN_RATIO for req in self.running)
        return Batch(budget, self.pools.case.chunk)

    def _go_on(self, req: Request, batch: Batch) -> bool:
        """Put the next chunk of a prompt into the batch. Without windows it goes on whatever the budget says, for its whole
        prompt was admitted with its first chunk; with windows it may have to wait."""
        chunk = batch.room if self.pools.case.window is None else batch.budget.available_chunk_tokens(batch.room)
        if chunk is not None:
            chunk = batch.budget.fit_chunk(
                extend_input_len=len(req.full_untruncated_fill_ids) - req.prefix_len,
                max_new_tokens=req.new_tokens,
                chunk_limit=chunk,
            )
        if chunk is None or chunk < self._unit:
            return False
        self._reserve(req, batch, chunk)
        return True

    def _reserve(self, req: Request, batch: Batch, chunk: int) -> None:
        """Choose how far a request is computed in this batch, at most so many tokens, and put it in."""
        ids, size = req.full_untruncated_fill_ids, self.pools.case.page_size
        is_whole = len(ids) - req.prefix_len <= chunk
        req.extend_end = len(ids) if is_whole else (req.prefix_len + chunk // self._unit * self._unit) // size * size
        extend = req.extend_end - req.prefix_len
        new_tokens = req.new_tokens - len(req.output_ids) if is_whole else 0
        batch.budget.reserve(extend, new_tokens, chunk_limit=batch.room, is_chunked_continuation=req is self.prefilling)
        batch.room -= -(-extend // size) * size
        batch.requests.append(req)

    @property
    def _unit(self) -> int:
        """A part of a prompt that is not its end has a multiple of so many tokens."""
        case = self.pools.case
        return max(case.page_size, case.grid if case.extra_buffer else 1)

    def _ended(self, req: Request) -> None:
        """A request's part of a batch has run."""
        if req.extend_end < len(req.full_untruncated_fill_ids):
            self.prefilling = req
            self.cache.checkpoint(req, up_to=req.extend_end)
            req.prefix_len = req.extend_end
            return
        self._sample(req)
        if req.is_finished:
            self._release(req, checkpoint=True)
        else:
            self.cache.checkpoint(req, up_to=req.extend_end)
            self.running.append(req)

    def admit(self, req: Request, batch: Batch) -> bool:
        """Put a waiting request into a batch, if there is room for it."""
        cache, case, ids = self.cache, self.pools.case, req.full_untruncated_fill_ids
        key = RadixKey(ids, req.extra_key, limit=max(0, len(ids) - 1), cache_salt=req.cache_salt)
        match = cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=bool(case.states), req=req))
        req.prefix_len, req.last_node, req.best_match_node = (
            match.device_prefix_len,
            match.last_device_node,
            match.best_match_node,
        )
        req.host_hit_length = match.host_hit_length
        req.swa_host_hit_length, req.mamba_host_hit_length = match.swa_host_hit_length, match.mamba_host_hit_length
        req.swa_branching_seqlen, req.mamba_branching_seqlen = match.swa_branching_seqlen, match.mamba_branching_seqlen
        lock = cache.lock(req.last_node)
        try:
            chunk = self._chunk(req, batch, req.host_hit_length, req.swa_host_hit_length)
            if chunk is None or not self._has_states(req, batch):
                return self._refuse(req)
            if self.has_host and req.needs_host_load_back():
                loaded, req.last_node = cache.init_load_back(
                    InitLoadBackParams(best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req)
                )
                assert loaded == 0 or loaded >= req.host_hit_length
                if loaded < req.host_hit_length:  # what was to be loaded is computed, and may not fit
                    chunk = self._chunk(req, batch, 0, 0)
                    if chunk is None:
                        return self._refuse(req)
                req.prefix_len += loaded
                self.counts.loaded_tokens += loaded
            req.kv.cache_protected_len = req.prefix_len
            req.lock = cache.lock(req.last_node)
        finally:
            cache.unlock(lock)
        self._reserve(req, batch, chunk)
        if self.has_store:
            self.counts.prefetched_tokens += cache.pop_prefetch_loaded_span(req.handle)[0]
        self.counts.prompt_tokens += len(ids)
        self.counts.cached_tokens += req.prefix_len
        return True

    def _chunk(self, req: Request, batch: Batch, host_tokens: int, window_tokens: int) -> int | None:
        """How many tokens of a request the batch has room for, if so many come from host; None if it has to wait."""
        length, size = len(req.full_untruncated_fill_ids), self.pools.case.page_size
        new_tokens = req.new_tokens - len(req.output_ids)
        fits, chunk = batch.budget.check_prefill(
            extend_input_len=length - req.prefix_len - host_tokens,
            total_tokens=length - req.prefix_len + new_tokens + size,
            max_new_tokens=new_tokens,
            input_tokens=length,
            swa_host_hit_length=window_tokens,
            chunk_limit=batch.room,
        )
        return chunk if fits and chunk >= self._unit else None

    def _has_states(self, req: Request, batch: Batch) -> bool:
        """Whether the states that the requests of a batch take are free or evictable: for each its own, the one that it resumes
        from, and the next one that a part of its prompt leaves. SGLang lets so few run that there are as many."""
        case = self.pools.case
        if not case.states:
            return True
        each = 3 + 2 * case.extra_buffer
        free = self.pools.requests.mamba_allocator.available_size() + self.cache.mamba_evictable_size()
        return bool(each * (1 + len(batch.requests)) + req.mamba_host_hit_length <= free)

    def _place(self, req: Request) -> None:
        """Give a request of the batch its row and its slots."""
        pools = self.pools
        if req is not self.prefilling:
            if pools.case.states:
                short = (0 if req.kv.holds_mamba else 1) + 2 * pools.case.extra_buffer
                short -= pools.requests.mamba_allocator.available_size()
                if short > 0:
                    self.evict(EvictParams(mamba_num=short))
            assert pools.requests.alloc([req]) is not None, "no row is free"
            row = pools.requests.req_to_token[req.kv.req_pool_idx]
            row[: req.prefix_len] = self.cache.path_device_indices(req.last_node)[: req.prefix_len].to(torch.int32)
            req.kv.kv_allocated_len = req.prefix_len
        if not self._allocate(req, req.prefix_len, req.extend_end):
            raise AssertionError(f"prefill out of memory: {self.cache.available_and_evictable_str()}")
        self._book(req)

    def _book(self, req: Request) -> None:
        """Tell the cache that a request has its slots. The causes of what it computes sum to that, once a request."""
        misses = getattr(self.cache, "misses", None)
        before = sum(misses.ledger.tokens) if misses is not None else 0
        self.cache.maybe_hand_to_session(req)
        if misses is not None:
            computed = 0 if req.is_booked else len(req.full_untruncated_fill_ids) - req.prefix_len
            assert sum(misses.ledger.tokens) - before == computed, f"{req.rid}: the causes do not sum to what it computes"
        req.is_booked = True

    def _refuse(self, req: Request) -> bool:
        req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        if req.kv.holds_mamba:
            self.pools.requests.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv.mamba_pool_idx = None
        return False

    def _reset(self, req: Request) -> None:
        req.kv = ReqKvInfo()
        req.prefix_len = 0
        req.decoded = 0
        req.lock = req.last_node = None

    def _allocate(self, req: Request, begin: int, end: int) -> bool:
        allocator, size = self.pools.allocator, self.pools.case.page_size
        allocator.evict_to_free_tokens(self.cache, end - begin + (size if size > 1 else 0))
        row = self.pools.requests.req_to_token[req.kv.req_pool_idx]
        if size == 1:
            slots = allocator.alloc(end - begin)
        else:
            last = row[begin - 1 : begin].long() if begin else torch.tensor([-1])
            before, after = torch.tensor([begin]), torch.tensor([end])
            slots = allocator.alloc_extend(before, before, after, after, last, end - begin)
        if slots is None:
            return False
        row[begin:end] = slots.to(torch.int32)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
        return True

    def _forward(self, req: Request, begin: int, end: int) -> None:
        """Read what the kernels would read before `begin`, then write the numbers up to `end`."""
        pools, case = self.pools, self.pools.case
        row = pools.requests.req_to_token[req.kv.req_pool_idx].long()
        wanted = torch.tensor(req.chain[: end + 1], dtype=torch.float32)
        if self.has_host:
            for layer in range(4):
                self.cache.gate.wait_until(layer)
        places = pools.places(row[:end])
        read, written = places[:begin] >= 0, places[begin:] >= 0
        for rows in pools.full_rows():
            assert torch.equal(rows[places[:begin][read], 0, 0], wanted[1 : begin + 1][read]), (
                f"{req.rid}: full attention reads a wrong page"
            )
            rows[places[begin:][written], 0, 0] = wanted[begin + 1 : end + 1][written]
        for keys in pools.key_rows():
            assert torch.equal(keys[row[:begin]], wanted[1 : begin + 1].int()), f"{req.rid}: the index reads a wrong page"
            keys[row[begin:end]] = wanted[begin + 1 : end + 1].int()
        for rows in pools.draft_rows():
            self.counts.lost_draft_tokens += int((rows[row[:begin], 1, 1] != wanted[1 : begin + 1]).sum())
            rows[row[begin:end], 1, 1] = wanted[begin + 1 : end + 1]
        if case.window is not None:
            first = max(0, begin - case.window)
            slots = pools.allocator.translate_loc_from_full_to_swa(row[first:end])
            assert bool((slots > 0).all()), f"{req.rid}: a slot of the window is not mapped"
            for rows in pools.window_rows():
                assert torch.equal(rows[slots[: begin - first], 0, 0], wanted[first + 1 : begin + 1]), (
                    f"{req.rid}: the window reads a wrong page"
                )
                rows[slots[begin - first :], 0, 0] = wanted[begin + 1 : end + 1]
        if case.states:
            self._run_states(req, begin, end)

    def _start_states(self, batch: list[Request]) -> None:
        """Clear the states of new requests, then copy those that others start from, all before the first layer."""
        states = self.pools.states()
        for req in batch:
            if req.kv.mamba_needs_clear:
                states[:, int(req.kv.mamba_pool_idx)] = 0
                req.kv.mamba_needs_clear = False
        copied = [req.kv for req in batch if req.kv.mamba_cow_src_index is not None]
        found = [states[:, int(kv.mamba_cow_src_index)].clone() for kv in copied]
        for kv, state in zip(copied, found, strict=True):
            states[:, int(kv.mamba_pool_idx)] = state
            kv.mamba_cow_src_index = None

    def _run_states(self, req: Request, begin: int, end: int) -> None:
        states, case = self.pools.states(), self.pools.case
        own = int(req.kv.mamba_pool_idx)
        assert bool((states[:, own] == float(req.chain[begin] if begin else 0)).all()), f"{req.rid}: a wrong state at {begin}"
        states[:, own] = float(req.chain[end])
        if case.extra_buffer:
            self._track(req, begin, end)

    def _track(self, req: Request, begin: int, end: int) -> None:
        """Save the state at the last point of the grid, or at the branch if it lies in this chunk."""
        kv, grid = req.kv, self.pools.case.grid
        if end - begin < grid:
            return
        at = begin + (end - begin) // grid * grid
        branch = req.mamba_branching_seqlen
        if branch is not None and begin < branch < end and (branch - begin) % grid == 0:
            at = branch
        index = kv.mamba_next_track_idx
        self.pools.states()[:, int(kv.mamba_ping_pong_track_buffer[index])] = float(req.chain[at])
        kv.mamba_last_track_idx, kv.mamba_next_track_idx = index, 1 - index
        kv.mamba_prev_track_seqlen, kv.mamba_last_track_seqlen = kv.mamba_last_track_seqlen, at

    def _sample(self, req: Request) -> None:
        token = req.chain[-1] % 97
        req.output_ids.append(token)
        req.full_untruncated_fill_ids.append(token)
        req.chain.append(link(req.chain[-1], token))
        req.is_finished = len(req.output_ids) >= req.new_tokens

    def _decode(self) -> None:
        if self.has_host:
            self.cache.gate.set_consumer(self._running_index)
        for req in list(self.running):
            if req not in self.running:
                continue
            end = len(req.full_untruncated_fill_ids)
            if self.cache.supports_swa() and req.decoded >= 1:
                self.cache.evict_sliding_windows(req, end - 1)
                if req.decoded >= self.cache.swa_retain_window and hasattr(self.cache, "release_swa_prefix_lock"):
                    self.cache.release_swa_prefix_lock(req)
            while not self._allocate(req, end - 1, end):
                victim = self.running.pop()
                if victim is req and not self.running and self.prefilling is None:
                    raise AssertionError(f"the last request is out of memory: {self.cache.available_and_evictable_str()}")
                self._retract(victim)
                if victim is req:
                    break
            else:
                self._forward(req, end - 1, end)
                req.decoded += 1
                self._sample(req)
                if req.is_finished:
                    self.running.remove(req)
                    self._release(req, checkpoint=True)

    def flush(self) -> None:
        """Forget everything, as SGLang does when it is idle."""
        assert not (self.waiting or self.running or self.prefilling)
        self.counts.flushes += 1
        self.cache.reset()
        self.pools.requests.clear()
        self.pools.allocator.clear()

    def _retract(self, req: Request) -> None:
        self.counts.retractions += 1
        self._release(req, checkpoint=False)
        self._reset(req)
        self.waiting.append(req)

    def abort(self, req: Request) -> None:
        """End a request wherever it is; nothing of it is kept."""
        self.counts.aborts += 1
        if req in self.waiting:
            self.waiting.remove(req)
            if self.has_store:
                self.cache.release_aborted_request(req.handle)
            return
        if req is self.prefilling:
            self.prefilling = None
        else:
            self.running.remove(req)
        self._release(req, checkpoint=False)

    def _release(self, req: Request, *, checkpoint: bool) -> None:
        kv, cache = req.kv, self.cache
        owned = kv.kv_allocated_len
        if checkpoint:
            self.counts.finished += 1
            cache.checkpoint(req, up_to=owned)
        cache.free_kv_row(kv, [(kv.cache_protected_len, owned)])
        cache.unlock(req.lock)
        req.lock = None
        cache.on_release(req, checkpointed=checkpoint)
        self.pools.requests.free(req)
        kv.mark_kv_released()

    def check(self) -> None:
        """Every pool adds up, and no page has two owners."""
        pools, cache, size = self.pools, self.cache, self.pools.case.page_size
        alive = [*self.running, *([self.prefilling] if self.prefilling else [])]
        owned = 0
        windows = 0
        for req in alive:
            begin, end = req.kv.cache_protected_len, -(-req.kv.kv_allocated_len // size) * size
            owned += end - begin
            if pools.case.window is not None:
                dead = range(req.kv.swa_dead_lo(size), req.kv.get_evicted_seqlen(ComponentType.SWA))
                windows += end - begin - len([at for at in dead if begin <= at < end])
        free = pools.free_full()
        total = free + cache.full_evictable_size() + cache.full_protected_size() + owned
        assert total == pools.case.full_tokens // size * size, f"full: {free} free, {total} in all"
        if pools.case.window is not None:
            free = pools.allocator.swa_available_size()
            total = free + cache.swa_evictable_size() + cache.swa_protected_size() + windows
            assert total == pools.case.window_tokens // size * size, f"windows: {free} free, {total} in all"
        if pools.case.states:
            held = sum(1 + sum(not empty for empty in req.kv.mamba_ping_pong_empty or ()) for req in alive)
            free = pools.requests.mamba_allocator.available_size()
            total = free + cache.mamba_evictable_size() + cache.mamba_protected_size() + held
            assert total == pools.case.states, f"states: {free} free, {total} in all"


def link(before: int, token: int) -> int:
    """The number of a token after those that `before` stands for; never 0."""
    return (before * 1_000_003 + token * 7_919 + 12_345) % (MODULUS - 1) + 1


def chain(tokens: list[int], extra_key: str | None) -> list[int]:
    """The numbers of all prefixes, the empty one first."""
    at = 1 if extra_key is None else 2 + sum(map(ord, extra_key))
    numbers = [at]
    for token in tokens:
        at = link(at, token)
        numbers.append(at)
    return numbers


def run(
    scheduler: Scheduler,
    *,
    requests: int,
    seed: int,
    vocabulary: int = 500,
    longest: int | None = None,
    waiting: int = 6,
    flush: bool = False,
) -> Counts:
    """A random mix: shared heads, continued conversations, branches, aborts, namespaces; every step is checked.

    Args:
        longest: tokens of the longest prompt; half of the pool by default.
        waiting: how many requests wait at most.
        flush: forget everything after two thirds of the requests.
    """
    rng = random.Random(seed)
    case = scheduler.pools.case
    longest = longest or case.full_tokens // 2
    flush_at = requests * 2 // 3 if flush else requests
    heads = [[rng.randrange(vocabulary) for _ in range(rng.randrange(8, longest // 2))] for _ in range(5)]
    done: list[Request] = []
    submitted: list[Request] = []
    while len(submitted) < requests or scheduler.waiting or scheduler.running or scheduler.prefilling:
        if len(submitted) == flush_at < requests and not (scheduler.waiting or scheduler.running or scheduler.prefilling):
            scheduler.flush()
            flush_at = requests
        if len(submitted) < flush_at and rng.random() < 0.1 and len(scheduler.waiting) < waiting:
            kind, extra_key = rng.random(), rng.choice([None, None, None, "a", ""])
            if kind < 0.4 and done:
                before = rng.choice(done[-20:])
                tokens, extra_key = list(before.full_untruncated_fill_ids), before.extra_key
                if rng.random() < 0.3:
                    tokens = tokens[: rng.randrange(1, len(tokens) + 1)]
            else:
                head = rng.choice(heads)
                tokens = head[: rng.randrange(1, len(head) + 1)] if rng.random() < 0.3 else list(head)
            for _ in range(min(rng.choice([1, 1, 2, 3]), flush_at - len(submitted))):  # several at once compute the same
                prompt = tokens + [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 60))]
                if len(prompt) < longest:
                    submitted.append(scheduler.submit(prompt, rng.choice([1, 2, 8, 30, 80]), extra_key))
        if rng.random() < 0.01:
            alive = [*scheduler.waiting, *scheduler.running, *([scheduler.prefilling] if scheduler.prefilling else [])]
            if alive:
                scheduler.abort(rng.choice(alive))
        scheduler.step()
        done.extend(req for req in submitted if req.is_finished and req not in done[-50:] and req.lock is None)
        del done[:-40]
    return scheduler.counts
