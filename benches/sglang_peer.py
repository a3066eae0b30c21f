"""SGLang's UnifiedRadixCache as a contestant, with its Rust or its Python core. Runs in its own interpreter.

Its pools count and hand out consecutive slots, so that only the tree is timed: its side of `allocate` is nearly free, where
ours is a real free list. Its values are slots, one a token; what a
scheduler spends to put known and new slots into one tensor is outside the time, for our insert takes the new ones alone.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from benches.sglang_pools import build
from benches.subject import Capacity, Request, Tokens

ROOMY_SLOTS = 1 << 24


class SglangSubject:
    """One core, `rust` or `python`."""

    def __init__(self, core: str) -> None:
        torch.set_num_threads(1)
        self._core = core

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See Subject."""
        self.page_size = page_size
        self.window = components == "full_swa"
        self.cache = build(components, page_size, capacity, counting=True, core=self._core)
        self.slots = self.cache.token_to_kv_pool_allocator
        self.states = self.cache.req_to_token_pool.mamba_allocator if components == "full_mamba" else None
        self._next_slot = 0
        self._next_state = 0

    def _new_slots(self, count: int) -> Any:
        if self._next_slot + count > ROOMY_SLOTS:
            self._next_slot = 0
        first = self._next_slot
        self._next_slot += count
        return torch.arange(first, first + count, dtype=torch.int64)

    def insert(self, tokens: Tokens, known_tokens: int) -> tuple[int, int]:
        """See Subject."""
        value = self._new_slots(len(tokens))
        state = None
        if self.states is not None:
            self._next_state += 1
            state = torch.tensor([self._next_state], dtype=torch.int64)
        start = perf_counter_ns()
        result = self.cache.insert(
            InsertParams(key=RadixKey(tokens), value=value, prev_prefix_len=known_tokens, mamba_value=state)
        )
        return perf_counter_ns() - start, result.prefix_len

    def match(self, tokens: Tokens, *, with_pages: bool) -> tuple[int, int]:
        """See Subject."""
        cache = self.cache
        if with_pages:
            start = perf_counter_ns()
            result = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
            cache.path_device_indices(result.last_device_node)
        else:
            start = perf_counter_ns()
            result = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
        return perf_counter_ns() - start, result.device_prefix_len

    def find(self, tokens: Tokens) -> Any:
        """See Subject."""
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens))).last_device_node

    def hold(self, handle: Any) -> None:
        """See Subject."""
        self.cache.inc_lock_ref(handle)

    def lock_unlock(self, handle: Any) -> int:
        """See Subject."""
        cache = self.cache
        start = perf_counter_ns()
        receipt = cache.inc_lock_ref(handle)
        cache.dec_lock_ref(handle, receipt.to_dec_params())
        return perf_counter_ns() - start

    def evict(self, pool: str, token_count: int) -> tuple[int, int]:
        """See Subject."""
        asked = {"full": "num_tokens", "swa": "swa_num_tokens", "mamba": "mamba_num"}[pool]
        start = perf_counter_ns()
        result = self.cache.evict(EvictParams(**{asked: token_count}))
        spent = perf_counter_ns() - start
        freed = {
            "full": result.num_tokens_evicted,
            "swa": result.swa_num_tokens_evicted,
            "mamba": result.mamba_num_evicted,
        }
        return spent, freed[pool]

    def begin(self, prompt: Tokens) -> Request:
        """See Subject."""
        cache = self.cache
        t0 = perf_counter_ns()
        result = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1)))
        t1 = perf_counter_ns()
        node = result.last_device_node
        receipt = cache.inc_lock_ref(node)
        t2 = perf_counter_ns()
        slots = cache.path_device_indices(node)
        t3 = perf_counter_ns()
        return Request(
            cached_tokens=result.device_prefix_len,
            held=(node, receipt, slots),
            parts_ns={"match": t1 - t0, "lock": t2 - t1, "pages": t3 - t2},
        )

    def finish(self, request: Request, tokens: Tokens) -> None:
        """See Subject."""
        cache, size = self.cache, self.page_size
        node, receipt, known = request.held
        t0 = perf_counter_ns()
        need = -(-len(tokens) // size) * size - request.cached_tokens
        missing = self._missing(need)
        if missing:
            cache.evict(EvictParams(**missing))
        t1 = perf_counter_ns()
        fresh = self.slots.alloc(need)
        state = self.states.alloc(1) if self.states is not None else None
        t2 = perf_counter_ns()
        whole = len(tokens) // size * size
        value = torch.cat([known, fresh])
        kept = value[:whole]
        key = tokens if whole == len(tokens) else tokens[:whole]
        t3 = perf_counter_ns()
        result = cache.insert(
            InsertParams(key=RadixKey(key), value=kept, prev_prefix_len=request.cached_tokens, mamba_value=state)
        )
        if len(value) > whole:
            self.slots.free_segment(value[whole:], start_pos=whole)
        if self.states is not None and result.mamba_exist:
            self.states.free(state)
        t4 = perf_counter_ns()
        cache.dec_lock_ref(node, receipt.to_dec_params())
        t5 = perf_counter_ns()
        request.parts_ns |= {"evict": t1 - t0, "allocate": t2 - t1, "insert": t4 - t3, "unlock": t5 - t4}

    def _missing(self, need: int) -> dict[str, int]:
        """What must be evicted to have `need` slots, and a state."""
        if self.window:
            lacks = {
                "num_tokens": need - self.slots.full_available_size(),
                "swa_num_tokens": need - self.slots.swa_available_size(),
            }
        else:
            lacks = {"num_tokens": need - self.slots.available_size()}
        short = any(count > 0 for count in lacks.values())
        lacks = {name: max(0, count) for name, count in lacks.items()} if short else {}
        if self.states is not None and self.states.available_size() < 1:
            lacks["mamba_num"] = 1
        return lacks
