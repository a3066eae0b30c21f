"""SGLang 0.5.23 as a contestant in serving whole requests: what its scheduler calls, over its compiled tree core.

Admission is `match_prefix` and `lock`; a run's slots come by `evict_to_free_tokens` and the allocator, and go into the row;
each chunk that is computed, and the end, is a `checkpoint` (once `cache_unfinished_req` and `cache_finished_req`). Left out
are the second lock around admission, budgets, and tensors that a batch shares.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from array import array
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from benches.sglang_pools import STATE_GRID_TOKENS, build
from benches.subject import LONGEST_TOKENS, Capacity, Request, Tokens

WINDOW_INTERVAL = 128
"""Decode steps between two looks at what the window has passed: SGLang's default."""
TRACK_INTERVAL = 256
"""Tokens between two saved states while it decodes: SGLang's default."""


class Running(SimpleNamespace):
    """What the cache reads of SGLang's `Req`."""

    def finished(self) -> bool:
        """Whether it has ended."""
        return bool(self.is_finished)


class SglangServer:
    """The scheduler's calls, one request at a time."""

    def __init__(self, counting: bool) -> None:
        """Args: counting: pools that cost nothing, instead of SGLang's own."""
        torch.set_num_threads(1)
        self._counting = counting

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """See ServingSubject."""
        self.page_size = page_size
        self.cache = build(components, page_size, capacity, context_tokens=LONGEST_TOKENS, counting=self._counting)
        self.rows, self.allocator = self.cache.req_to_token_pool, self.cache.token_to_kv_pool_allocator
        self.window, self.state = components == "full_swa", components == "full_mamba"
        self.extra = self.state and page_size > 1

    def key(self, tokens: list[int]) -> int:
        """See ServingSubject."""
        start = thread_time_ns()
        RadixKey(array("q", tokens))
        return thread_time_ns() - start

    def begin(self, prompt: Tokens) -> Request:
        """See ServingSubject."""
        cache = self.cache
        req = _running(prompt)
        start = thread_time_ns()
        key = RadixKey(prompt, None, limit=len(prompt) - 1)
        match = cache.match_prefix(MatchPrefixParams(key=key, cow_mamba=self.state, req=req))
        req.prefix_len = req.kv.cache_protected_len = match.device_prefix_len
        req.last_node = match.last_device_node
        req.mamba_branching_seqlen = match.mamba_branching_seqlen
        req.lock = cache.lock(req.last_node)
        spent = thread_time_ns() - start
        request = Request(cached_tokens=req.prefix_len, held=req)
        request.spend("admit", spent)
        return request

    def prefill(self, request: Request, chunk_tokens: int) -> None:
        """See ServingSubject."""
        req, cache, prompt = request.held, self.cache, len(request.held.origin_input_ids)
        t0 = thread_time_ns()
        self._place(req)
        request.spend("rows", thread_time_ns() - t0)
        while (begin := req.prefix_len) < prompt:
            end = req.extend_end = min(prompt, begin + chunk_tokens)
            t0 = thread_time_ns()
            self._allocate(req, begin, end)
            t1 = thread_time_ns()
            if self.extra:
                self._track(req, begin, end)
            t2 = thread_time_ns()
            cache.checkpoint(req, up_to=end)
            t3 = thread_time_ns()
            request.spend("allocate", t1 - t0)
            request.spend("commit", t3 - t2)
            req.prefix_len = end

    def decode(self, request: Request, token_count: int, *, singly: bool) -> None:
        """See ServingSubject."""
        req = request.held
        first = len(req.origin_input_ids)
        start = thread_time_ns()
        if singly:
            self._decode_singly(req, first, first + token_count)
        else:
            self._allocate(req, first, first + token_count)
        request.spend("decode", thread_time_ns() - start)
        if not singly and self.extra:
            at = (first + token_count) // TRACK_INTERVAL * TRACK_INTERVAL
            if at > first:
                self._save(req, at)

    def _decode_singly(self, req: Running, first: int, last: int) -> None:
        """`alloc_for_decode` for a batch of one."""
        cache, allocator, size, window = self.cache, self.allocator, self.page_size, self.window
        row = torch.tensor([req.kv.req_pool_idx])
        length = torch.tensor([first])
        for step, at in enumerate(range(first, last)):
            if window and step and step % WINDOW_INTERVAL == 0:
                cache.evict_sliding_windows(req, at)
            allocator.evict_to_free_tokens(cache, size)
            slots = self._next_slot(req, at, length)
            self.rows.write((row, length.clone()), slots.to(torch.int32))
            req.kv.kv_allocated_len = req.kv.kv_committed_len = at + 1
            length.add_(1)
            if self.extra and (at + 1) % TRACK_INTERVAL == 0:
                self._save(req, at + 1)

    def _next_slot(self, req: Running, at: int, length: Any) -> Any:
        if self.page_size == 1:
            return self.allocator.alloc(1)
        last = self.rows.req_to_token[req.kv.req_pool_idx, at - 1 : at].to(torch.int64)
        if not self._counting:
            return self.allocator.alloc_decode(length + 1, length + 1, last)
        return self.allocator.alloc(1) if at % self.page_size == 0 else last + 1

    def finish(self, request: Request, tokens: Tokens) -> None:
        """See ServingSubject."""
        req, cache, kv = request.held, self.cache, request.held.kv
        start = thread_time_ns()
        req.full_untruncated_fill_ids.extend(tokens[len(req.full_untruncated_fill_ids) :])
        req.is_finished = True
        owned = kv.kv_allocated_len
        cache.checkpoint(req, up_to=owned)
        cache.free_kv_row(kv, [(kv.cache_protected_len, owned)])
        cache.unlock(req.lock)
        cache.on_release(req, checkpointed=True)
        self.rows.free(req)
        kv.mark_kv_released()
        request.spend("finish", thread_time_ns() - start)

    def _place(self, req: Running) -> None:
        """Give it a row, a state, and write what it found cached into the row."""
        if self.state:
            short = (0 if req.kv.holds_mamba else 1) + 2 * self.extra - self.rows.mamba_allocator.available_size()
            if short > 0:
                self.cache.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=short))
        assert self.rows.alloc([req]) is not None, "no row is free"
        known = req.prefix_len
        slots = self.cache.path_device_indices(req.last_node)[:known]
        self.rows.write((req.kv.req_pool_idx, slice(0, known)), slots)
        req.kv.kv_allocated_len = known

    def _allocate(self, req: Running, begin: int, end: int) -> None:
        """Evict for lack of room, take slots, write them into the row."""
        size, allocator, row = self.page_size, self.allocator, req.kv.req_pool_idx
        allocator.evict_to_free_tokens(self.cache, end - begin + (size if size > 1 else 0))
        if size == 1:
            slots = allocator.alloc(end - begin)
        elif self._counting:
            slots = self._take(row, begin, end)
        else:
            last = self.rows.req_to_token[row, begin - 1 : begin].to(torch.int64) if begin else torch.tensor([-1])
            before, after = torch.tensor([begin]), torch.tensor([end])
            slots = allocator.alloc_extend(before, before, after, after, last, end - begin)
        self.rows.write((row, slice(begin, end)), slots)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end

    def _take(self, row: int, begin: int, end: int) -> Any:
        """Slots of counting pools: what is left of the last page, then new pages."""
        left = min(-begin % self.page_size, end - begin)
        fresh = self.allocator.alloc(end - begin - left)
        if not left:
            return fresh
        last = int(self.rows.req_to_token[row, begin - 1])
        return torch.cat((torch.arange(last + 1, last + 1 + left), fresh))

    def _track(self, req: Running, begin: int, end: int) -> None:
        """What a forward notes of the states that it saved: at the branch if it lies in this chunk, else at the grid's last."""
        if end - begin < STATE_GRID_TOKENS:
            return
        at = begin + (end - begin) // STATE_GRID_TOKENS * STATE_GRID_TOKENS
        branch = req.mamba_branching_seqlen
        if branch is not None and begin < branch < end and (branch - begin) % STATE_GRID_TOKENS == 0:
            at = branch
        self._save(req, at)

    @staticmethod
    def _save(req: Running, at: int) -> None:
        kv = req.kv
        kv.mamba_last_track_idx, kv.mamba_next_track_idx = kv.mamba_next_track_idx, 1 - kv.mamba_next_track_idx
        kv.mamba_prev_track_seqlen, kv.mamba_last_track_seqlen = kv.mamba_last_track_seqlen, at


def _running(prompt: Tokens) -> Running:
    return Running(
        rid="0",
        kv=ReqKvInfo(),
        origin_input_ids=prompt,
        full_untruncated_fill_ids=array("q", prompt),
        extra_key=None,
        cache_salt=None,
        priority=None,
        session=None,
        session_id=None,
        kv_rotation_base=None,
        last_node=None,
        lock=None,
        prefix_len=0,
        extend_end=0,
        is_finished=False,
        skip_radix_cache_insert=False,
        swa_branching_seqlen=None,
        mamba_branching_seqlen=None,
    )
