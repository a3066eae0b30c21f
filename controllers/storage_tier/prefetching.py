"""Prefetches: what a store has of arriving prompts comes to host while they wait for their turn.

A prefetch goes through steps, each begun in `poll` when the one before has ended: *looking up* what the store has, *reading*
the paths of the longest length that the host has room for, a portion at a time, *reading* the windows and states of the length
that arrived, and the graft. Between two steps the ranks agree on a length, and before the graft on the optional components that
came on all of them, so that all graft the same. A length whose pages fell short is struck out and the next one tried. What a
prefetch stands on is pinned from its beginning to its end.

Host pages are taken for what is about to be read and nothing else, for taking them evicts what others may need. When nobody
waits for a prefetch any more it is broken off: a look-up asks nothing more and finds nothing, a portion is read no further, and
what has been read is grafted all the same.

Two prompts that lack the same page behind the same prefix are told apart by neither base nor page: the second waits for the
first and then looks again from where that has come to.

Cost: O(what ended or ran out of time) a tick, however many prefetches are open; a prefetch costs its caller a match and a
graft, and O(log open) with a time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.storage.hit_policy import longest
from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
from unified_tree.controllers.storage_tier.prefetch import Place, Prefetch, place_of
from unified_tree.controllers.storage_tier.prefetch_requests import PrefetchRequests
from unified_tree.controllers.storage_tier.prefetch_room import PrefetchRoom
from unified_tree.node import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.storage_tier.jobs import Job, Steps
    from unified_tree.controllers.storage_tier.storage_controller import StorageController
    from unified_tree.keys import Key


class Prefetching:
    """All prefetches of a cache.

    Attributes:
        requests: whom they are made for.
        begun, joined, tokens, pages, size_bytes: see StorageTierStats.
    """

    def __init__(self, controller: StorageController) -> None:
        self._controller = controller
        self._policy = controller.tier.prefetch
        self._jobs = controller.tier.reading
        self._clock = controller.tier.clock
        self.requests = PrefetchRequests(self._policy, self._clock, controller.counters, may_give_up=controller.ranks.is_alone)
        self._numbers = count()
        self._by_place: dict[Place, Prefetch] = {}
        self._next: dict[Job, Callable[[str | None], None]] = {}
        self._room = PrefetchRoom(controller.composition, controller.host, self._policy.max_host_share)
        self.begun = 0
        self.joined = 0
        self.tokens = 0
        self.pages = 0
        self.size_bytes = 0
        self._is_closing = False

    @property
    def is_busy(self) -> bool:
        """Whether any prefetch has not ended."""
        return bool(self._by_place)

    def begin(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        self.requests.cancel(request)
        if self.requests.open_count >= self._policy.max_open:
            self._controller.counters.drop("prefetch queue full")
            return False
        prefetch = Prefetch(next(self._numbers), key)
        if not self._start(prefetch):
            return False
        self.requests.add(request, prefetch)
        return True

    def _start(self, prefetch: Prefetch) -> bool:
        """Look up what a prompt lacks, or wait for who is bringing it; False if that is too little."""
        controller, key = self._controller, prefetch.key
        size = controller.tree.page_size
        limit = (key.length - 1) // size
        had = self._measure(prefetch, limit * size)
        lacking = limit * size - had
        gave_up = prefetch.is_stopped and controller.ranks.is_alone
        chain = controller.chain(key.namespace)
        if self._is_closing or gave_up or chain is None or lacking < max(size, self._policy.min_tokens):
            return False
        if prefetch.deadline is None:
            prefetch.deadline = self._clock() + self._policy.patience_s(lacking)
        base = controller.tree.transfers.host_path_end(key, limit=limit * size)
        other = self._by_place.get(place_of(key, base, size))
        if other is not None:
            prefetch.follow(other)
            self.joined += 1
            return True
        prefetch.ticket = controller.ranks.ticket(f"{key.namespace} {base.length} {key.length}", limit)
        prefetch.receipt = controller.tree.lock(base, Tier.HOST, controller.path_names)
        base = controller.tree.transfers.host_path_end(key, limit=limit * size)  # locking may have cut its node
        prefetch.leader = None
        prefetch.place, prefetch.generation = place_of(key, base, size), controller.generation(key.namespace)
        prefetch.found = FoundPrefix(key, base.length // size, limit, had // size)
        if not prefetch.waiting:
            prefetch.break_off()
        self._by_place[prefetch.place] = prefetch
        self.begun += 1
        self._run(prefetch.found.look_up(controller.store, controller.composition, chain), partial(self._looked_up, prefetch))
        return True

    def _measure(self, prefetch: Prefetch, limit: int) -> int:
        """How many tokens of a prompt can be resumed over device and host; how much more than at first is noted."""
        had = self._controller.tree.match_prefix(prefetch.key, limit=limit, touch=False).reachable.length
        if prefetch.had_tokens is None:
            prefetch.had_tokens = had
        prefetch.tokens = max(0, had - prefetch.had_tokens)
        return had

    def _run(self, steps: Steps, then: Callable[[str | None], None]) -> None:
        self._next[self._jobs.start(steps)] = then

    def poll(self) -> None:
        """Let requests that are out of time wait no longer, and go on with every prefetch whose step has ended.

        Cost: O(those), O(log open) each.
        """
        ended = self._jobs.ended()
        self.requests.stop_late()
        for job in ended:
            self._next.pop(job)(job.error)

    def _vote(self, prefetch: Prefetch, error: str | None, then: Callable[[NDArray[np.bool_]], None]) -> None:
        """A step ended here: go on with the lengths that every rank can restore, none if it failed."""
        assert prefetch.found is not None and prefetch.ticket is not None
        lengths = prefetch.found.lengths
        if error is not None:
            self._controller.counters.drop(f"prefetch failed: {error.split(':')[0]}")
            lengths = np.zeros(1, np.bool_)
        ticket, prefetch.ticket = prefetch.ticket, None
        prefetch.vote = ticket
        self._controller.ranks.vote(ticket, lengths, then)

    def _begin_step(self, prefetch: Prefetch, found: FoundPrefix, page_count: int) -> None:
        """The next vote is on lengths of at most so many pages."""
        found.lengths = found.lengths[: page_count + 1]
        prefetch.ticket = self._controller.ranks.ticket(f"{prefetch.key.namespace} {prefetch.key.length}", page_count)

    def _decided(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> FoundPrefix:
        """What was found, with the lengths that were agreed on."""
        found = prefetch.found
        assert found is not None
        prefetch.vote = None
        lengths[: found.had_pages + 1] = False
        found.lengths = lengths
        return found

    def _looked_up(self, prefetch: Prefetch, error: str | None) -> None:
        found = prefetch.found
        assert found is not None
        if prefetch.is_broken_off:
            found.lengths = np.zeros(1, np.bool_)
        elif error is None:
            self._controller.known.forget(found.digests[found.reach_pages :])
        self._vote(prefetch, error, partial(self._claim, prefetch))

    def _claim(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> None:
        """Claim room for the longest length that there is room for, and begin to read."""
        found = self._decided(prefetch, lengths)
        candidates = np.flatnonzero(lengths).tolist()
        prefetch.found_nothing = not candidates and not prefetch.is_broken_off
        if not candidates or self._is_unwanted(prefetch):
            self._end(prefetch)
            return
        claimed = self._room.claim_longest(found.base_pages, candidates)
        if claimed is None:
            self._fail(prefetch, "prefetch: no room on host")
            return
        length, claim = claimed
        found.lengths = found.lengths[: length + 1]
        prefetch.fetch = Fetch(self._controller.composition, found, length, claim)
        prefetch.fetch.stop = prefetch.is_broken_off
        self._read_portion(prefetch)

    def _read_portion(self, prefetch: Prefetch) -> None:
        """Take host pages for the next portion of the paths, or for the first one, and read into them."""
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        start = fetch.arrived_pages
        wanted = min(fetch.length_pages - start, max(self._policy.room_pages, start - found.base_pages))
        if wanted > 0:
            accesses = self._controller.composition.paths
            optional = {a.name for a in accesses if not a.required and a.name in fetch.claim and fetch.goes_on_with(a.name)}
            pages = self._room.take_path([a.name for a in accesses if a.required or a.name in optional], wanted)
            if pages is None:
                self._controller.counters.drop("prefetch: no room on host")
                found.lengths[start + 1 :] = False
                self._read_trailing(prefetch, found.lengths)
                return
            fetch.give_path(pages)
        self._begin_step(prefetch, found, fetch.length_pages)
        steps = fetch.read_paths(self._controller.store, self._policy.batch_pages)
        self._run(steps, partial(self._portion_arrived, prefetch))

    def _portion_arrived(self, prefetch: Prefetch, error: str | None) -> None:
        """Lengths beyond what has arrived stay candidates as long as it makes sense here to read on."""
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        fell_short = fetch.arrived_pages < fetch.given_pages
        if fell_short and not fetch.stop:
            self._controller.known.forget(found.digests[fetch.arrived_pages :])
        if fell_short or fetch.stop:
            found.lengths[fetch.arrived_pages + 1 :] = False
        self._vote(prefetch, error, partial(self._read_on, prefetch))

    def _read_on(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> None:
        """Read another portion if all ranks can, or else what the length that has arrived needs besides."""
        found, fetch = self._decided(prefetch, lengths), prefetch.fetch
        assert fetch is not None
        if found.lengths[fetch.arrived_pages + 1 :].any() and not self._is_unwanted(prefetch):
            self._read_portion(prefetch)
        else:
            self._read_trailing(prefetch, lengths)

    def _read_trailing(self, prefetch: Prefetch, lengths: NDArray[np.bool_]) -> None:
        found, fetch = self._decided(prefetch, lengths), prefetch.fetch
        assert fetch is not None
        length = longest(found.lengths) if found.lengths.any() else 0
        if length <= found.had_pages or self._is_unwanted(prefetch):
            self._end(prefetch)
        elif not self._controller.composition.trailing:
            self._agree_on_optional(prefetch, length)
        elif not self._has_trailing_room(fetch, length):
            self._fail(prefetch, "prefetch: no room on host")
        else:
            self._begin_step(prefetch, found, length)
            self._run(fetch.read_trailing(self._controller.store, length), partial(self._trailing_arrived, prefetch, length))

    def _has_trailing_room(self, fetch: Fetch, length: int) -> bool:
        """Take host pages for windows and states, which serve every shorter length, too."""
        if not fetch.has_trailing_room:
            needs = Fetch.trailing_needs(self._controller.composition, length)
            pages = self._room.take({name: count for name, count in needs.items() if name in fetch.claim})
            if pages is None:
                return False
            fetch.give_trailing(pages)
        return True

    def _trailing_arrived(self, prefetch: Prefetch, length: int, error: str | None) -> None:
        found, fetch = prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        required = {access.name for access in self._controller.composition.trailing if access.required}
        if not required.issubset(fetch.came(length)):
            found.lengths[length:] = False
        self._vote(prefetch, error, partial(self._all_arrived, prefetch, length))

    def _all_arrived(self, prefetch: Prefetch, length: int, lengths: NDArray[np.bool_]) -> None:
        if length < lengths.size and lengths[length] and not self._is_unwanted(prefetch):
            self._agree_on_optional(prefetch, length)
        else:
            self._controller.counters.drop("prefetch shortened")
            self._read_trailing(prefetch, lengths)

    def _agree_on_optional(self, prefetch: Prefetch, length: int) -> None:
        """All that is required has come on every rank; what is optional is grafted where it has, too."""
        optional, fetch = self._controller.composition.optional, prefetch.fetch
        assert fetch is not None
        if not optional:
            self._graft(prefetch, length)
            return
        whole = fetch.came(length)
        came = np.array([True, *(name in whole for name in optional)])
        prefetch.vote = self._controller.ranks.ticket(f"{prefetch.key.namespace} {length} optional", len(optional))
        self._controller.ranks.vote(prefetch.vote, came, partial(self._optional_agreed, prefetch, length))

    def _optional_agreed(self, prefetch: Prefetch, length: int, came: NDArray[np.bool_]) -> None:
        fetch = prefetch.fetch
        assert fetch is not None
        prefetch.vote = None
        agreed = dict(zip(self._controller.composition.optional, came[1:].tolist(), strict=True))
        fetch.left_out = {name for name, is_there in agreed.items() if not is_there}
        if self._is_unwanted(prefetch):
            self._end(prefetch)
        else:
            self._graft(prefetch, length)

    def _is_unwanted(self, prefetch: Prefetch) -> bool:
        """Whether nobody waits for it any more, or what it brings has been invalidated."""
        return not prefetch.users or prefetch.generation != self._controller.generation(prefetch.key.namespace)

    def _graft(self, prefetch: Prefetch, length_pages: int) -> None:
        """Put what arrived into the tree."""
        controller, found, fetch = self._controller, prefetch.found, prefetch.fetch
        assert found is not None and fetch is not None
        size = controller.tree.page_size
        if prefetch.generation != controller.generation(prefetch.key.namespace):
            self._fail(prefetch, "prefetch of what was invalidated")
            return
        taken, left = fetch.took(length_pages), fetch.left(length_pages)
        result = controller.tree.transfers.graft(prefetch.key.prefix(length_pages * size), taken)
        prefetch.fetch = None
        self._room.give_back(left)
        self._room.release(fetch.claim, fetch.pages)
        controller.host.free_all(result.unused)
        before = prefetch.tokens
        self._measure(prefetch, length_pages * size)
        self.tokens += max(0, prefetch.tokens - before)
        for name, ids in taken.items():
            self.pages += ids.size
            self.size_bytes += ids.size * controller.value_bytes(name)
        if {access.name for access in controller.composition.paths}.issubset(fetch.came(length_pages)):
            controller.known.add(found.digests[found.base_pages : length_pages])
        self._end(prefetch)

    def _fail(self, prefetch: Prefetch, reason: str) -> None:
        self._controller.counters.drop(reason)
        self._end(prefetch)

    def _end(self, prefetch: Prefetch) -> None:
        """Let go of everything; those who waited for it look again."""
        if prefetch.fetch is not None:
            self._room.give_back(prefetch.fetch.pages)
            self._room.release(prefetch.fetch.claim, prefetch.fetch.pages)
            prefetch.fetch = None
        for ticket in (prefetch.ticket, prefetch.vote):
            if ticket is not None:
                self._controller.ranks.withdraw(ticket)
        prefetch.ticket = prefetch.vote = None
        if prefetch.receipt is not None:
            prefetch.receipt.release()
            prefetch.receipt = None
        if prefetch.place is not None:
            del self._by_place[prefetch.place]
            prefetch.place = None
        self.requests.ended(prefetch)
        is_current = prefetch.generation == self._controller.generation(prefetch.key.namespace)
        followers, prefetch.followers = prefetch.followers, []
        for follower in followers:
            in_vain = is_current and self._controller.ranks.is_alone and prefetch.is_in_vain_for(follower)
            if not follower.is_wanted or in_vain or not self._start(follower):
                self._end(follower)

    def close(self) -> None:
        """End all of them; the jobs have been closed."""
        self._is_closing = True
        self.poll()
        for prefetch in [*self._by_place.values()]:
            self._end(prefetch)
        self.requests.clear()
