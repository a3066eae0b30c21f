"""The prefetcher: fetches what a store has of arriving prompts to host while they wait to be scheduled.

Each prefetch is a generator (`PrefetchStages.run`) that yields jobs and votes. The `Prefetcher` starts the jobs and casts the
votes, and resumes a prefetch when its job has ended or the ranks have decided its vote.

Prefetches are single-flight: a prompt that lacks the same page behind the same prefix as another follows that one's prefetch,
and checks again what it lacks when that has ended.

Cost: O(prefetches that ended or timed out) per tick, however many are open. A prefetch costs its caller a match and a graft,
and O(log open) with a time-out.

Of an ended prefetch only the outcome is kept, until its request asks for it or too many others have ended. An abandoned request
times out like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sortedcontainers import SortedList

from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.controllers.storage_tier.prefetch import Place, Prefetch, PrefetchStages, place_of
from unified_tree.misses.causes import StoreLoss

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.storage_tier.jobs import Job
    from unified_tree.controllers.storage_tier.policies import PrefetchPolicy
    from unified_tree.controllers.storage_tier.prefetch_room import PrefetchRoom
    from unified_tree.controllers.storage_tier.tier_store import TierStore
    from unified_tree.declare.keys import Key


class Prefetcher:
    """All prefetches of a cache.

    Attributes:
        requests: their requests.
    """

    def __init__(self, shared: TierStore) -> None:
        self._shared = shared
        self._policy = shared.tier.prefetch
        self._jobs = shared.tier.reading
        self._clock = shared.tier.clock
        self._stages = PrefetchStages(shared)
        self._numbers = count()
        self._by_place: dict[Place, Prefetch] = {}
        self._by_job: dict[Job, Prefetch] = {}
        self._is_closing = False
        self.requests = PrefetchRequests(
            self._policy,
            self._clock,
            shared.counters,
            shared.tree.page_size,
            shared.is_away,
            may_give_up=shared.ranks.is_single_rank,
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
            self._shared.count_drop("prefetch queue full", key)
            return False
        prefetch = Prefetch(next(self._numbers), request, key.owned())
        if not self._start(prefetch):
            return False
        self.requests.add(prefetch)
        return True

    def _start(self, prefetch: Prefetch) -> bool:
        """Look up what a prompt lacks, or follow the prefetch that fetches it; False if it lacks too little."""
        shared, key, tree = self._shared, prefetch.key, self._shared.tree
        size = tree.page_size
        limit = (key.length - 1) // size * size
        had = prefetch.measure(tree, limit)
        gave_up = prefetch.is_stopped and shared.ranks.is_single_rank
        chain = shared.chain(key.namespace)
        if self._is_closing or gave_up or chain is None or limit - had < max(size, self._policy.min_tokens):
            return False
        if prefetch.deadline is None:
            prefetch.deadline = self._clock() + self._policy.patience_s(limit - had)
        base = tree.transfers.host_path_end(key, limit=limit, after=prefetch.reachable)
        other = self._by_place.get(place_of(key, base, size))
        if other is not None:
            prefetch.follow(other)
            shared.totals.joined += 1
            return True
        known = shared.known_prefixes.longest(*tree.locks.find(base), chain.weights_version)
        found = FoundPrefix(key, base.length // size, limit // size, had // size, known.digests)
        prefetch.lead(found, shared.generation(key.namespace))
        prefetch.stages = self._stages.run(prefetch, found, base, chain)
        self._advance(prefetch, None)
        prefetch.place = place_of(key, prefetch.base, size)
        self._by_place[prefetch.place] = prefetch
        shared.totals.prefetches += 1
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
            self._shared.ranks.propose(prefetch.ticket, waits_for, partial(self._advance, prefetch))
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
        is_current = prefetch.generation == self._shared.generation(prefetch.key.namespace)
        for follower in prefetch.followers:
            in_vain = is_current and self._shared.ranks.is_single_rank and prefetch.would_find_nothing(follower)
            if prefetch.loss is not None and (in_vain or follower.is_stopped):
                follower.share_loss(prefetch.loss, self._shared.tree.page_size)
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


NOTHING: Final[tuple[int, StoreLoss | None]] = (0, None)
"""The outcome of a prefetch that there was not."""


class PrefetchRequests:
    """The prefetches by request.

    Args:
        policy: how long a request waits, and how many outcomes are kept.
        clock: seconds.
        counters: counts time-outs and dropped outcomes.
        page_size: tokens a page.
        is_away: whether the store answered nothing when it was asked last.
        may_give_up: whether a request may continue before its prefetch has ended; False where several ranks must agree.
    """

    def __init__(
        self,
        policy: PrefetchPolicy,
        clock: Callable[[], float],
        counters: CacheCounters,
        page_size: int,
        is_away: Callable[[], bool],
        *,
        may_give_up: bool,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._counters = counters
        self._page_size = page_size
        self._is_away = is_away
        self._may_give_up = may_give_up
        self._open: dict[Hashable, Prefetch] = {}
        self._outcomes: OrderedDict[Hashable, tuple[int, StoreLoss | None]] = OrderedDict()
        self._by_deadline = SortedList()
        self._next_s = inf  # the first of them
        self.open_count = 0

    @property
    def ended_count(self) -> int:
        """How many ended prefetches are kept with their outcome."""
        return len(self._outcomes)

    def add(self, prefetch: Prefetch) -> None:
        """Add a started prefetch. Cost: O(log open) with a time-out, else O(1)."""
        self.open_count += 1
        self._open[prefetch.request] = prefetch
        if self._policy.mode is PrefetchMode.TIMEOUT:
            entry = self._entry(prefetch)
            self._by_deadline.add(entry)
            self._next_s = min(self._next_s, entry[0])

    @staticmethod
    def _entry(prefetch: Prefetch) -> tuple[float, int, Prefetch]:
        assert prefetch.deadline is not None
        return prefetch.deadline, prefetch.number, prefetch

    def ended(self, prefetch: Prefetch) -> None:
        """Keep the outcome of an ended prefetch, if its request may still ask for it."""
        self.open_count -= 1
        self._waits_no_longer(prefetch)
        if self._open.get(prefetch.request) is not prefetch:
            return
        del self._open[prefetch.request]
        self._outcomes[prefetch.request] = prefetch.tokens, prefetch.loss
        if len(self._outcomes) > self._policy.max_outcomes:
            self._outcomes.popitem(last=False)
            self._counters.count_drop("prefetch forgotten")

    def _waits_no_longer(self, prefetch: Prefetch) -> None:
        waiting = self._by_deadline
        if waiting:
            waiting.discard(self._entry(prefetch))
            self._next_s = waiting[0][0] if waiting else inf

    def expire(self) -> None:
        """Stop waiting for requests that have timed out. Cost: O(log open) each, else O(1)."""
        if self._next_s == inf:
            return
        now = self._clock()
        while self._next_s <= now:
            self._expire(self._by_deadline[0][2], now)

    def _expire(self, prefetch: Prefetch, now: float) -> None:
        self._waits_no_longer(prefetch)
        if prefetch.is_wanted and not prefetch.is_stopped and self._policy.mode is PrefetchMode.TIMEOUT:
            self._counters.count_drop("prefetch out of time")
        prefetch.stop(now)

    def is_ready(self, request: Hashable) -> bool:
        """See PrefixCache.prefetched."""
        prefetch = self._open.get(request)
        if prefetch is None:
            return True
        now = self._clock()
        if now >= self._entry(prefetch)[0]:
            self._expire(prefetch, now)
        stopped_at = prefetch.stopped_at
        return self._may_give_up and stopped_at is not None and now >= stopped_at + self._policy.grace_s

    def tokens_of(self, request: Hashable) -> int:
        """See PrefixCache.prefetched_tokens."""
        prefetch = self._open.get(request)
        return self._outcomes.get(request, NOTHING)[0] if prefetch is None else prefetch.tokens

    def due_pages(self, request: Hashable) -> int:
        """How long a prefix a store would still bring for a request, as far as is known; 0 if its prefetch has ended."""
        prefetch = self._open.get(request)
        found = None if prefetch is None else prefetch.leading.found
        if prefetch is None or found is None or not found.longest_pages:
            return 0
        return min(found.longest_pages, prefetch.shared_pages(self._page_size))

    def loss_of(self, request: Hashable) -> StoreLoss | None:
        """What a fault of the store kept from a request's prompt, as far as is known; None for nothing.

        A store that has not answered a look-up within the request's time-out, or that answered none before it, counts as one
        that fails.
        """
        prefetch = self._open.get(request)
        if prefetch is None:
            return self._outcomes.get(request, NOTHING)[1]
        found = prefetch.leading.found
        if found is None or found.is_over or not (self._is_away() or self._is_late(prefetch)):
            return prefetch.loss
        size = self._page_size
        shared = prefetch.shared_pages(size) if found.listed_pages or found.silent_pages else 0
        listed, silent = min(found.listed_pages, shared) * size, min(found.silent_pages, shared) * size
        return StoreLoss(listed, silent, (prefetch.key.length - 1) // size * size)

    def _is_late(self, prefetch: Prefetch) -> bool:
        """Whether its time-out has run out, which with BEST_EFFORT it has from the beginning."""
        return self._policy.mode is PrefetchMode.TIMEOUT and self._clock() >= self._entry(prefetch)[0]

    def stop_waiting(self, request: Hashable) -> int:
        """Stop waiting for a request's prefetch. What has been read so far is still grafted, for later requests.

        Returns how many tokens its resumable prefix has grown.
        """
        tokens = self.tokens_of(request)
        prefetch = self._forget(request)
        if prefetch is not None:
            prefetch.stop(self._clock())
        return tokens

    def cancel(self, request: Hashable) -> None:
        """Cancel a request's prefetch, unless other requests want it."""
        prefetch = self._forget(request)
        if prefetch is not None:
            prefetch.cancel()

    def _forget(self, request: Hashable) -> Prefetch | None:
        """Forget a request; returns its prefetch if that has not ended."""
        self._outcomes.pop(request, None)
        return self._open.pop(request, None)

    def clear(self) -> None:
        """Forget all of them."""
        for kept in (self._open, self._outcomes, self._by_deadline):
            kept.clear()
        self._next_s = inf
