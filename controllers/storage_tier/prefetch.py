"""One prompt's prefetch as its request sees it: who waits for it, for how long, and its result; and its stages, from the
look-up to the graft, as one generator.

The generator yields the jobs on the store and the votes of the ranks, and is sent their results: of a job its error or None, of
a vote the lengths that every rank can restore. In between it runs on the caller's thread. Every rank opens the same tickets in
the same order and votes on each, whatever its own store answered; after a failed or stopped job it votes for less. Closing the
generator at any stage releases its locks and frees its pages.

Host pages are allocated only for what is about to be read, because allocating may evict. When no request waits for a prefetch
any more, it is stopped: its look-up finds nothing, no more path pages are read, and what has been read is grafted.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from unified_tree.controllers.storage.hit_policy import longest
from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.controllers.storage_tier.policies import PrefetchMode
from unified_tree.controllers.storage_tier.prefetch_room import PrefetchRoom
from unified_tree.controllers.storage_tier.stored_digests import KnownPrefix
from unified_tree.misses.causes import StoreLoss
from unified_tree.native.chosen import agreement
from unified_tree.terms.results import NOWHERE
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.tier_store import TierStore
    from unified_tree.declare.keys import Key
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree

Place = tuple[str, bool, int, int, bytes]
"""Namespace, kind of key, node and length of what is on host, and the first page that is not."""


class Prefetch:
    """One prompt's prefetch.

    It either runs its own `stages`, or follows another prefetch that fetches the same first page (single-flight). When that one
    has ended, a follower checks again what it lacks.

    Attributes:
        number: counted from 0, in the order of starting.
        request: its request's name.
        is_wanted: whether its request may still use it.
        deadline: when its request stops waiting, in the clock's seconds; None before it starts.
        stopped_at: when its request stopped waiting; None while it waits.
        tokens: how many tokens the resumable prefix over device and host has grown since the prefetch was asked for.
        followers: prefetches that wait for this one.
        users: how many of these and itself are wanted; `waiting`: how many of these have not stopped waiting.
        reachable: the boundary that could be resumed over device and host when it was last measured.
        base: the end of the prefix on host, behind which its stages fetch; valid while they run.
        generation: of the weights when its stages started.
        stages: the generator that fetches it; None for a follower.
        place: where its stages start; None for a follower.
        found: what the store has; stopped when no request waits any more. None for a follower.
        ticket: of its next or current vote.
        found_nothing: its look-up completed and found nothing.
        loss: what a fault of the store kept from its prompt so far; None for nothing.
    """

    def __init__(self, number: int, request: Hashable, key: Key) -> None:
        self.number = number
        self.request = request
        self.key = key
        self.is_wanted = True
        self.deadline: float | None = None
        self.stopped_at: float | None = None
        self.tokens = 0
        self.followers: list[Prefetch] = []
        self.users = 1
        self.waiting = 1
        self.reachable = NOWHERE
        self.base = NOWHERE
        self.generation: object = None
        self.stages: Stages[None] | None = None
        self.place: Place | None = None
        self.found: FoundPrefix | None = None
        self.ticket: int | None = None
        self.found_nothing = False
        self.loss: StoreLoss | None = None
        self._leader: Prefetch | None = None
        self._shared_pages: int | None = None
        self._had_tokens: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether its request has stopped waiting."""
        return self.stopped_at is not None

    @property
    def leading(self) -> Prefetch:
        """The prefetch that fetches for it: itself, or the one that it follows."""
        return self._leader or self

    def shared_pages(self, page_size: int) -> int:
        """How many pages of its prompt are those of the prefetch that fetches for it. Cost: one comparison for a follower."""
        if self._shared_pages is None:
            key, other = self.key, self.leading.key
            size, end = page_size * key.width_bytes, min(key.length, other.length) * key.width_bytes
            self._shared_pages = (
                key.length // page_size if other is key else agreement(key.data, other.data, 0, end, size) // size
            )
        return self._shared_pages

    def note_loss(self, listed: int, believed: int = 0, unanswered: int = 0) -> None:
        """A fault of the store has kept something from the prompt; lengths as in StoreLoss."""
        before = self.loss
        if before is not None:
            listed, believed = max(listed, before.listed), max(believed, before.believed)
            unanswered = max(unanswered, before.unanswered)
        if listed or believed or unanswered:
            self.loss = StoreLoss(listed, believed, unanswered)

    def share_loss(self, loss: StoreLoss, page_size: int) -> None:
        """The prefetch that it follows has lost this to a fault of the store, and it is not tried again for itself."""
        shared = self.shared_pages(page_size) * page_size if loss.listed or loss.believed else 0
        unanswered = (self.key.length - 1) // page_size * page_size if loss.unanswered else 0
        self.note_loss(min(loss.listed, shared), min(loss.believed, shared), unanswered)

    def measure(self, tree: UnifiedTree, limit: int) -> int:
        """How many tokens of the prompt, at most `limit`, can be resumed over device and host; updates `tokens`.

        Cost: a match.
        """
        self.reachable = tree.match_prefix(self.key, limit=limit, touch=False).reachable
        had = self.reachable.length
        if self._had_tokens is None:
            self._had_tokens = had
        self.tokens = max(0, had - self._had_tokens)
        return had

    def stop(self, now: float) -> None:
        """Stop waiting. If no other request waits for the same pages, the prefetch ends with what it has. Cost: O(1)."""
        if self.stopped_at is None:
            self.stopped_at = now
            if self.is_wanted:
                self._wait_no_longer()

    def cancel(self) -> None:
        """Cancel it for its request. If no other request wants it, what it has read is discarded. Cost: O(1)."""
        assert self.is_wanted
        self.is_wanted = False
        (self._leader or self).users -= 1
        if not self.is_stopped:
            self._wait_no_longer()

    def _wait_no_longer(self) -> None:
        self.waiting -= 1
        if self._leader is not None:
            self._leader.waiting -= 1
        bringing = self._leader or self
        if not bringing.waiting:
            assert bringing.found is not None
            bringing.found.stop()

    def follow(self, leader: Prefetch) -> None:
        """Wait for another prefetch that fetches the same first page."""
        self._leader = leader
        self._shared_pages = None
        leader.followers.append(self)
        leader.users += 1
        leader.waiting += not self.is_stopped

    def lead(self, found: FoundPrefix, generation: object) -> None:
        """Start its own stages, which may be stopped already."""
        self._leader = None
        self._shared_pages = None
        self.found = found
        self.generation = generation
        if not self.waiting:
            found.stop()

    def would_find_nothing(self, follower: Prefetch) -> bool:
        """Whether a follower lacks what this one did not find: the same first page, or the same prompt.

        Not if the store failed, unless it did not answer: of the follower's prompt it may list something else.
        """
        if self.found is None or not self.found_nothing or (self.loss is not None and self.loss.listed):
            return False
        return self.found.reach_pages == self.found.base_pages or is_same(self.key, follower.key)


