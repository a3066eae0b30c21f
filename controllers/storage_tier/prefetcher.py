"""The prefetcher: fetches what a store has of arriving prompts to host while they wait to be scheduled.

Each prefetch is a generator (`PrefetchStages.run`) that yields jobs and votes. The `Prefetcher` starts the jobs and casts the
votes, and resumes a prefetch when its job has ended or the ranks have decided its vote.

Prefetches are single-flight: a prompt that lacks the same page behind the same prefix as another follows that one's prefetch,
and checks again what it lacks when that has ended.

Cost: O(prefetches that ended or timed out) per tick, however many are open. A prefetch costs its caller a match and a graft,
and O(log open) with a time-out.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
from unified_tree.controllers.storage_tier.prefetch import Place, Prefetch, place_of
from unified_tree.controllers.storage_tier.prefetch_requests import PrefetchRequests
from unified_tree.controllers.storage_tier.prefetch_stages import PrefetchStages

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier.jobs import Job
    from unified_tree.controllers.storage_tier.prefetch_room import PrefetchRoom
    from unified_tree.controllers.storage_tier.storage_controller import StorageController
    from unified_tree.declare.keys import Key


class Prefetcher:
    """All prefetches of a cache.

    Attributes:
        requests: their requests.
    """

    def __init__(self, controller: StorageController) -> None:
        self._controller = controller
        self._policy = controller.tier.prefetch
        self._jobs = controller.tier.reading
        self._clock = controller.tier.clock
        self._stages = PrefetchStages(controller)
        self._numbers = count()
        self._by_place: dict[Place, Prefetch] = {}
        self._by_job: dict[Job, Prefetch] = {}
        self._is_closing = False
        self.requests = PrefetchRequests(
            self._policy,
            self._clock,
            controller.counters,
            controller.tree.page_size,
            controller.is_away,
            may_give_up=controller.ranks.is_single_rank,
        )

    @property
    def is_busy(self) -> bool:
        """Whether any prefetch has not ended."""
        return bool(self._by_place)

    @property
    def room(self) -> PrefetchRoom:
        """The host pages for prefetches."""
        return self._stages.room

    def begin(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        self.requests.cancel(request)
        if self.requests.open_count >= self._policy.max_open:
            self._controller.count_drop("prefetch queue full", key)
            return False
        prefetch = Prefetch(next(self._numbers), request, key.owned())
        if not self._start(prefetch):
            return False
        self.requests.add(prefetch)
        return True

    def _start(self, prefetch: Prefetch) -> bool:
        """Look up what a prompt lacks, or follow the prefetch that fetches it; False if it lacks too little."""
        controller, key, tree = self._controller, prefetch.key, self._controller.tree
        size = tree.page_size
        limit = (key.length - 1) // size * size
        had = prefetch.measure(tree, limit)
        gave_up = prefetch.is_stopped and controller.ranks.is_single_rank
        chain = controller.chain(key.namespace)
        if self._is_closing or gave_up or chain is None or limit - had < max(size, self._policy.min_tokens):
            return False
        if prefetch.deadline is None:
            prefetch.deadline = self._clock() + self._policy.patience_s(limit - had)
        base = tree.transfers.host_path_end(key, limit=limit, after=prefetch.reachable)
        other = self._by_place.get(place_of(key, base, size))
        if other is not None:
            prefetch.follow(other)
            controller.totals.joined += 1
            return True
        known = controller.known_prefixes.longest(*tree.locks.find(base), chain.weights_version)
        found = FoundPrefix(key, base.length // size, limit // size, had // size, known.digests)
        prefetch.lead(found, controller.generation(key.namespace))
        prefetch.stages = self._stages.run(prefetch, found, base, chain)
        self._advance(prefetch, None)
        prefetch.place = place_of(key, prefetch.base, size)
        self._by_place[prefetch.place] = prefetch
        controller.totals.prefetches += 1
        return True

    def _advance(self, prefetch: Prefetch, answer: Any) -> None:
        """Resume a prefetch, up to its next job or vote or to its end."""
        assert prefetch.stages is not None
        try:
            waits_for = prefetch.stages.send(answer)
        except StopIteration:
            self._end(prefetch)
            return
        except BaseException:
            if prefetch.place is not None:
                self._end(prefetch)
            raise
        if isinstance(waits_for, np.ndarray):
            assert prefetch.ticket is not None
            self._controller.ranks.propose(prefetch.ticket, waits_for, partial(self._advance, prefetch))
        else:
            self._by_job[self._jobs.start(waits_for)] = prefetch

    def poll(self) -> None:
        """Expire requests that have timed out, and resume every prefetch whose job has ended.

        Cost: O(log open) each.
        """
        ended = self._jobs.ended() if self._by_job else ()
        self.requests.expire()
        for job in ended:
            self._advance(self._by_job.pop(job), job.error)

    def _end(self, prefetch: Prefetch) -> None:
        """End a prefetch; its followers check again what they lack."""
        if prefetch.place is not None:
            del self._by_place[prefetch.place]
        self.requests.ended(prefetch)
        is_current = prefetch.generation == self._controller.generation(prefetch.key.namespace)
        for follower in prefetch.followers:
            in_vain = is_current and self._controller.ranks.is_single_rank and prefetch.would_find_nothing(follower)
            if prefetch.loss is not None and (in_vain or follower.is_stopped):
                follower.share_loss(prefetch.loss, self._controller.tree.page_size)
            if not follower.is_wanted or in_vain or not self._start(follower):
                self._end(follower)

    def close(self) -> None:
        """End all of them; the jobs have been closed."""
        self._is_closing = True
        try:
            self.poll()
        finally:
            for prefetch in [*self._by_place.values()]:
                assert prefetch.stages is not None
                prefetch.stages.close()
                self._end(prefetch)
            self.requests.clear()
