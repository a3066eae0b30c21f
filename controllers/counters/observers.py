"""The observers of a cache, what they are told of a request, and the hit rates that one may answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from unified_tree.inputs.extensions import find_extension
from unified_tree.inputs.printable import printable, repr_of, traceback_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import Miss
    from unified_tree.nodes.effect import EffectKind
    from unified_tree.terms.results import EvictResult
    from unified_tree.terms.tier import Tier


LOG = logging.getLogger("unified_tree.cache")
OBSERVER_FAILED: Final = "observer failed"
"""A reason of `CacheStats.drops`: an observer raised, and is told nothing more."""


class ObservedRequest(Protocol):
    """The view that an observer has of a request: of a lease, or of an engine's own request."""

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


class CacheObserver:
    """Is told what a cache does, in the cache's thread; `cache.observers.add` makes one of it. It must not change the cache. It
    overrides what it wants to know.

    An observer that raises is told nothing more, but that it failed; the cache goes on. A `lease` is a Lease, which this room
    does not know. Inside SGLang and vLLM there are no leases, and the events with one are not told.
    """

    def acquiring(self, key: Key, request: Hashable | None) -> None:
        """A request with this prompt and name is about to be admitted: `acquired` or `refused` follows."""

    def acquired(self, request: ObservedRequest, key: Key) -> None:
        """A request with this prompt was admitted; in a PrefixCache `request` is its lease."""

    def finished(self, request: ObservedRequest, answer: Sequence[int]) -> None:
        """A request inside SGLang or vLLM that was `acquired` has ended, with these tokens as its answer. It is not told of
        leases.
        """

    def refused(self, error: BaseException) -> None:
        """The request that was about to be admitted was not."""

    def load_ended(self, lease: Any) -> None:
        """The load of a lease has ended, well or with a `failure`."""

    def load_failed(self, namespace: str, tokens: int) -> None:
        """A load for a request of this namespace failed: so many of its hit tokens are computed after all."""

    def committing(self, lease: Any) -> None:
        """A lease is about to publish; `committed` follows."""

    def committed(
        self, lease: Any, states: Mapping[int, int] | None, without: Sequence[str], error: BaseException | None
    ) -> None:
        """A lease has published, with these arguments of `PrefixCache.commit`; with an error it was refused or broken off."""

    def releasing(self, lease: Any) -> None:
        """A lease is about to end; it still holds its pages."""

    def released(self, lease: Any) -> None:
        """A lease has ended."""

    def prefetching(self, request: Hashable, key: Key) -> None:
        """A prefetch is asked for; one of the same name ends by that."""

    def prefetch_started(self, request: Hashable, key: Key) -> None:
        """It was started: there is something to wait for."""

    def prefetch_ready(self, request: Hashable) -> None:
        """`PrefixCache.prefetched` said that this request, which may have no prefetch, waits no longer."""

    def prefetch_cancelled(self, request: Hashable) -> None:
        """The prefetch of this request is about to be cancelled, if there is one."""

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

    def closed(self) -> None:
        """The cache was closed. Open leases may still be released."""

    def failed(self, error: Exception) -> None:
        """It raised this. Nothing more is told."""

    def curve(self) -> LiveCurve | None:
        """The hit rates of other sizes, for `CacheStats.sizes`; None if the observer does not model them."""
        return None


class Observers:
    """The observers of one cache, any number. None of them ends a step, nor raises into it.

    Args:
        gave_up: called when one has failed.

    Attributes:
        all: in the order in which they came.
    """

    __slots__ = ("_gave_up", "all")

    def __init__(self, gave_up: Callable[[], None]) -> None:
        self._gave_up = gave_up
        self.all: tuple[CacheObserver, ...] = ()

    def add(self, observer: CacheObserver) -> None:
        """From now on this one is told, too. No effect if it is already. Cost: O(observers), as of each event."""
        if observer not in self.all:
            self.all = (*self.all, observer)

    def remove(self, observer: CacheObserver) -> None:
        """From now on this one is told nothing more. No effect if it is not told anything."""
        self.all = tuple(each for each in self.all if each is not observer)

    def fail(self, observer: CacheObserver, error: Exception) -> None:
        """An observer raised, or says itself that it cannot go on: it is told nothing more, but that."""
        self.remove(observer)
        self._gave_up()
        # An OSError is of the world, a full disk, say, and no mistake of the observer.
        why = printable(str(error), 500) if isinstance(error, OSError) else traceback_of(error)
        LOG.error("%s failed, and is told nothing more; the cache goes on: %s", type(observer).__name__, why)
        with suppress(Exception):
            observer.failed(error)

    def tell(self, event: str, *given: object) -> None:
        """Tell all of them of an event, by the name of its method in CacheObserver."""
        for observer in self.all:
            try:
                getattr(observer, event)(*given)
            except Exception as error:
                self.fail(observer, error)

    def curve(self) -> LiveCurve | None:
        """Of the first observer that knows it."""
        for observer in self.all:
            try:
                curve = observer.curve()
            except Exception as error:
                self.fail(observer, error)
            else:
                if curve is not None:
                    return curve
        return None


ENTRY_POINTS: Final = "unified_tree.observers"
"""An installed package offers `name = "module:factory"` here, as this library does for `record`."""


def check_observers(given: object) -> None:
    """Raise ConfigurationError for anything but settings of observers by name."""
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
        raise ConfigurationError(
            'observers must name each with its settings, such as {"record": {"directory": "/var/log/traces"}}, '
            f"not {repr_of(given)}"
        )


def open_observers(given: Mapping[str, Mapping[str, Any]]) -> list[CacheObserver]:
    """Make the observers that an engine's settings name: `record`, one of an installed package, or `module:factory`.

    Raises ConfigurationError for an unknown name, and for settings that do not fit.
    """
    opened = []
    for name, settings in given.items():
        factory: Callable[..., CacheObserver] = find_extension("observer", name, ENTRY_POINTS, {})
        try:
            opened.append(factory(**settings))
        except TypeError as error:
            raise ConfigurationError(f"observers.{name}: {error}") from error
    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSize:
    """The hit rate of one size.

    Attributes:
        path: the paths' pools, as a multiple of what they are; `other` likewise the pools of windows and states.
        hit_rate: hit tokens per prompt token of the sampled requests.
    """

    path: float
    other: float
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCurve:
    """Hit rates over the sizes of a running cache's pools, under LRU, since `LiveSizes.watch`.

    Attributes:
        requests, prompt_tokens: sampled so far.
        points: one for each pair of sizes; without windows and states `other` is 1 in all.
    """

    requests: int
    prompt_tokens: int
    points: tuple[LiveSize, ...]

    def hit_rate(self, path: float = 1.0, other: float = 1.0) -> float:
        """Of one of the points."""
        return next(point.hit_rate for point in self.points if (point.path, point.other) == (path, other))


class AdmittedRequest:
    """A request that an engine has admitted; see ObservedRequest.

    Args:
        prompt_tokens: how many its prompt has.
        compute_from: of these not computed again.
        host_tokens: of those, loaded back from host.
        misses: why the others are.
    """

    __slots__ = ("cached_tokens", "compute_from", "host_tokens", "is_released", "misses", "prompt_tokens")

    def __init__(self, prompt_tokens: int, compute_from: int, host_tokens: int, misses: list[Miss]) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = self.compute_from = compute_from
        self.host_tokens = host_tokens
        self.misses = misses
        self.is_released = True  # what it holds the engine knows
