"""What a cache tells of itself: its counters, the causes of misses in SGLang's metrics and in the log, the inspector's page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.adapters.sglang.request_misses import MissFigures, RequestMisses
from unified_tree.controllers.cache.metric_aliases import SGLANG_POOLS
from unified_tree.controllers.cache.stats import PolicyStats
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.counters.observers import OBSERVER_FAILED
from unified_tree.inputs.printable import traceback_of
from unified_tree.nodes.effect import EffectKind

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
    from unified_tree.controllers.adapters.sglang.metrics import StoreMetrics, WrittenMetrics
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.adapters.sglang.request_sessions import RequestSessions
    from unified_tree.controllers.adapters.sglang.settings import MissSettings
    from unified_tree.controllers.adapters.sglang.tiers import Tiers
    from unified_tree.controllers.counters.observers import CacheObserver
    from unified_tree.controllers.inspector.inspected import EngineCache
    from unified_tree.controllers.inspector.inspector import Inspector
    from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
    from unified_tree.tree import UnifiedTree


logger = logging.getLogger(__name__)
INTERVAL_S = 1.0
"""Between two times that figures are written: to read those of a store takes some 0.1 ms."""
CAUSES: Final = 3
"""A line of the log names so many causes, the largest first."""


class Observation:
    """Goes on from one tree of a cache to the next.

    Args:
        components: names of the trees'.
        keys: makes the requests' keys.
        settings: how causes of misses are kept and told.
        inspector: where the inspector's page is; None for none.
        page_size: tokens a page.
        collector: SGLang's metrics of the cache; None without them.
        observers: are told of the requests.

    Attributes:
        counters: of copies, evictions and requests.
        memory_bytes: for what the tree evicts; 0 for none.
        misses: why prompts had to be computed; None if nothing tells it.
        page: the address of the inspector's page; None without one.
        sessions: of the requests; None for none.
    """

    def __init__(
        self,
        components: Sequence[str],
        keys: RequestKeys,
        settings: MissSettings,
        inspector: InspectorSettings | None,
        page_size: int,
        collector: Any = None,
        observers: Sequence[CacheObserver] = (),
    ) -> None:
        self._components = components
        self._keys = keys
        self._settings = settings
        self._inspector_settings = inspector
        self._collector = collector
        self.counters = CacheCounters() if collector is None else MeteredCounters(collector, page_size)
        is_told = collector is not None or inspector is not None or bool(observers)
        self.memory_bytes = settings.memory_bytes(is_told=is_told)
        for observer in observers:
            self.counters.observers.add(observer)
        self.misses: RequestMisses | None = None
        self._log: MissLog | None = None
        self._inspector: Inspector | None = None
        self.page: str | None = None
        self._inspected: EngineCache | None = None
        self.sessions: RequestSessions | None = None
        # These are made late, because SGLang says first where metrics are kept.
        self._store: StoreMetrics | None = None
        self._figures: WrittenMetrics | None = None
        self._tree: UnifiedTree | None = None

    def begin(self, tree: UnifiedTree) -> None:
        """A cache has this tree now, which is empty."""
        self._tree = tree
        if self.misses is not None:
            self.misses.renew(tree)
        elif self.memory_bytes:
            self.misses = self._new_misses(tree)

    def _new_misses(self, tree: UnifiedTree) -> RequestMisses:
        metrics = None
        if self._collector is not None:
            from unified_tree.controllers.adapters.sglang.metrics import MissMetrics

            metrics = MissMetrics(self._collector.labels, self._components)
        misses = RequestMisses(tree, self._keys, self.counters, metrics)
        if self._settings.log_s:
            self._log = MissLog(misses.figures, self._settings.log_s)
            self._log.start()
        return misses

    def show(self, tree: UnifiedTree, device: DeviceTier, tiers: Tiers | None) -> None:
        """The tree has these tiers. The inspector's page shows them from now on; it is opened for the first of them."""
        if tiers is not None:
            self.follow_store(tiers)
        if self._inspector_settings is None:
            return
        controller, storage = (None, None) if tiers is None else (tiers.controller, tiers.storage)
        if self._inspected is not None:
            self._inspected.follow(tree, device, controller, storage)
            if self.counters.observers.all:
                self.counters.observers.tell("emptied")
            return
        from unified_tree.controllers.inspector.inspected import EngineCache

        assert self.misses is not None, "settings with an inspector have memory for misses"
        self._inspected = EngineCache(self.counters, self.misses.ledger).follow(tree, device, controller, storage)
        self._inspector = self._inspector_settings.open(self._inspected)
        self.page = self._inspector.url
        assert self.page is not None
        logger.info("%s", self._inspector_settings.line(self.page))

    def follow_store(self, tiers: Tiers) -> None:
        """The tiers have another store than before, or none any more."""
        if self._inspected is not None:
            self._inspected.storage = tiers.storage
        if self._collector is not None and tiers.storage is not None:
            self._store_metrics().opened(tiers.storage.stats())

    def _store_metrics(self) -> StoreMetrics:
        if self._store is None:
            from unified_tree.controllers.adapters.sglang.metrics import StoreMetrics

            self._store = StoreMetrics(self._collector.labels, INTERVAL_S, time.monotonic, self.counters)
        return self._store

    def tell_store(self, tiers: Tiers, *, is_last: bool = False) -> None:
        """Write the figures of a store among SGLang's metrics, at most once a second, and a last time before it is closed."""
        if self._collector is None:
            return
        metrics = self._store_metrics()
        if is_last or metrics.is_due:
            metrics.tell(self.counters.drops, None if tiers.storage is None else tiers.storage.stats())
        if is_last:
            metrics.closed()

    def step(self) -> None:
        """A step of the scheduler has ended: do a slice of the inspector's work, and write what is due."""
        if self._collector is not None:
            self._tell_figures()
        if self.counters.observers.all:
            self.counters.observers.tell("polled")

    def _tell_figures(self, *, is_last: bool = False) -> None:
        """Write the figures of the policy, sessions and tenants among SGLang's metrics, at most once in an interval, and a last
        time.
        """
        if self._tree is None:
            return
        if self._figures is None:
            from unified_tree.controllers.adapters.sglang.metrics import WrittenMetrics

            self._figures = WrittenMetrics(self._collector.labels, INTERVAL_S, time.monotonic, self.counters)
        written = self._figures
        if not (is_last or written.is_due):
            return
        sessions, tenants = self.sessions, None if self.misses is None else self.misses.tenants
        found = [*written.families.policy(PolicyStats.of(self._tree), self._tree.state.clock)]
        if sessions is not None:
            found += written.families.sessions(len(sessions.turns.sessions), self.counters.hints)
        if tenants is not None and tenants.is_on:
            found += written.families.tenants(tenants.stats())
        written.write(found)

    def close(self) -> None:
        """Write the last figures; end the log, the page, and what the observers are told. Idempotent."""
        if self._collector is not None:
            self._tell_figures(is_last=True)
        if self._log is not None:
            self._log.close()
        if self._inspector is not None:
            self._inspector.close()
        self.counters.observers.tell("closed")
        for observer in self.counters.observers.all:
            self.counters.observers.remove(observer)


