"""Who is told what a cache does."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from unified_tree.inputs.printable import printable, traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.declare.keys import Key
    from unified_tree.misses.miss import Miss
    from unified_tree.nodes.effect import EffectKind
    from unified_tree.terms.results import EvictResult
    from unified_tree.terms.tier import Tier


LOG = logging.getLogger("unified_tree.cache")
OBSERVER_FAILED: Final = "observer failed"
"""A reason of `CacheStats.drops`: an observer raised, and is told nothing more."""


class WatchedRequest(Protocol):
    """What a watcher reads of a request: a lease, or an engine's own."""

    @property
    def prompt_tokens(self) -> int:
        """How many tokens its prompt has."""
        ...

    @property
    def cached_tokens(self) -> int:
        """The first of these whose state was in the cache."""
        ...

    @property
    def compute_from(self) -> int:
        """The first that is computed."""
        ...

    @property
    def host_tokens(self) -> int:
        """Of the cached ones, those that were loaded back from host."""
        ...

    @property
    def misses(self) -> list[Miss]:
        """Why the others are computed."""
        ...

    @property
    def is_released(self) -> bool:
        """Whether it holds nothing in the cache."""
        ...


class CacheWatcher(Protocol):
    """Is told what a cache does, in the cache's thread; `CacheCounters.watcher` is one. It must not change the cache.

    A watcher that raises is told nothing more, but that it failed; the cache goes on.
    """

    def acquired(self, request: WatchedRequest, key: Key) -> None:
        """A request with this prompt was admitted."""

    def load_failed(self, namespace: str, tokens: int) -> None:
        """What a request of a namespace was to load has not come, so these of its hits are computed after all."""

    def invalidated(self, namespace: str | None) -> None:
        """The weights of a namespace, or of all, have changed, or its state was given up otherwise."""

    def evicted(self, tier: Tier, component: str, result: EvictResult) -> None:
        """Values were evicted because a pool was short."""

    def moved(self, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        """A copy between device and host has ended well."""

    def emptied(self) -> None:
        """The cache has a new tree, and everything in it is forgotten."""

    def polled(self) -> None:
        """The cache was polled, as it is once a scheduler step."""

    def failed(self, error: Exception) -> None:
        """It raised this. Nothing more is told."""


class Observer:
    """Tells a watcher what a cache does, until the watcher raises: no observer ends a step, nor raises into it.

    Args:
        watcher: is told.
        gave_up: called when it has failed.
    """

    __slots__ = ("_gave_up", "_watcher")

    def __init__(self, watcher: CacheWatcher, gave_up: Callable[[Observer], None]) -> None:
        self._watcher = watcher
        self._gave_up = gave_up

    def acquired(self, request: WatchedRequest, key: Key) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.acquired(request, key)
        except Exception as error:
            self._fail(error)

    def load_failed(self, namespace: str, tokens: int) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.load_failed(namespace, tokens)
        except Exception as error:
            self._fail(error)

    def invalidated(self, namespace: str | None) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.invalidated(namespace)
        except Exception as error:
            self._fail(error)

    def evicted(self, tier: Tier, component: str, result: EvictResult) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.evicted(tier, component, result)
        except Exception as error:
            self._fail(error)

    def moved(self, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.moved(kind, pages, size_bytes)
        except Exception as error:
            self._fail(error)

    def emptied(self) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.emptied()
        except Exception as error:
            self._fail(error)

    def polled(self) -> None:
        """See CacheWatcher."""
        try:
            self._watcher.polled()
        except Exception as error:
            self._fail(error)

    def failed(self, error: Exception) -> None:
        """See CacheWatcher."""
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._gave_up(self)
        # An OSError is of the world, a full disk, say, and no mistake of the observer.
        why = printable(str(error), 500) if isinstance(error, OSError) else traceback_of(error)
        LOG.error("%s failed, and is told nothing more; the cache goes on: %s", type(self._watcher).__name__, why)
        with suppress(Exception):
            self._watcher.failed(error)
