"""Taking values out of the tree when a pool is short.

Victims come from the pool's own order, stranded and spare values first. Evicting a path value deletes its node when no prefix
can pass through it any more. Evicting a window or a state leaves a tombstone.

On request a leaf that is larger than what is needed is cut, and only its end goes. Then no page goes before it has to, which is
least recently used by pages: the front of a prompt serves the next one that shares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from unified_tree.inputs.printable import repr_of
from unified_tree.lookup.matching import once_boundary_from
from unified_tree.misses.causes import eviction_at
from unified_tree.nodes.line import Eviction
from unified_tree.nodes.node import Value
from unified_tree.nodes.order import SPARE
from unified_tree.state.resumability import covered_pages, run_holder
from unified_tree.state.splitting import split
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.results import EvictResult, record
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.state.pool import Pool
    from unified_tree.state.shared_pools import SharedPools
    from unified_tree.state.shares import Share
    from unified_tree.state.tree_state import TreeState


DEVICE: Final = Tier.DEVICE


class Freed:
    """The pages that an eviction freed, by component index, and its counts."""

    def __init__(self, state: TreeState, tier: Tier) -> None:
        if state.ghosts is not None and state.ghosts.victims_of is not None:
            state.ghosts.victims_of = {}
        self._state = state
        self._tier = tier
        self._chunks: dict[int, list[bytes]] = {}
        self._elsewhere: dict[int, list[bytes]] = {}
        self.page_counts = [0] * len(state.components)
        self.victims = 0
        self.tombstones = 0
        self.deleted_nodes = 0
        self.lost = 0

    def add(self, values: list[Value]) -> None:
        """Values that were removed; a sharer's device value has no pages to give."""
        for value in values:
            if value.tier is Tier.HOST or self._state.layout.owner_of[value.component] == value.component:
                self.add_pages(value.component, value.tier, value.pages)

    def add_pages(self, component: int, tier: Tier, pages: bytes) -> None:
        """Pages that the tree has no more."""
        chunks = self._chunks if tier is self._tier else self._elsewhere
        of_component = chunks.get(component)
        if of_component is None:
            chunks[component] = [pages]
        else:
            of_component.append(pages)
        count = len(pages) // PAGE_ID_BYTES
        state = self._state
        (state.host_pools if tier is Tier.HOST else state.device_pools)[component].evicted_pages += count
        if tier is self._tier:
            self.page_counts[component] += count

    def result(self) -> EvictResult:
        """The result so far."""
        by_name = self._state.by_name
        here, elsewhere = by_name(self._chunks), by_name(self._elsewhere) if self._elsewhere else {}
        return record(EvictResult, (here, elsewhere, self.victims, self.tombstones, self.deleted_nodes, self.lost))


def evict(state: TreeState, needs: Mapping[str, int], tier: Tier, cut_pages: int | None) -> EvictResult:
    """See UnifiedTree.evict."""
    for name in needs:
        i = state.layout.index.get(name)
        if i is None or (tier is Tier.DEVICE and state.components[i].shares is not None):
            raise ConfigurationError(f"cannot evict from {repr_of(name)}: it has no {tier.name.lower()} pages of its own")
    freed = Freed(state, tier)
    if state.layout.is_gated:
        cut_pages = None
    for name, count in needs.items():
        _evict_from(state, state.layout.index[name], count, tier, freed, cut_pages)
    return freed.result()


def _evict_from(state: TreeState, i: int, count: int, tier: Tier, freed: Freed, cut_pages: int | None) -> None:
    """Free `count` pages of one pool, retired nodes first, or as many as can be."""
    pool = state.pools(tier)[i]
    eviction: Eviction | None = None
    while freed.page_counts[i] < count:
        if state.retired.is_pending and _reclaim_some(state, i, count, freed):
            continue
        victim = pool.next_victim()
        if victim is None:
            break
        if pool.is_path and pool.component.required and _must_stay(state, victim):
            pool.remove_evictable(victim)
            continue
        eviction = _take_out(state, pool, victim, count - freed.page_counts[i], cut_pages, freed, eviction)


def _take_out(
    state: TreeState, pool: Pool, victim: Value, count: int, cut_pages: int | None, freed: Freed, eviction: Eviction | None
) -> Eviction | None:
    """Remove a victim of a pool, or of a path's that may be cut as many pages of its end as are needed.

    Returns what is remembered of it, as `_book_victim`.
    """
    going = page_count = len(victim.pages) // PAGE_ID_BYTES
    if cut_pages is not None and pool.is_path:
        surplus = 0 if pool.shares is None else pool.surplus_pages(victim)
        if surplus:  # its group keeps its share
            count, cut_pages = min(count, surplus), min(cut_pages, surplus)
        going = min(going, max(count, cut_pages))
    is_whole = going == page_count
    if not is_whole and not _can_shorten(state, victim):  # the value and its place in the order are the lower half's
        split(state, victim.node, victim.node.end - going * state.page_size)
        is_whole = True
    eviction = _book_victim(state, pool, victim, freed, eviction, is_whole=is_whole)
    if is_whole:
        remove_victim(state, victim, freed, eviction)
    else:
        freed.add_pages(victim.component, victim.tier, state.shorten(victim, going, eviction))
        freed.deleted_nodes += 1
    return eviction