def is_same(one: Key, other: Key) -> bool:
    """Whether two prompts of one namespace are the same. A prefix of a key has all of its data."""
    size_bytes = one.length * one.width_bytes
    return one.length == other.length and one.data[:size_bytes] == other.data[:size_bytes]


def place_of(key: Key, base: Boundary, page_size: int) -> Place:
    """Where a prefetch starts: behind `base`, the end of the prefix on host."""
    width = key.width_bytes
    first_page = bytes(key.data[base.length * width : (base.length + page_size) * width])
    return key.namespace, key.bigram, base.node, base.length, first_page


Result = TypeVar("Result")
Stages: TypeAlias = Generator["Steps | NDArray[np.bool_]", Any, Result]
"""Yields a job and is sent its error, or yields the lengths that this rank votes for and is sent those agreed on."""


class PrefetchStages:
    """The stages of a cache's prefetches.

    Attributes:
        room: host pages for them.
    """

    def __init__(self, shared: TierStore) -> None:
        self._shared = shared
        self._policy = shared.tier.prefetch
        self.room = PrefetchRoom(shared.composition, shared.host, self._policy.max_host_share)

    def run(self, prefetch: Prefetch, found: FoundPrefix, base: Boundary, chain: KeyChain) -> Stages[None]:
        """Fetch to host what the store has of a prompt beyond `base`, which stays locked until the generator ends.

        Args:
            found: describes what is on host, and is filled by the look-up.
            chain: names the prompt's pages in the store.
        """
        shared, key = self._shared, prefetch.key
        receipt, claim = shared.tree.lock(base, Tier.HOST, shared.path_names), None
        prefetch.base = receipt.boundary  # the lock may have cut its node
        try:
            yield from self._look_up(prefetch, found, chain)
            candidates = np.flatnonzero(found.lengths).tolist()
            prefetch.found_nothing = not candidates and not found.is_stopped()
            if not candidates or self._is_unwanted(prefetch):
                return
            claim = self.room.claim_longest(found.base_pages, candidates)
            if claim is None:
                shared.count_drop("prefetch: no room on host", key)
                return
            fetch = Fetch(shared.composition, found, claim)
            yield from self._read_paths(prefetch, fetch)
            length = yield from self._read_trailing(prefetch, fetch)
            if not length:
                return
            yield from self._agree_on_optional(prefetch, fetch, length)
            if not self._is_unwanted(prefetch):
                self._graft(prefetch, fetch, length)
        finally:
            if claim is not None:
                self.room.release(claim)
            if prefetch.ticket is not None:
                shared.ranks.cancel(prefetch.ticket)
            receipt.release()

    def _look_up(self, prefetch: Prefetch, found: FoundPrefix, chain: KeyChain) -> Stages[None]:
        """Reduces `found.lengths` to those that every rank's store has."""
        shared, key = self._shared, prefetch.key
        base = found.base_pages * shared.tree.page_size
        prefetch.ticket = shared.ranks.open_ticket(f"{key.namespace} {base} {key.length}", found.limit_pages)
        error = yield shared.jobs.look_up(found, chain)
        found.is_over = True
        size = shared.tree.page_size
        if found.is_stopped():
            found.lengths = np.zeros(1, np.bool_)
            if self._policy.mode is PrefetchMode.TIMEOUT:  # no answer in time is none
                prefetch.note_loss(0, found.believed_pages * size, found.limit_pages * size)
        else:
            found.is_unanswered = failed = error is not None or found.is_unanswered
            unanswered = found.limit_pages * size if failed else 0
            prefetch.note_loss(found.listed_pages * size, found.silent_pages * size, unanswered)
            if not failed:
                shared.stored_digests.discard(found.digests[found.reach_pages :])
        yield from self._agree(prefetch, found, error)

    def _read_paths(self, prefetch: Prefetch, fetch: Fetch) -> Stages[None]:
        """Read a portion at a time, as long as every rank can continue and a request wants it.

        Reduces `found.lengths` to those that every rank can still restore.
        """
        shared, key, found = self._shared, prefetch.key, fetch.found
        can_read_on = True
        while can_read_on:
            if not fetch.allocate_portion(self._policy.room_pages):
                shared.count_drop("prefetch: no room on host", key)
                found.lengths[fetch.arrived_pages + 1 :] = False
                return
            found.lengths = found.lengths[: fetch.length_pages + 1]
            prefetch.ticket = shared.ranks.open_ticket(f"{key.namespace} {key.length}", fetch.length_pages)
            error = yield shared.jobs.read_paths(fetch)
            is_stopped, fell_short = found.is_stopped(), fetch.arrived_pages < fetch.allocated_pages
            if not is_stopped and (fell_short or error is not None):
                prefetch.note_loss(found.longest_pages * shared.tree.page_size)
            if fell_short and not is_stopped:
                shared.stored_digests.discard(found.digests[fetch.arrived_pages :])
            if fell_short or is_stopped:
                found.lengths[fetch.arrived_pages + 1 :] = False
            yield from self._agree(prefetch, found, error)
            can_read_on = bool(found.lengths[fetch.arrived_pages + 1 :].any()) and not self._is_unwanted(prefetch)

    def _read_trailing(self, prefetch: Prefetch, fetch: Fetch) -> Stages[int]:
        """Read the windows and states of the longest length left; if they are incomplete on a rank, those of the next length.

        Returns the length in pages for which everything required has arrived on every rank; 0 if there is none.
        """
        shared, key, found = self._shared, prefetch.key, fetch.found
        trailing = shared.composition.trailing
        required = {access.name for access in trailing if access.required}
        while found.lengths.any() and not self._is_unwanted(prefetch):
            length = longest(found.lengths)
            if not trailing:
                return length
            if not fetch.claim.allocate_trailing(length):
                shared.count_drop("prefetch: no room on host", key)
                return 0
            found.lengths = found.lengths[: length + 1]
            prefetch.ticket = shared.ranks.open_ticket(f"{key.namespace} {key.length}", length)
            error = yield shared.jobs.read_trailing(fetch, length)
            if not required <= fetch.arrived(length):
                found.lengths[length:] = False
                prefetch.note_loss(length * shared.tree.page_size)
            yield from self._agree(prefetch, found, error)
            if found.lengths[length:].any() and not self._is_unwanted(prefetch):
                return length
            shared.count_drop("prefetch shortened", key)
        return 0

    def _agree_on_optional(self, prefetch: Prefetch, fetch: Fetch, length: int) -> Stages[None]:
        """An optional component is grafted only where it has arrived on every rank."""
        optional = self._shared.composition.optional
        if optional:
            arrived = fetch.arrived(length)
            prefetch.ticket = self._shared.ranks.open_ticket(f"{prefetch.key.namespace} {length} optional", len(optional))
            agreed = yield np.array([True, *(name in arrived for name in optional)])
            prefetch.ticket = None
            fetch.left_out = {name for name, is_there in zip(optional, agreed[1:].tolist(), strict=True) if not is_there}

    def _graft(self, prefetch: Prefetch, fetch: Fetch, length: int) -> None:
        """Put what has arrived into the tree."""
        shared, size = self._shared, self._shared.tree.page_size
        taken = fetch.pages_for(length)
        result = shared.tree.transfers.graft(prefetch.key.prefix(length * size), taken, after=prefetch.base)
        fetch.claim.submit(taken)
        self.room.release(fetch.claim)
        shared.host.free_all(result.unused)
        shared.host.landed(result.boundary)
        found = fetch.found
        if len(found.digests) and found.chain is not None:
            known = KnownPrefix(weights_version=found.chain.weights_version, digests=found.digests[:length])
            shared.known_prefixes.add(result.boundary, known)
        totals, before = shared.totals, prefetch.tokens
        prefetch.measure(shared.tree, length * size)
        totals.prefetched_tokens += max(0, prefetch.tokens - before)
        for name, ids in taken.items():
            totals.prefetched_pages += ids.size
            totals.prefetched_bytes += ids.size * shared.tier.pools[name].value_bytes
        if {access.name for access in shared.composition.paths} <= fetch.arrived(length):
            shared.stored_digests.add(found.digests[found.base_pages : length], written=False)

    def _agree(self, prefetch: Prefetch, found: FoundPrefix, error: str | None) -> Stages[None]:
        """After a job: reduce the found lengths to those that every rank can restore, or to none if it failed."""
        if error is not None:
            self._shared.broke_off("prefetch", error, prefetch.key)
            self._shared.count_drop(f"prefetch failed: {error.partition(':')[0]}", prefetch.key)
            found.lengths = np.zeros(1, np.bool_)
        found.lengths = yield found.lengths
        prefetch.ticket = None
        found.lengths[: found.resumable_pages + 1] = False

    def _is_unwanted(self, prefetch: Prefetch) -> bool:
        """Whether no request wants it any more, or its state was invalidated."""
        return not prefetch.users or prefetch.generation != self._shared.generation(prefetch.key.namespace)
