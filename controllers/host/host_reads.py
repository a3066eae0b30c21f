"""How much of what leaves host memory had been read there, and which new prompts are not copied for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unified_tree.tree import UnifiedTree

MOST_LEFT_OUT: Final = 0.67
"""No more of the new prompts are left out, so that it is seen when they are worth it again."""


class HostReads:
    """How often what left host memory had been read there, lately; and which new prompts are left out for that.

    Attributes:
        paths: the required paths.
        worth_share: see HostTier.
    """

    def __init__(self, tree: UnifiedTree, worth_share: float) -> None:
        self.paths = [c.name for c in tree.components if c.required and c.coverage.is_path and c.shares is None]
        self._pool = tree.state.host_pools[tree.state.layout.index[self.paths[0]]]
        self.worth_share = worth_share
        self._evicted = 0
        self._unread = 0
        self._due = 0.0

    @property
    def read_share(self) -> float:
        """The share of the pages that left which had been read; 1.0 while none has left. Cost: O(1)."""
        pool = self._pool
        evicted, unread = pool.evicted_pages - self._evicted, pool.unread_pages - self._unread
        if evicted <= 0:
            return 1.0
        if evicted > (pool.ledger.page_count or evicted):  # what is older than a pool counts half
            self._evicted += evicted // 2
            self._unread += unread // 2
        return 1.0 - unread / evicted

    def leaves_out(self) -> bool:
        """Whether to leave out the next new prompt, in turn. Cost: O(1)."""
        if not self.worth_share:
            return False
        self._due += min(MOST_LEFT_OUT, max(0.0, 1.0 - self.read_share / self.worth_share))
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True
