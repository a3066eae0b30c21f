"""Prefetches: what a store has of arriving prompts comes to host while they wait for their turn.

A prefetch goes through steps, each begun in `poll` when the one before has ended: *looking up* what the store has, *reading*
the paths of the longest length that the host has room for, *reading* the windows and states of the length that arrived, and
the graft. Between two steps the ranks agree on a length, so that all graft the same. A length whose pages fell short is struck
out and the next one tried. What a prefetch stands on is pinned from its beginning to its end.

Two prompts that lack the same page behind the same prefix are told apart by neither base nor page: the second waits for the
first and then looks again from where that has come to.

Cost: O(what ended) a tick, however many prefetches are open; a prefetch costs its caller a match and a graft.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.storage.hit_policy import longest
from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.errors import OutOfPagesError
from unified_tree.node import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.storage_tier.jobs import Job, Steps
    from unified_tree.controllers.storage_tier.storage_controller import StorageController
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Receipt

Place = tuple[str, bool, int, int, bytes]
"""Namespace, view, node and length of what is on host, and the first page that is not."""


class Prefetch:
    """One prompt's prefetch.

    Attributes:
        is_wanted: whoever asked for it may still have a use for it.
        place: what it is bringing first; None once it has ended.
        found, fetch: what the store has, and what is being read.
        tokens: by how much it made the prefix on host longer, once it has ended.
        followers: prefetches that wait for this one.
        deadline: when its requests stop waiting, in the clock's seconds.
    """

    def __init__(self, key: Key, deadline: float) -> None:
        self.is_wanted = True
        self.key = key
        self.deadline = deadline
        self.stopped_at: float | None = None
        self.place: Place | None = None
        self.generation: object = None
        self.found: FoundPrefix | None = None
        self.fetch: Fetch | None = None
        self.receipt: Receipt | None = None
        self.followers: list[Prefetch] = []
        self.tokens = 0
        self.has_ended = False

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to end with what it has."""
        return self.stopped_at is not None