class MeteredCounters(CacheCounters):
    """Counters that also tell SGLang's collector of every copy that ended.

    Args:
        collector: SGLang's `RadixCacheMetricsCollector`.
        page_size: tokens a page; a state counts as one, as in SGLang.
    """

    def __init__(self, collector: Any, page_size: int) -> None:
        super().__init__()
        for kind, counters in self.transfers.items():
            counters.meter = partial(self._meter, collector, page_size, kind)

    def _meter(self, collector: Any, page_size: int, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        try:
            _count(collector, page_size, kind, pages, size_bytes)
        except Exception as error:  # of files, which SGLang's processes share their metrics by
            for counters in self.transfers.values():
                counters.meter = None
            logger.error("SGLang's collector raised, and is told of no more copies: %s", traceback_of(error))
            self.count_drop(OBSERVER_FAILED)


def _count(collector: Any, page_size: int, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
    """Tell the collector of a copy, pages by component."""
    name = "backup" if kind is EffectKind.BACKUP else "load_back"
    for component, count in pages.items():
        tokens = count * (1 if component == "mamba" else page_size)
        getattr(collector, f"increment_{name}_num_tokens")(num_tokens=tokens, pool=SGLANG_POOLS.get(component, component))
    getattr(collector, f"increment_{name}_num_bytes")(size_bytes)


class MissLog:
    """Writes a line in the log every minute in which something was served: what hit, and why the rest had to be computed.

    A thread of its own writes, so that the last requests before a pause are told, too.

    Args:
        figures: what was booked so far; called from the thread.
        interval_s: between two lines.
    """

    def __init__(self, figures: Callable[[], MissFigures], interval_s: float) -> None:
        self._figures = figures
        self._interval_s = interval_s
        self._told = figures()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unified_tree misses", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Tell what is untold, and write no more. Idempotent."""
        if not self._is_over.is_set():
            self._is_over.set()
            if self._thread.is_alive():
                self._thread.join()
            self.tell()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.tell()

    def tell(self) -> None:
        """Write a line of what was booked since the last one; none if nothing was."""
        before, now = self._told, self._figures()
        if now.requests == before.requests:
            return
        self._told = now
        logger.info("%s", told(before, now))


def told(before: MissFigures, now: MissFigures) -> str:
    """A line for the log: the requests and misses booked between two moments.

    >>> from collections import Counter
    >>> from unified_tree.controllers.adapters.sglang.request_misses import MissFigures
    >>> told(MissFigures(0, 0, 0, Counter()), MissFigures(2, 1000, 250, Counter({"never seen": 700, "last token": 50})))
    'unified_tree: 2 requests, 1,000 prompt tokens: 25 % cached; computed: 70 % never seen, 5 % last token'
    """
    prompt = now.prompt_tokens - before.prompt_tokens
    hits = share(now.hit_tokens - before.hit_tokens, prompt)
    requests = now.requests - before.requests
    line = f"unified_tree: {requests:,} request{'s'[: requests > 1]}, {prompt:,} prompt tokens: {hits} cached"
    causes = ", ".join(f"{share(tokens, prompt)} {words}" for words, tokens in (now.misses - before.misses).most_common(CAUSES))
    return f"{line}; computed: {causes}" if causes else line


def share(tokens: int, of_tokens: int) -> str:
    """A part of something in percent."""
    return f"{tokens / max(1, of_tokens):.0%}".replace("%", " %")
