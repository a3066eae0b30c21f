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
        number: counted from 0, as they were begun.
        is_wanted: whoever asked for it may still have a use for it.
        deadline: when its request stops waiting, in the clock's seconds, None before it is begun; `stopped_at` when its request
            stopped, if it has.
        had_tokens: what could be resumed over device and host when it was asked for, None before that is known.
        tokens: by how much that has grown so far.
        place: what it is bringing first; None for one that waits for another, its `leader`, and once it has ended.
        followers: prefetches that wait for this one; `users` of these and itself that are wanted, `waiting` of those that
            have not stopped waiting.
        is_broken_off: nobody waited for it any more at some time: nothing is begun for it any more.
        found, fetch: what the store has, and what is being read.
        ticket, vote: what the step under way will vote on, and what has been voted on and is not decided.
        found_nothing: the store had nothing to bring, as it seemed.
    """

    def __init__(self, number: int, key: Key) -> None:
        self.number = number
        self.key = key
        self.is_wanted = True
        self.deadline: float | None = None
        self.stopped_at: float | None = None
        self.had_tokens: int | None = None
        self.tokens = 0
        self.place: Place | None = None
        self.leader: Prefetch | None = None
        self.followers: list[Prefetch] = []
        self.users = 1
        self.waiting = 1
        self.is_broken_off = False
        self.generation: object = None
        self.found: FoundPrefix | None = None
        self.fetch: Fetch | None = None
        self.found_nothing = False
        self.receipt: Receipt | None = None
        self.ticket: int | None = None
        self.vote: int | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether its request has stopped waiting."""
        return self.stopped_at is not None

    def stop(self, now: float) -> None:
        """Its request waits no longer. When nobody does who waited for the same, it ends with what it has. Cost: O(1)."""
        if self.stopped_at is None:
            self.stopped_at = now
            if self.is_wanted:
                self._wait_no_longer()

    def cancel(self) -> None:
        """Its request has no use for it any more; when nobody has, what it has is not used either. Cost: O(1)."""
        assert self.is_wanted
        self.is_wanted = False
        (self.leader or self).users -= 1
        if not self.is_stopped:
            self._wait_no_longer()

    def _wait_no_longer(self) -> None:
        self.waiting -= 1
        bringing = self
        if self.leader is not None:
            bringing = self.leader
            bringing.waiting -= 1
        if not bringing.waiting:
            bringing.break_off()

    def break_off(self) -> None:
        """Ask for nothing more, and read nothing more."""
        self.is_broken_off = True
        for part in (self.found, self.fetch):
            if part is not None:
                part.stop = True

    def follow(self, leader: Prefetch) -> None:
        """Wait for another that brings the same page first."""
        self.leader = leader
        leader.followers.append(self)
        leader.users += 1
        leader.waiting += not self.is_stopped

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