class Prefetching:
    """All prefetches of a cache."""

    def __init__(self, controller: StorageController) -> None:
        self._controller = controller
        self._policy = controller.tier.prefetch
        self._jobs = controller.tier.reading
        self._clock = controller.tier.clock
        self._by_request: dict[Hashable, Prefetch] = {}
        self._by_place: dict[Place, Prefetch] = {}
        self._next: dict[Job, Callable[[str | None], None]] = {}
        self._held = dict.fromkeys(controller.host.allocators, 0)
        self.begun = 0
        self.joined = 0
        self.tokens = 0
        self.pages = 0
        self.size_bytes = 0
        self._is_closing = False

    @property
    def open_count(self) -> int:
        """Prefetches that have not ended."""
        return sum(not prefetch.has_ended for prefetch in self._by_request.values())

    @property
    def is_busy(self) -> bool:
        """Whether any prefetch has not ended."""
        return bool(self._by_place)

    def begin(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        self.cancel(request)
        deadline = self._clock() + self._policy.patience_s(key.length)
        prefetch = Prefetch(key, deadline)
        if not self._start(prefetch):
            return False
        self._by_request[request] = prefetch
        return True

    def _start(self, prefetch: Prefetch) -> bool:
        """Look up what a prompt lacks on host, or wait for who is bringing it; False if that is too little."""
        controller, key = self._controller, prefetch.key
        size = controller.tree.page_size
        limit = (key.length - 1) // size
        base = controller.tree.host_reach(key, limit=limit * size)
        if self._is_closing or limit * size - base.length < max(size, self._policy.least_tokens):
            return False
        other = self._by_place.get(_place(key, base, size))
        if other is not None:
            other.followers.append(prefetch)
            self.joined += 1
            return True
        prefetch.receipt = controller.tree.lock(base, Tier.HOST, controller.path_names)
        base = controller.tree.host_reach(key, limit=limit * size)  # locking may have cut its node
        place = _place(key, base, size)
        prefetch.place, prefetch.generation = place, controller.generation(key.namespace)
        prefetch.found = FoundPrefix(key, base.length // size, limit)
        self._by_place[place] = prefetch
        self.begun += 1
        chain = controller.chain(key.namespace)
        self._run(prefetch.found.look_up(controller.store, controller.composition, chain), partial(self._looked_up, prefetch))
        return True

    def _run(self, steps: Steps, then: Callable[[str | None], None]) -> None:
        self._next[self._jobs.start(steps)] = then

    def poll(self) -> None:
        """Go on with every prefetch whose step has ended. Cost: O(those)."""
        for job in self._jobs.ended():
            self._next.pop(job)(job.error)

    def _looked_up(self, prefetch: Prefetch, error: str | None) -> None:
        found = prefetch.found
        assert found is not None
        if error is not None:
            self._fail(prefetch, f"prefetch failed: {error.split(':')[0]}")
            return
        self._controller.known.forget(found.digests[found.reach_pages :])
        self._controller.agree(prefetch, found.lengths, partial(self._allocate, prefetch))

    def _allocate(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> None:
        """Take host pages for the longest length that there is room for, and begin to read."""
        found = prefetch.found
        assert found is not None
        found.lengths = lengths
        candidates = np.flatnonzero(lengths)[::-1]
        if not candidates.size or self._is_unwanted(prefetch):
            self._end(prefetch)
            return
        tries = [0, *(1 << n for n in range(candidates.size.bit_length() - 1))]
        for length in candidates[tries].tolist():
            pages = self._host_pages(found.base_pages, length)
            if pages is not None:
                break
        else:
            self._fail(prefetch, "prefetch: no room on host")
            return
        found.lengths[length + 1 :] = False
        prefetch.fetch = Fetch(self._controller.composition, found, length, pages)
        prefetch.fetch.stop = prefetch.is_stopped
        self._count_held(prefetch.fetch, 1)
        steps = prefetch.fetch.read_paths(self._controller.store, self._policy.batch_pages)
        self._run(steps, partial(self._paths_arrived, prefetch))

    def _host_pages(self, base_pages: int, length_pages: int) -> dict[str, NDArray[np.int64]] | None:
        """Host pages for a length, without those of optional components that are short; None if there is no room."""
        controller = self._controller
        needs = Fetch.needs(controller.composition, base_pages, length_pages)
        for name, count in list(needs.items()):
            total = controller.host.allocators[name].page_count
            is_over = total is not None and self._held[name] + count > self._policy.most_host_share * total
            if is_over or not controller.host.fits(name, count):
                if controller.is_required(name):
                    return None
                del needs[name]
        try:
            return controller.host.allocate_all(needs)
        except OutOfPagesError:
            return None

    def _count_held(self, fetch: Fetch, sign: int) -> None:
        for name, ids in fetch.pages.items():
            self._held[name] += sign * ids.size

    def _paths_arrived(self, prefetch: Prefetch, error: str | None) -> None:
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        if error is not None:
            self._fail(prefetch, f"prefetch failed: {error.split(':')[0]}")
            return
        if fetch.arrived_pages < fetch.length_pages and not fetch.stop:
            self._controller.known.forget(found.digests[fetch.arrived_pages :])
        found.lengths[fetch.arrived_pages + 1 :] = False
        self._controller.agree(prefetch, found.lengths, partial(self._read_trailing, prefetch))

    def _read_trailing(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> None:
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        found.lengths = lengths
        length = longest(lengths) if lengths.any() else 0
        if length <= found.base_pages or self._is_unwanted(prefetch):
            self._end(prefetch)
        elif not self._controller.composition.trailing:
            self._graft(prefetch, length)
        else:
            self._run(fetch.read_trailing(self._controller.store, length), partial(self._trailing_arrived, prefetch, length))

    def _trailing_arrived(self, prefetch: Prefetch, length: int, error: str | None) -> None:
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        if error is not None:
            self._fail(prefetch, f"prefetch failed: {error.split(':')[0]}")
            return
        required = {access.name for access in self._controller.composition.trailing if access.required}
        if not required.issubset(fetch.whole):
            found.lengths[length:] = False
        self._controller.agree(prefetch, found.lengths, partial(self._all_arrived, prefetch, length))

    def _all_arrived(self, prefetch: Prefetch, length: int, lengths: NDArray[np.bool_]) -> None:
        if length < lengths.size and lengths[length]:
            self._graft(prefetch, length)
        else:
            self._controller.counters.drop("prefetch shortened")
            self._read_trailing(prefetch, lengths)

    def _is_unwanted(self, prefetch: Prefetch) -> bool:
        """Whether nobody waits for it any more, or what it brings has been invalidated."""
        is_stale = prefetch.generation != self._controller.generation(prefetch.key.namespace)
        return is_stale or not (prefetch.is_wanted or any(follower.is_wanted for follower in prefetch.followers))

    def _graft(self, prefetch: Prefetch, length_pages: int) -> None:
        """Put what arrived into the tree."""
        controller, found, fetch = self._controller, prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        size = controller.tree.page_size
        if prefetch.generation != controller.generation(prefetch.key.namespace):
            self._fail(prefetch, "prefetch of what was invalidated")
            return
        taken, left = fetch.took(length_pages), fetch.left(length_pages)
        result = controller.tree.graft(prefetch.key.prefix(length_pages * size), taken)
        controller.host.give_back(left)
        controller.host.give_back(result.unused)
        self._count_held(fetch, -1)
        prefetch.fetch = None
        prefetch.tokens = (length_pages - found.base_pages) * size
        self.tokens += prefetch.tokens
        for name, ids in taken.items():
            self.pages += ids.size
            self.size_bytes += ids.size * controller.value_bytes(name)
        controller.known.add(found.digests[found.base_pages : length_pages])
        self._end(prefetch)

    def _fail(self, prefetch: Prefetch, reason: str) -> None:
        self._controller.counters.drop(reason)
        self._end(prefetch)

    def _end(self, prefetch: Prefetch) -> None:
        """Let go of everything; those who waited for it look again."""
        if prefetch.fetch is not None:
            self._controller.host.give_back(prefetch.fetch.pages)
            self._count_held(prefetch.fetch, -1)
            prefetch.fetch = None
        if prefetch.receipt is not None:
            prefetch.receipt.release()
            prefetch.receipt = None
        if prefetch.place is not None:
            del self._by_place[prefetch.place]
            prefetch.place = None
        prefetch.has_ended = True
        followers, prefetch.followers = prefetch.followers, []
        for follower in followers:
            follower.tokens = prefetch.tokens
            if not follower.is_wanted or follower.is_stopped or not self._start(follower):
                self._end(follower)

    def is_ready(self, request: Hashable) -> bool:
        """See PrefixCache.prefetched."""
        prefetch = self._by_request.get(request)
        if prefetch is None or prefetch.has_ended:
            return True
        now = self._clock()
        if now >= prefetch.deadline and not prefetch.is_stopped:
            self._stop(prefetch)
            if self._policy.mode is PrefetchMode.TIMEOUT:
                self._controller.counters.drop("prefetch out of time")
        return prefetch.stopped_at is not None and now >= prefetch.stopped_at + self._policy.grace_s

    def _stop(self, prefetch: Prefetch) -> None:
        """Let it end with what it has."""
        prefetch.stopped_at = self._clock()
        if prefetch.fetch is not None:
            prefetch.fetch.stop = True

    def tokens_of(self, request: Hashable) -> int:
        """See PrefixCache.prefetched_tokens."""
        prefetch = self._by_request.get(request)
        return 0 if prefetch is None else prefetch.tokens

    def leave(self, request: Hashable) -> int:
        """A request goes on without waiting; what has been read so far still comes to host, for whoever is next.

        Returns by how many tokens its prefix on host grew.
        """
        prefetch = self._by_request.pop(request, None)
        if prefetch is None:
            return 0
        if not prefetch.has_ended and not prefetch.is_stopped:
            self._stop(prefetch)
        return prefetch.tokens

    def cancel(self, request: Hashable) -> None:
        """A request has no use for it any more; it is dropped, if nobody else has."""
        prefetch = self._by_request.pop(request, None)
        if prefetch is None:
            return
        prefetch.is_wanted = False
        if not prefetch.has_ended and not prefetch.followers:
            self._stop(prefetch)

    def close(self) -> None:
        """End all of them; the jobs have been closed."""
        self._is_closing = True
        self.poll()
        for prefetch in [*self._by_place.values()]:
            self._end(prefetch)
        self._by_request.clear()


def _place(key: Key, base: Boundary, page_size: int) -> Place:
    width = key.width_bytes
    first_page = key.data[base.length * width : (base.length + page_size) * width]
    return key.namespace, key.bigram, base.node, base.length, first_page
