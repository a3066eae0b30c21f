"""Hints: what an engine knows of requests to come. They change what is evicted first, and never what can be allocated."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from unified_tree.controllers.cache.held_hints import HeldHints, Hint, Outcome, Verb
from unified_tree.controllers.cache.sessions import Sessions
from unified_tree.declare.keys import Key
from unified_tree.declare.owners import remarked
from unified_tree.lookup.matching import match
from unified_tree.state import claims
from unified_tree.terms.errors import OutOfPagesError, StaleBoundaryError, TransferError
from unified_tree.terms.results import Boundary

if TYPE_CHECKING:
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.nodes.node import Node


class Hints(HeldHints):
    """The hints of one cache: see `HeldHints`. A prefetch also brings back what is not on device.

    Args:
        cache: whose hints they are.
        sessions, time_s, max_hints: as in HeldHints.
    """

    def __init__(self, cache: PrefixCache, sessions: Sessions, time_s: Callable[[], float], max_hints: int) -> None:
        single = cache.ranks.is_single_rank
        super().__init__(cache.tree.state, cache.counters, sessions, time_s, max_hints, has_one_clock=single)
        self._cache = cache
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
        return bool(nodes) and self._fetch(hint, remarked(self._cache.tree.key_of(Boundary(nodes[0].id, nodes[0].end))))

    def _in_tree(self, target: object) -> object:
        return self._cache.sharing.in_tree(target) if isinstance(target, Key) else target

    def _fetch(self, hint: Hint, key: Key) -> bool:
        """Ask the store, if there is one, for what the host lacks; else load what it has."""
        if self._cache.storage is not None and self._cache.prefetch(hint, key):
            self._fetching[hint] = key
            return True
        return self._load(hint, key)

    def _load(self, hint: Hint, key: Key) -> bool:
        controller, state = self._cache.controller, self._state
        if controller is None:
            return False
        found = match(state, key, key.length, touch=False)
        gain, device, components = found.reachable.length - found.device.length, self._cache.device, None
        load_needs = self._cache.tree.transfers.load_needs
        if gain > 0 and not device.fits(load_needs(found.reachable)):
            components = self._cache.layout.gating
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
        load, controller = hint.load, self._cache.controller
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
        controller = self._cache.controller
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
                if self._cache.prefetched(hint):
                    del self._fetching[hint]
                    self._cache.cancel(hint)
                    if not self._load(hint, key):
                        self._end(hint, Outcome.REFUSED)

    def _stops(self, hint: Hint) -> None:
        if self._fetching.pop(hint, None) is not None:
            self._cache.cancel(hint)
        # Its load lands first: if it were cancelled, its pages would be neither free nor evictable for `relieve`.

    def close(self) -> None:
        """End all hints, give up what they load, and refuse those that come. Idempotent."""
        for hint in list(self._loading):
            self._finish(hint)
        super().close()