def evict_blocks(state: TreeState, count: int, tier: Tier, cut_pages: int | None) -> EvictResult:
    """See UnifiedTree.evict_blocks."""
    shared = state.shared_pools[1] if tier else state.shared_pools[0]
    if shared is None:
        raise ConfigurationError(f"the pools on {tier.name.lower()} share no budget")
    freed = Freed(state, tier)
    if state.layout.is_gated:
        cut_pages = None
    evictions: list[Eviction | None] = [None] * len(state.components)
    while shared.blocks_of(freed.page_counts) < count:
        if state.retired.is_pending and _reclaim_blocks(state, shared, count, freed):
            continue
        victim = shared.next_victim()
        if victim is None:
            break
        i = victim.component
        pool = state.pools(tier)[i]
        if pool.is_path and pool.component.required and _must_stay(state, victim):
            pool.remove_evictable(victim)
            continue
        pages = 0
        if cut_pages is not None and pool.is_path:
            pages = -((shared.blocks_of(freed.page_counts) - count) // _page_blocks(state, shared, victim))
        evictions[i] = _take_out(state, pool, victim, pages, cut_pages, freed, evictions[i])
    return freed.result()


def evict_over_caps(state: TreeState, tier: Tier) -> EvictResult:
    """See UnifiedTree.evict_over_caps."""
    state.note_beneficiary(None)
    freed = Freed(state, tier)
    cut_pages = None if state.layout.is_gated else 1
    pools = state.pools(tier)
    evictions: list[Eviction | None] = [None] * len(pools)
    for owner in pools:
        shares = owner.shares
        while shares is not None and shares.over_cap:
            share = next(iter(shares.over_cap))
            victim = _first_of_room([pool for pool in pools if pool.shares is shares], share)
            if victim is None:
                break
            pool = pools[victim.component]
            if pool.is_path and pool.component.required and _must_stay(state, victim):
                pool.remove_evictable(victim)
                continue
            count = -(-(share.used - share.cap) // shares.page_units[pool.slot])
            i = victim.component
            evictions[i] = _take_out(state, pool, victim, count, cut_pages, freed, evictions[i])
    return freed.result()


def _first_of_room(pools: list[Pool], share: Share) -> Value | None:
    """The value of one group that goes first, of whatever pool of a room. Cost: O(pools)."""
    firsts = [first for pool in pools if (first := pool.first_of_groups([share])) is not None]
    return min(firsts, key=lambda first: (first.urgency, pools[0].standing(first)), default=None)


def _page_blocks(state: TreeState, shared: SharedPools, victim: Value) -> int:
    """Blocks that come free with a page of a path victim: with its node the pages of other paths go, too."""
    if state.host_value_count or not state.components[victim.component].required:
        return shared.page_blocks[victim.component]
    values = victim.node.values(victim.tier)
    return sum([shared.page_blocks[i] for i in range(len(values)) if state.layout.is_path[i] and values[i] is not None])


def _reclaim_blocks(state: TreeState, shared: SharedPools, count: int, freed: Freed) -> bool:
    """Remove some retired nodes; whether that freed blocks."""
    before = blocks = shared.blocks_of(freed.page_counts)
    for _ in range(state.settings.evict_reclaim_limit):
        if blocks >= count or not state.retired.is_pending:
            break
        _remove_retired(state, freed)
        blocks = shared.blocks_of(freed.page_counts)
    state.resumability.settle_share()
    return blocks > before


def _book_victim(
    state: TreeState, pool: Pool, victim: Value, freed: Freed, eviction: Eviction | None, *, is_whole: bool
) -> Eviction | None:
    """Count a victim that is about to go, or to lose its end.

    Returns what is remembered of it, which all victims of one class, pool and call have in common; None without a memory.
    """
    i, tier = victim.component, victim.tier
    ghosts, ages = state.ghosts, state.ages
    share = None if pool.shares is None else pool.shares.of(victim)
    if ghosts is not None and ages is not None:
        before = None if eviction is None else eviction.share
        if share is not None and before is not None and before[0] != share.name:
            eviction = None
        if eviction is None or eviction.urgency < victim.urgency:
            evicted_pages = state.evicted_pages(i, tier) if state.has_budgets else pool.evicted_pages
            why = state.policy.reason(victim) if victim.urgency > SPARE else None
            eviction = Eviction(
                i, tier, state.read_clock(), ghosts.beneficiary, evicted_pages, victim.urgency, why, state.clock
            )
            if share is not None:
                eviction.share = (share.name, share.used, share.units)
            pool.last_eviction = eviction
        ages.evicted(victim, eviction.at_s)
        if ghosts.victims_of is not None:
            ghosts.count_victim(victim.node)
    for hold in victim.holds:
        hold.was_taken = True
    if share is not None and pool.shares is not None:
        pool.shares.count_victim(share.group)
    pool.went(victim, is_whole)
    freed.victims += 1
    freed.lost += not (victim.stranded or victim.spare or victim.copied)
    return eviction


def _can_shorten(state: TreeState, victim: Value) -> bool:
    """Whether a cut needs no node for what goes: the victim is all that its leaf has on either tier."""
    node = victim.node
    if victim.copying or victim.tier is not DEVICE or node.first_child is not None:
        return False
    if state.host_value_count and any(value is not None for value in node.host):
        return False
    return all(value is None or value is victim for value in node.device)


def _reclaim_some(state: TreeState, i: int, count: int, freed: Freed) -> bool:
    """Remove some retired nodes; whether that freed pages of the pool."""
    before = freed.page_counts[i]
    for _ in range(state.settings.evict_reclaim_limit):
        if freed.page_counts[i] >= count or not state.retired.is_pending:
            break
        _remove_retired(state, freed)
    state.resumability.settle_share()
    return freed.page_counts[i] > before


def reclaim(state: TreeState, node_limit: int) -> EvictResult:
    """See UnifiedTree.reclaim."""
    freed = Freed(state, Tier.DEVICE)
    while node_limit > 0 and state.retired.is_pending:
        _remove_retired(state, freed)
        node_limit -= 1
    state.resumability.settle_share()
    return freed.result()


def remove_victim(state: TreeState, value: Value, freed: Freed, eviction: Eviction | None) -> None:
    """Remove a value and what depends on it. Cost: O(components log n), and `settle_limit` nodes of deferred work.

    Args:
        eviction: what is remembered of it; None without a memory.
    """
    node = value.node
    is_path = state.layout.is_path[value.component]
    boundary_from = 0
    remembered = eviction
    if is_path and state.layout.is_gated and eviction is not None:
        boundary_from = once_boundary_from(state, node)
        if value.stranded:  # it is of no use because a window or a state went before
            remembered = eviction_at(state, node, node.end) or eviction
    gone = state.remove(value)
    freed.add(gone)
    if is_path and state.lacks_path(node):
        for other in (*node.device, *node.host):
            if other is not None:
                values = node.host if other.tier is Tier.HOST else node.device
                if values[other.component] is other:  # else it went with its owner
                    freed.add(state.remove(other))
        state.delete(node, remembered, boundary_from)
        freed.deleted_nodes += 1
    else:
        freed.tombstones += 1
        if eviction is not None and state.layout.is_gated:
            for each in gone:
                _note_eviction(state, node, each, eviction)
        state.resumability.update(node, lost_window=_lost_window(state, value))
    if state.layout.is_gated:
        state.resumability.settle_share()


def _note_eviction(state: TreeState, node: Node, value: Value, eviction: Eviction) -> None:
    """Remember that a node lost a window or a state for good."""
    i, page_count = value.component, value.page_count
    is_alone = value.tier is DEVICE and not state.host_value_count
    if state.layout.is_gate[i] and (is_alone or covered_pages(node, i) < page_count):
        node.note_lost(i, page_count, eviction)


def _lost_window(state: TreeState, gone: Value) -> bool:
    """Whether a required window has nothing left at the node of a value that went."""
    node = gone.node
    for i in (gone.component, *state.layout.sharers_of[gone.component]):
        if state.layout.is_required_window[i] and run_holder(node, i) is None:
            return True
    return False


def _must_stay(state: TreeState, victim: Value) -> bool:
    """Whether the node of a path victim would be deleted with it although it has locks or children.

    Such a victim leaves the order. It returns when that lock is released or a host copy arrives.
    """
    node = victim.node
    if len(state.components) == 1 and not state.host_value_count:
        return False
    if state.host_value_count:  # else there is nothing elsewhere
        elsewhere = node.device if victim.tier is Tier.HOST else node.host
        sharers = () if victim.tier is Tier.HOST else state.layout.sharers_of[victim.component]
        going = (victim.component, *sharers)
        if all(elsewhere[i] is not None for i in going if state.components[i].required):
            return False
    if _has_locks(node.device) or (state.host_value_count and _has_locks(node.host)):
        state.blocked.add(node)
        return True
    return node.first_child is not None


def _has_locks(values: tuple[Value | None, ...]) -> bool:
    """Whether one of these values is locked."""
    return any(value is not None and value.locks for value in values)


def _remove_retired(state: TreeState, freed: Freed) -> None:
    """Look at one retired node, and delete it if nothing on it is locked. Cost: O(components + log n)."""
    retired = state.retired
    node = retired.pop_unlocked()
    if node is not None:
        if node.parent is not None:
            _delete(state, node, freed)
        return
    node = retired.walk()
    if node is not None and not _delete(state, node, freed):  # a node that goes moves the walk on by itself
        retired.pass_over(node)


def _delete(state: TreeState, node: Node, freed: Freed) -> bool:
    """Delete a leaf on which nothing is locked; whether that was done."""
    if node.first_child is not None:
        return False
    values = [value for tier in (Tier.DEVICE, Tier.HOST) for value in node.values(tier) if value is not None]
    if any(value.locks for value in values):
        return False
    for value in values:
        if node.values(value.tier)[value.component] is value:  # else it went with its owner
            freed.add(state.remove(value))
    freed.deleted_nodes += 1
    state.delete(node, None, 0)
    return True
