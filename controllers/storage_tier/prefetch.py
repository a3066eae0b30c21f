"""One prompt's prefetch as its request sees it: who waits for it, for how long, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.misses.causes import StoreLoss
from unified_tree.native.chosen import agreement
from unified_tree.terms.results import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Hashable

    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.prefetch_stages import Stages
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

    def note_loss(self, listed: int, unanswered: int) -> None:
        """A fault of the store has kept something from the prompt; lengths as in StoreLoss."""
        before = self.loss
        if before is not None:
            listed, unanswered = max(listed, before.listed), max(unanswered, before.unanswered)
        if listed or unanswered:
            self.loss = StoreLoss(listed, unanswered)

    def share_loss(self, loss: StoreLoss, page_size: int) -> None:
        """The prefetch that it follows has lost this to a fault of the store, and it is not tried again for itself."""
        listed = min(loss.listed, self.shared_pages(page_size) * page_size) if loss.listed else 0
        self.note_loss(listed, (self.key.length - 1) // page_size * page_size if loss.unanswered else 0)

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
