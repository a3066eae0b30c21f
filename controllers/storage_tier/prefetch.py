"""One prompt's prefetch, as `Prefetching` keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier.fetch import Fetch
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Receipt

Place = tuple[str, bool, int, int, bytes]
"""Namespace, view, node and length of what is on host, and the first page that is not."""


class Prefetch:
    """One prompt's prefetch.

    Attributes:
        is_wanted: whoever asked for it may still have a use for it.
        deadline: when its request stops waiting, in the clock's seconds; `stopped_at` when it was asked to end, if it was.
        had_tokens: what could be resumed over device and host when it was asked for, None before that is known.
        tokens: by how much that has grown so far.
        place: what it is bringing first; None for one that waits for another, its `leader`, and once it has ended.
        followers: prefetches that wait for this one; `users` of these and itself that are wanted.
        found, fetch: what the store has, and what is being read.
        ticket, vote: what the step under way will vote on, and what has been voted on and is not decided.
        found_nothing: the store had nothing to bring, as it seemed.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.is_wanted = True
        self.deadline = float("inf")
        self.stopped_at: float | None = None
        self.had_tokens: int | None = None
        self.tokens = 0
        self.place: Place | None = None
        self.leader: Prefetch | None = None
        self.followers: list[Prefetch] = []
        self.users = 1
        self.generation: object = None
        self.found: FoundPrefix | None = None
        self.fetch: Fetch | None = None
        self.found_nothing = False
        self.receipt: Receipt | None = None
        self.ticket: int | None = None
        self.vote: int | None = None
        self.has_ended = False

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to end with what it has."""
        return self.stopped_at is not None

    def stop(self, now: float) -> None:
        """Let it end with what it has."""
        if self.stopped_at is None:
            self.stopped_at = now
            if self.fetch is not None:
                self.fetch.stop = True

    def follow(self, leader: Prefetch) -> None:
        """Wait for another that brings the same page first."""
        self.leader = leader
        leader.followers.append(self)
        leader.users += 1

    def is_in_vain_for(self, follower: Prefetch) -> bool:
        """Whether a follower would find nothing either: it lacks the same first page, or is the same prompt."""
        found = self.found
        if found is None or not self.found_nothing:
            return False
        return found.reach_pages == found.base_pages or self.key.data == follower.key.data


def place_of(key: Key, base: Boundary, page_size: int) -> Place:
    """Where what a prefetch brings begins."""
    width = key.width_bytes
    first_page = key.data[base.length * width : (base.length + page_size) * width]
    return key.namespace, key.bigram, base.node, base.length, first_page
