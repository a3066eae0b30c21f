"""Boundaries (lengths one can resume from) that no request uses and the host lacks, the one unused for longest first.

With write-back they are copied late: when a pool has too few pages whose loss costs nothing, which are those that are free,
being copied, or evictable and of no boundary here. So what a session supersedes by its next turn is never copied. Nothing waits
for a copy: a boundary that is evicted sooner is lost. As far as too many are, copies begin sooner, at last as with
write-through; as far as none is, later.

Where hardly anything that leaves host memory has been read there, it holds many prompts for a short time. It does as well with
half of them for twice the time, at half the copies: so the selective policy leaves out, in turn, prompts that were never there.

Rejected: a search of the eviction order for what has no copy. First in it are the ends of paths, which often are no boundaries,
and what is needed stands above them.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import StaleBoundaryError

if TYPE_CHECKING:
    from unified_tree.controllers.host.host_tier import HostTier
    from unified_tree.controllers.pages.tier_pages import DevicePages, TierPages
    from unified_tree.terms.results import Boundary
    from unified_tree.terms.tier import NodeId
    from unified_tree.tree import UnifiedTree


BACKUP: Final = EffectKind.BACKUP
SELECTIVE: Final = WritePolicy.WRITE_BACK_SELECTIVE
"""Members of an Enum are looked up by a Python function, so they are looked up once."""
MARK_STEP: Final = 0.02
"""By how much a boundary that was lost raises the mark, and one that was not lowers it, before either is weighted."""
TOO_LATE: Final = 0.9
"""With a higher mark boundaries are copied while their requests run."""
FORGOTTEN_AT_ONCE: Final = 2
SELDOM: Final = 20
"""What less than one resumption in so many begins at is not copied."""
RESUMED_FADE: Final = 1024
"""After so many resumptions the counts are halved."""


class Idle(NamedTuple):
    """What one request left.

    Attributes:
        end: where it ended; if that leaf is cut, what is left of it is the end.
        branches: boundaries on the way to its end that other prompts shared, ascending.
        before: the last of the others on the way, the end of its prompt for example; None for none.
        needs: host pages by component that all lacked then.
    """

    end: Boundary
    branches: tuple[Boundary, ...]
    before: Boundary | None
    needs: dict[str, int]


class IdleBoundaries:
    """The idle boundaries of one device, each the end of what one request left.

    Attributes:
        mark: the share of each pool that is to be free, being copied, or needless.
    """

    def __init__(self, tree: UnifiedTree, device: DevicePages, host: TierPages, tier: HostTier) -> None:
        self._tree = tree
        self._effects = tree.transfers.effects
        self._resumability = tree.state.resumability
        self._device = device
        self._host = host
        self._lost_share = tier.lost_share
        self._least_mark = self.mark = tier.low_water
        self._ends: OrderedDict[NodeId, Idle] = OrderedDict()  # by the node that each end is the end of
        self._end_of: dict[Boundary, NodeId] = {}
        self._pages = dict.fromkeys(device.allocators, 0)
        self._bounded = {name: pages for name, pages in device.allocators.items() if pages.page_count is not None}
        self._saved = [c.name for c in tree.components if not c.coverage.is_path]
        self._reads = HostReads(tree, tier.worth_share if tier.write_policy is SELECTIVE else 0.0)
        self._resumed_at_end = self._resumed_before = 1

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._ends)

    @property
    def are_too_late(self) -> bool:
        """Whether room is so short that boundaries have to be copied before the requests that publish them end."""
        return self.mark > TOO_LATE

    def add(self, end: Boundary, branches: tuple[Boundary, ...], before: Boundary | None) -> None:
        """No request uses a boundary any more. Cost: O(nodes of its path that the host lacks). For the others see Idle."""
        self._discard(end.node)
        self._forget_lost()
        if not self._resumability.is_boundary(end):
            return
        try:
            needs = self._needs(end, branches, before)
        except StaleBoundaryError:
            return
        if not needs:
            self._lower_mark()
            return
        self._ends[end.node] = Idle(end, branches, before, needs)
        self._count(needs, 1)
        if before is not None:
            self._end_of[before] = end.node

    def _needs(self, end: Boundary, branches: tuple[Boundary, ...], before: Boundary | None) -> dict[str, int]:
        """Host pages by component that these lack. Raises StaleBoundaryError."""
        needs = self._effects.needs(BACKUP, end, None)
        for boundary in self._inner(branches, before):
            lacking = self._effects.needs(BACKUP, boundary, None)
            for name in self._saved:
                if name in lacking:
                    needs[name] = needs.get(name, 0) + lacking[name]
        return needs

    def _forget_lost(self) -> None:
        """Forget the oldest ones that were evicted, a few at a time: more than are added. And the newest ones, for by some
        orders what was used last goes first."""
        for order in (iter, reversed):
            for node in list(islice(order(self._ends), FORGOTTEN_AT_ONCE)):
                idle = self._ends[node]
                left = self._tree.state.left_of(idle.end)
                if self._resumability.is_boundary(left):
                    if left != idle.end:
                        self._shrink(idle, left)
                    break
                self._take(node)
                self._raise_mark()

    def _shrink(self, idle: Idle, left: Boundary) -> None:
        """An end was cut: a part of it is lost, and so much less is to be copied."""
        self._raise_mark()
        try:
            needs = self._needs(left, idle.branches, idle.before)
        except StaleBoundaryError:  # what was before it is gone
            needs = {}
        self._count(idle.needs, -1)
        self._count(needs, 1)
        self._ends[left.node] = Idle(left, idle.branches, idle.before, needs)

    def _inner(self, branches: tuple[Boundary, ...], before: Boundary | None) -> tuple[Boundary, ...]:
        """What is copied beside an end. Where hardly a prompt goes on from before an end, that is superseded by the end."""
        is_used = self._resumed_before * SELDOM >= self._resumed_at_end
        return (*branches, before) if before is not None and is_used else branches

    def resumed(self, boundary: Boundary) -> None:
        """A request goes on from a boundary: what it leaves supersedes what was left there, or just behind it. Cost: O(1)."""
        end = self._end_of.get(boundary)
        idle = self._ends.get(boundary.node)
        if idle is not None and self._tree.state.left_of(idle.end) == boundary:
            self._resumed_at_end += 1
            self._discard(boundary.node)
        elif end is not None:
            self._resumed_before += 1
            self._discard(end)
        if self._resumed_at_end + self._resumed_before > RESUMED_FADE:
            self._resumed_at_end //= 2
            self._resumed_before = max(1, self._resumed_before // 2)

    def _discard(self, end: NodeId) -> None:
        if end in self._ends:
            self._take(end)

    def _take(self, end: NodeId) -> Idle:
        idle = self._ends.pop(end)
        self._count(idle.needs, -1)
        if idle.before is not None and self._end_of.get(idle.before) == end:
            del self._end_of[idle.before]
        return idle

    def _count(self, needs: dict[str, int], sign: int) -> None:
        pages = self._pages
        for name, count in needs.items():
            if name in pages:
                pages[name] += sign * count

    def is_due(self, copying: dict[str, int]) -> bool:
        """Whether the oldest should be copied now. Cost: O(components).

        Args:
            copying: device pages by component that are being copied.
        """
        if not self._ends:
            return False
        for name, pages in self._bounded.items():
            free_pages = pages.free_pages
            needless = max(0, self._tree.pool(name).evictable_pages - self._pages[name])
            # A pool that shares a budget has no size of its own: it is what it has now, and what is free.
            if free_pages + copying[name] + needless < self.mark * (pages.used_pages + free_pages):
                return True
        return False

    def take_oldest(self, *, may_leave_out: bool) -> list[Boundary]:
        """Remove the oldest and return what is to be copied of it, or of what is left of it, ascending: nothing if it was lost,
        or is left out.

        Cost: O(nodes of its path that the host lacks).
        """
        idle = self._take(next(iter(self._ends)))
        left = [self._tree.state.left_of(boundary) for boundary in (*self._inner(idle.branches, idle.before), idle.end)]
        found = [boundary for boundary in left if self._resumability.is_boundary(boundary)]
        if not found or left[-1] != idle.end:
            self._raise_mark()
        else:
            self._lower_mark()
        if not found:
            return []
        return [] if may_leave_out and self._is_left_out(found[-1]) else found

    def _raise_mark(self) -> None:
        """One was lost."""
        self.mark = min(1.0, self.mark + MARK_STEP * (1 - self._lost_share))

    def _lower_mark(self) -> None:
        """One was not lost."""
        self.mark = max(self._least_mark, self.mark - MARK_STEP * self._lost_share)

    def _is_left_out(self, boundary: Boundary) -> bool:
        """Whether a prompt of which the host has little is not worth what would have to go for it."""
        needs = self._effects.needs(BACKUP, boundary, None)
        lacking = min([needs.get(name, 0) for name in self._reads.paths])
        if 2 * lacking * self._tree.page_size <= boundary.length or all(self._has_room(*need) for need in needs.items()):
            return False
        return self._reads.leaves_out()

    def _has_room(self, name: str, page_count: int) -> bool:
        allocator = self._host.allocators[name]
        return allocator.page_count is None or allocator.free_pages >= page_count


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
