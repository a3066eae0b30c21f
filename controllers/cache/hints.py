"""Hints: what an engine knows of requests to come. They change what is evicted first, and never what can be allocated."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.cache.held_hints import HeldHints, Hint, Outcome, Verb
from unified_tree.declare.keys import Key
from unified_tree.declare.owners import remarked
from unified_tree.lookup.matching import match
from unified_tree.state import claims
from unified_tree.terms.errors import OutOfPagesError, StaleBoundaryError, TransferError
from unified_tree.terms.results import Boundary

if TYPE_CHECKING:
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.nodes.node import Node


class Prefetches(Protocol):
    """The prefetches of a cache: see PrefixCache."""

    def prefetch(self, request: Hashable, key: Key) -> bool: ...

    def prefetched(self, request: Hashable) -> bool: ...

    def cancel(self, request: Hashable) -> None: ...


class Hints(HeldHints):
    """The hints of one cache: see `HeldHints`. A prefetch also brings back what is not on device.

    Args:
        resources: the parts of the cache.
        prefetches: of the cache.
        time_s, max_hints: as in HeldHints.
    """

    def __init__(self, resources: CacheResources, prefetches: Prefetches, time_s: Callable[[], float], max_hints: int) -> None:
        one_clock = resources.ranks.is_single_rank
        state, counters, sessions = resources.state, resources.counters, resources.sessions
        super().__init__(state, counters, sessions, time_s, max_hints, has_one_clock=one_clock)
        self._resources = resources
        self._prefetches = prefetches
        self._fetching: dict[Hint, Key] = {}
        self._loading: dict[Hint, None] = {}

    @property
    def loading(self) -> int:
        """How many prefetches copy to the device now, those that have ended included."""
        return len(self._loading)

    @property
    def has_work(self) -> bool:
        """Whether `poll` may have something to do: a hint is open, or a copy is under way."""
        return bool(self._open or self._loading)

    def prefetch(self, target: Hashable | Key) -> bool:
        """Bring what a session's next turn resumes from, or a prompt, back to the device ahead of its return: from the store to
        host, and from there on. Room is made as for a load; a request that needs the room in the meantime waits for the copy.

        Returns whether something is on its way. Cost: as a match, and O(pages).
        """
        return self._give(Verb.PREFETCH, target, None)

    def _begins(self, hint: Hint, target: object, nodes: list[Node]) -> bool:
        if hint.verb is not Verb.PREFETCH:
            return super()._begins(hint, target, nodes)
        if isinstance(target, Key):
            return self._fetch(hint, target)
        return bool(nodes) and self._fetch(hint, remarked(self._resources.tree.key_of(Boundary(nodes[0].id, nodes[0].end))))

    def _in_tree(self, target: object) -> object:
        return self._resources.sharing.in_tree(target) if isinstance(target, Key) else target

    def _fetch(self, hint: Hint, key: Key) -> bool:
        """Ask the store, if there is one, for what the host lacks; else load what it has."""
        if self._resources.storage is not None and self._prefetches.prefetch(hint, key):
            self._fetching[hint] = key
            return True
        return self._load(hint, key)

    def _load(self, hint: Hint, key: Key) -> bool:
        controller, state = self._resources.controller, self._state
        if controller is None:
            return False
        found = match(state, key, key.length, touch=False)
        gain, device, components = found.reachable.length - found.device.length, self._resources.device, None
        load_needs = self._resources.tree.transfers.load_needs
        if gain > 0 and not device.fits(load_needs(found.reachable)):
            components = self._resources.layout.gating
        if gain <= 0 or not device.fits(load_needs(found.reachable, components)):
            return False
        try:
            hint.load = controller.load(found.reachable, gain, {}, components)
        except (OutOfPagesError, StaleBoundaryError, TransferError):
            return False
        self._loading[hint] = None
        return True

    def _finish(self, hint: Hint) -> None:
        """Its load has landed, or the cache closes."""
        load, controller = hint.load, self._resources.controller
        self._loading.pop(hint, None)
        if load is not None and controller is not None:
            hint.load = None
            boundary = load.boundary
            controller.release(load)
            node = self._state.nodes.get(boundary.node)
            if load.error is None and node is not None and self._open.get((hint.verb, hint.target)) is hint:
                claims.hold_boundary(self._state, hint.hold, node)

    def relieve(self) -> bool:
        """A pool is short: finish all loads that no request waits for. Whether there were any."""
        controller = self._resources.controller
        loading = list(self._loading)
        for hint in loading:
            if hint.load is not None and controller is not None and not hint.load.has_ended:
                controller.wait(hint.load)
            self._finish(hint)
        return bool(loading)

    def poll(self) -> None:
        """End some whose time is over, and go on with prefetches. Cost: O(those that are fetching or loading)."""
        super().poll()
        if self._loading:
            for hint in [each for each in self._loading if each.load is None or each.load.has_ended]:
                self._finish(hint)
        if self._fetching:
            for hint, key in list(self._fetching.items()):
                if self._prefetches.prefetched(hint):
                    del self._fetching[hint]
                    self._prefetches.cancel(hint)
                    if not self._load(hint, key):
                        self._end(hint, Outcome.REFUSED)

    def _stops(self, hint: Hint) -> None:
        if self._fetching.pop(hint, None) is not None:
            self._prefetches.cancel(hint)
        # Its load lands first: if it were cancelled, its pages would be neither free nor evictable for `relieve`.

    def close(self) -> None:
        """End all hints, give up what they load, and refuse those that come. Idempotent."""
        for hint in list(self._loading):
            self._finish(hint)
        super().close()
