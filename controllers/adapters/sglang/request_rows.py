"""The rows of running requests: which slot of SGLang's holds each token; and their recurrent states.

The first tokens of a row are the tree's, locked for the request; the others are its own until a checkpoint. This is what a step
of SGLang's runs most of in a cache, so it is compiled.

A running request writes its state in place. Without the extra buffer only the state at its last token exists: a checkpoint
copies it to a slot of the tree, and the end of the request gives the slot itself. With the extra buffer the kernels also save
the state at the last point of a grid, in one of two slots that take turns, and a checkpoint gives that slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW
from unified_tree.inputs.arguments import MAX_PRIORITY
from unified_tree.inserts.insert_plan import plan_insert
from unified_tree.inserts.inserting import Insertion
from unified_tree.locks.locks import Receipt
from unified_tree.terms.results import NOWHERE, Boundary
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.sglang.device_pools import DevicePools
    from unified_tree.controllers.adapters.sglang.kv_events import KvEvents
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.adapters.sglang.request_misses import RequestMisses
    from unified_tree.controllers.adapters.sglang.request_sessions import RequestSessions
    from unified_tree.controllers.adapters.sglang.tiers import Tiers
    from unified_tree.declare.keys import Key
    from unified_tree.tree import UnifiedTree


class RequestRows:
    """Puts what requests have computed into the tree, and lets their rows refer to the tree's own pages.

    Args:
        tree, pools: of the cache.
        keys: makes the requests' keys.
        table: SGLang's `req_to_token_pool`.
        states: of the running requests; None for models without any.
        window_kind: SGLang's name of windows; None for models without any.
        new_lock: SGLang's `TreeLock`.
        events: tells of what is stored; None for nobody.
        tiers: the host tier; None without one.
        misses: books why prompts had to be computed; None for nobody.
        sessions: of the requests; None if they are turned off.
    """

    def __init__(
        self,
        tree: UnifiedTree,
        pools: DevicePools,
        keys: RequestKeys,
        table: Any,
        *,
        states: RunningStates | None,
        window_kind: Any,
        new_lock: Any,
        events: KvEvents | None,
        tiers: Tiers | None,
        misses: RequestMisses | None = None,
        sessions: RequestSessions | None = None,
    ) -> None:
        self._tree = tree
        self._tree_state = tree.state
        self._size: int = tree.page_size
        self._pools = pools
        self._keys = keys
        self._table = table
        self._rows: Any = table.req_to_token.numpy() if pools.in_host_memory else table.req_to_token
        self._states = states
        self._window_kind = window_kind
        self._has_windows = window_kind is not None
        self._new_lock = new_lock
        self._events = events
        self._tiers = tiers
        self._misses = misses
        self._sessions = sessions

    def checkpoint(self, req: Any, up_to: int) -> None:
        """See `UnifiedTreeCache.checkpoint`."""
        kv, states = req.kv, self._states
        is_finished: bool = req.finished()
        state, token_count = None, up_to
        if states is not None:
            state = states.offer(req, up_to, is_finished=is_finished)
            token_count = 0 if state is None else min(up_to, state.length)
        protected: int = kv.cache_protected_len
        lock = req.lock
        receipt = None if lock is None else lock.receipt
        at = self._resumed_at(receipt)
        is_locked = at.length == protected and self._events is None  # events tell of all tokens
        begin = protected if is_locked and token_count >= protected else 0
        key = self._keys.key(req.full_untruncated_fill_ids, token_count, req.extra_key, req.cache_salt, begin)
        end: int = key.length // self._size * self._size
        is_kept = False
        if end > protected or (state is not None and end == protected > 0):
            sessions = self._sessions
            if sessions is None:
                at, is_kept = self._publish(req, key, at, protected, end, state, up_to)
            else:
                sessions.inserting(req)
                try:
                    at, is_kept = self._publish(req, key, at, protected, end, state, up_to)
                finally:
                    sessions.inserting(None)
            if is_finished:
                self._tree.touch(at)  # it has used all of it until now, which keeps that recent
            self._lock(req, at)
            kv.cache_inserted_len = max(kv.cache_inserted_len, end)
            kv.cache_protected_len = end
            if sessions is not None:
                sessions.published(req, req.last_node)
            if self._misses is not None:
                self._misses.published(req, up_to)
        if states is not None:
            states.settle(req, state, is_kept=is_kept, is_finished=is_finished)

    def _resumed_at(self, receipt: Any) -> Boundary:
        """The end of what a request has in the tree, by a name that is valid while it is locked.

        Args:
            receipt: of its lock: the tree's, that of a load, or None.
        """
        if self._tiers is not None:
            self._tiers.finish_loads()
            if receipt is not None and not isinstance(receipt, Receipt):
                receipt.wait()
        return NOWHERE if receipt is None else receipt.boundary

    def _publish(
        self, req: Any, key: Key, at: Boundary, begin: int, end: int, state: OfferedState | None, up_to: int
    ) -> tuple[Boundary, bool]:
        """Insert from `begin` up to `end`; returns where the tree has it, and whether it kept the state.

        Args:
            key: of the request's tokens; without those before `at`, if it is a tail.
            at: see `_resumed_at`.
        """
        if not self._has_windows or self._states is not None:
            return self._insert(req, key, begin, end, at, state, up_to)
        branch = req.swa_branching_seqlen
        first = begin
        if branch is not None and begin < branch < end and branch % self._size == 0:
            at, _ = self._insert(req, key, begin, branch, at, None, None)
            first = branch
        at, is_kept = self._insert(req, key, first, end, at, state, up_to)
        if 0 < req.kv.cache_inserted_len == begin < end and begin != branch:
            self._tree.supersede(req.last_node, WINDOW, end - self._size)  # where a repeat resumes
        return at, is_kept

    def _insert(
        self,
        req: Any,
        key: Key,
        begin: int,
        end: int,
        after: Boundary,
        state: OfferedState | None,
        computed: int | None,
    ) -> tuple[Boundary, bool]:
        """Insert [begin, end).

        Args:
            computed: how many tokens were, if the window at the end is that of where the request is, which is spare while the
                prompt goes on; None for a window that is kept in any case.
        """
        kv, size, pools = req.kv, self._size, self._pools
        freed = range(0)
        if self._has_windows:
            dead, evicted = kv.swa_dead_lo(size), kv.get_evicted_seqlen(self._window_kind)
            freed = range(max(0, dead - begin) // size, max(0, evicted - begin) // size)
        row = kv.req_pool_idx
        offered = pools.offer(self._rows[row, begin:end:size], freed)
        pages = {FULL: offered.full}
        if self._has_windows:
            pages[WINDOW] = offered.windows
        states = {}
        if state is not None and state.length == end:
            states[STATE] = {end: pools.name_state(state.slot)}
        tokens = key if key.length == end else key.prefix(end)
        priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, req.priority or 0))  # a client may send any
        known: int = len(req.full_untruncated_fill_ids) - 1  # without the token that was sampled
        goes_on = computed is not None and computed < known and not req.finished()
        plan = plan_insert(
            self._tree_state,
            tokens,
            pages,
            states,
            after,
            (),
            priority,
            repeatable=end == computed and not goes_on,
            keeps_spare=True,
            ends_spare=goes_on and end != req.swa_branching_seqlen,
        )
        assert plan is not None, "nothing is published without a whole page"
        result = Insertion(self._tree_state, plan).run()
        kept = pools.settle(offered, result)
        if len(kept):
            self._write(row, begin, kept)
        if self._events is not None:
            self._events.stored(Tier.DEVICE, key, result.boundary, req.session_id)
        refused = result.duplicates.get(STATE)
        if refused is not None:
            pools.states.release(refused)
        return result.boundary, bool(states) and refused is None

    def _write(self, row: int, begin: int, names: NDArray[np.int64]) -> None:
        """Let a row refer to pages of the tree from `begin` on."""
        slots = self._pools.slots_of(names)
        end = begin + len(slots)
        if self._pools.in_host_memory:
            self._rows[row, begin:end] = slots
        else:
            self._table.write((row, slice(begin, end)), slots.to(self._rows.dtype))

    def _lock(self, req: Any, at: Boundary) -> None:
        """Let a request's lock keep what is there up to a boundary, instead of what it kept."""
        lock: Any = req.lock
        receipt: Any = None if lock is None else lock.receipt
        if lock is not None and isinstance(receipt, Receipt):
            receipt.move_to_present(at)
            lock.node, lock.swa_released = receipt.boundary, False
        else:
            moved = self._tree.transfers.lock_present(at)
            if receipt is not None:  # of a load
                receipt.release()
            req.lock, receipt = self._new_lock(moved.boundary, moved), moved
        boundary: Boundary = receipt.boundary
        req.last_node = boundary
        if self._tiers is not None:
            self._attach_windows(boundary)
            self._tiers.controller.committed(boundary)

    def free(self, row: int, ranges: list[tuple[int, int]]) -> None:
        """Free what a row holds at ascending half-open ranges of positions; for rows in host memory, without windows."""
        size, freed = self._size, 0
        for begin, end in ranges:
            first = max(begin, freed)  # a page that an adjacent range begins with is free already
            assert begin % size == 0 or first == freed, "a range begins within a page"
            if first < end:
                self._pools.free_slots(self._rows[row, first:end:size])
                freed = -(-end // size) * size

    def path_slots(self, boundary: Boundary, length: int) -> torch.Tensor:
        """The first `length` of the full-attention slots from the root to a boundary, int64 [length], in device memory."""
        names = self._names(boundary, FULL)
        if self._tiers is not None:
            self._attach_windows(boundary)
        assert length <= boundary.length, (length, boundary)
        slots = self._pools.path_slots(names)
        return slots if length == boundary.length else slots[:length]

    def _names(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """The names of a boundary's pages, those that are being loaded included."""
        names: NDArray[np.int64]
        if self._tiers is None:
            names = self._tree.pages(boundary, component)
        else:
            names = self._tree.transfers.pages_with_loads(boundary, component)
        return names

    def _attach_windows(self, boundary: Boundary) -> None:
        """Map the slots of a boundary's window: a path page or a window that went to host comes back to other slots."""
        if self._has_windows and boundary.length:
            names, windows = self._names(boundary, FULL), self._names(boundary, WINDOW)
            self._pools.attach(names[len(names) - len(windows) :], windows)


class OfferedState:
    """A state that a checkpoint gives to the tree.

    Attributes:
        length: after how many tokens it was saved.
        slot: its slot, int64 [1], in device memory.
        kept_index: which of the request's two slots it is in; None if it is not in one of them.
    """

    __slots__ = ("kept_index", "length", "slot")

    def __init__(self, length: int, slot: torch.Tensor, kept_index: int | None = None) -> None:
        self.length = length
        self.slot = slot
        self.kept_index = kept_index


class RunningStates:
    """The states of running requests.

    Args:
        pool: SGLang's `HybridReqToTokenPool`.
        extra_buffer: whether the kernels save states on a grid.
        evict_one: free one state of the tree, if any can go.
    """

    def __init__(self, pool: Any, *, extra_buffer: bool, evict_one: Callable[[], None]) -> None:
        self._pool = pool
        self._extra_buffer = extra_buffer
        self._evict_one = evict_one

    def allocate(self) -> torch.Tensor:
        """A free slot, int64 [1]; evicts one if there is none. Raises MemoryError if none can be had."""
        slot: torch.Tensor | None = self._pool.mamba_allocator.alloc(1)
        if slot is None:
            self._evict_one()
            slot = self._pool.mamba_allocator.alloc(1)
        if slot is None:
            raise MemoryError(
                "mamba: no state slot is free and none can go; raise --max-mamba-cache-size or --mamba-full-memory-ratio"
            )
        return slot

    def start_from(self, kv: Any, source: torch.Tensor) -> None:
        """Let a request start from a state of the tree: SGLang copies it to the request's own slot before the next forward."""
        if not kv.holds_mamba:
            kv.mamba_pool_idx = self.allocate()[0]
        kv.mamba_cow_src_index = source
        kv.mamba_needs_clear = False

    def offer(self, req: Any, token_count: int, *, is_finished: bool) -> OfferedState | None:
        """The state that a checkpoint of `token_count` tokens gives to the tree; None if no saved one can be named."""
        if is_finished:
            return self._offer_last(req, token_count)
        kv = req.kv
        if self._extra_buffer:
            length = kv.mamba_last_track_seqlen
            if length is None:
                return None
            return OfferedState(length, self._pool.donate_mamba_ping_pong_slot(req, self.allocate()))
        slot = self.allocate()
        translate = self._pool.translate_mamba_indices
        self._pool.mamba_pool.copy_from(translate(kv.mamba_pool_idx.unsqueeze(0)), translate(slot))
        return OfferedState(token_count, slot)

    def _offer_last(self, req: Any, token_count: int) -> OfferedState | None:
        kv = req.kv
        if not self._extra_buffer:
            return OfferedState(token_count, kv.mamba_pool_idx.unsqueeze(-1).clone())
        index = self._pool.get_mamba_ping_pong_keep_idx(req)
        length = kv.mamba_last_track_seqlen or 0
        if length > token_count:  # saved past the tokens that count: the other slot may hold an earlier one
            length = kv.mamba_prev_track_seqlen
            if self._pool.mamba_ping_pong_track_buffer_size != 2 or length is None or length > token_count:
                return None
            index = self._pool.get_mamba_ping_pong_other_idx(index)
        if not length:
            return None
        return OfferedState(length, kv.mamba_ping_pong_track_buffer[index].unsqueeze(-1).clone(), index)

    def settle(self, req: Any, offered: OfferedState | None, *, is_kept: bool, is_finished: bool) -> None:
        """A checkpoint is over: free the state if the tree did not keep it, and all that a finished request has left."""
        kv = req.kv
        if not is_finished:
            if offered is not None and not is_kept:
                self._pool.mamba_allocator.free(offered.slot)
            kv.mamba_last_track_seqlen = kv.mamba_prev_track_seqlen = None
        elif self._extra_buffer:
            kept = offered.kept_index if offered is not None and is_kept else None
            self._pool.free_mamba_cache(req, mamba_ping_pong_track_buffer_to_keep=kept)
        elif not is_kept:
            self._pool.free_mamba_cache(req)
