"""Measures the time that the scheduler spends in its prefix cache, whatever the cache is.

Off unless SGLANG_CACHE_TIMING names a file. The public methods of the cache object are wrapped; a method that another one calls
counts as part of the outer one. Times are those that the scheduler's thread ran, without what other work on the machine took.
Before each batch a method that does nothing is called, too: what that takes is the clock's own share of each call, and is to
be subtracted. Totals are written whenever the cache is emptied, and start anew then.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "SGLANG_CACHE_TIMING"
METHODS = (
    "match_prefix", "touch_prefix", "checkpoint", "evict", "evict_for_alloc", "lock", "unlock", "path_device_indices",
    "prefix_device_indices", "root_node_handle", "dfs_weight_order", "free_kv_row", "evict_sliding_windows", "on_release",
    "maybe_hand_to_session", "init_load_back", "ready_to_load_host_cache", "check_hicache_events", "flush_pending_backups",
    "check_prefetch_progress", "prefetch_from_storage", "take_events", "finish",
    "evictable_size", "full_evictable_size", "swa_evictable_size",
    "mamba_evictable_size", "protected_size", "full_protected_size", "swa_protected_size", "mamba_protected_size",
)  # fmt: skip


NOTHING = "nothing"
"""The method that does nothing."""


class Totals:
    """Calls and seconds by method, batches of each kind, and the time since the cache was last emptied."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inside = False
        self._clear()

    def _clear(self) -> None:
        self.methods: dict[str, list[float]] = {}
        self.batches: dict[str, list[float]] = {}
        self._start = time.perf_counter()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The method, its outermost calls counted and timed."""

        @functools.wraps(call)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside = True
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                total = self.methods.setdefault(name, [0, 0.0])
                total[0] += 1
                total[1] += time.thread_time() - start
                self._inside = False

        return measured

    def emptying(self, reset: Callable[[], Any]) -> Callable[[], Any]:
        """The method `reset`, which writes the totals first."""

        @functools.wraps(reset)
        def written() -> Any:
            if self.batches:
                line = {"seconds": time.perf_counter() - self._start, "methods": self.methods, "batches": self.batches}
                with self._path.open("a") as out:
                    out.write(json.dumps(line) + "\n")
            result = reset()
            self._clear()
            return result

        return written


def register() -> None:
    """Wrap the cache and the scheduler's batches; SGLang calls this in each of its processes."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    totals = Totals(Path(path))

    def wrapped(cache: Any, *_: Any, **__: Any) -> Any:
        for name in METHODS:
            method = getattr(cache, name, None)
            if callable(method):
                setattr(cache, name, totals.timed(name, method))
        cache.reset = totals.emptying(cache.reset)
        return cache

    nothing = totals.timed(NOTHING, lambda: None)

    def counted(run: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nothing()
        start = time.perf_counter()
        kind = "decode" if batch.forward_mode.is_decode() else "prefill"
        try:
            return run(scheduler, batch, *args, **kwargs)
        finally:
            total = totals.batches.setdefault(kind, [0, 0.0, 0])
            total[0] += 1
            total[1] += time.perf_counter() - start
            total[2] += len(batch.reqs)

    HookRegistry.register("sglang.srt.mem_cache.registry.create_tree_cache", wrapped, HookType.AFTER)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", counted, HookType.AROUND)
