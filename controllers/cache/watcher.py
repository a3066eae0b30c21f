"""Who is told what a cache does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.effect import EffectKind
    from unified_tree.keys import Key
    from unified_tree.miss import Miss
    from unified_tree.node import Tier
    from unified_tree.receipt import EvictResult


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
    """Is told what a cache does, in the cache's thread; `CacheCounters.watcher` is one. It must not change the cache."""

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
