"""The pools of one tier that live in one budget of blocks: which value of them all is the next victim.

Each pool keeps its own order. The victim is the first of their first values, so what was longest of no use goes, whatever its
kind, and memory follows demand. This asks of a policy that its ranks mean the same in every pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.declare.tenants import Room
from unified_tree.nodes.node import Value
from unified_tree.state.shares import OF_ALL, Shares
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.declare.block_budget import BlockBudget
    from unified_tree.declare.tenants import Tenants
    from unified_tree.state.pool import Pool


class SharedPools:
    """The pools of one tier in a budget.

    Args:
        pools: all pools of the tier, by component; those that the budget does not name stay empty.
        budget: how many blocks there are.

    Attributes:
        page_blocks: blocks of a page, by component; 0 for a pool that stays empty.
        shares: what groups of namespaces hold of the budget; None without tenants.

    Raises ConfigurationError for a policy whose ranks do not compare between pools.
    """

    def __init__(self, pools: Sequence[Pool], budget: BlockBudget) -> None:
        self.budget = budget
        self.block_count = budget.block_count
        self.page_blocks = [budget.page_blocks.get(pool.component.name, 0) for pool in pools]
        self._pools = [pool for pool, blocks in zip(pools, self.page_blocks, strict=True) if blocks]
        self._blocks = [blocks for blocks in self.page_blocks if blocks]
        self.shares: Shares | None = None
        for pool in self._pools:
            if not pool.compares_across_pools:
                raise ConfigurationError(
                    f"{pool.policy!r} ranks the values of one pool: in a budget that pools share a policy must set "
                    "compares_across_pools; give page counts instead"
                )

    def divide(self, tenants: Tenants, is_host: bool) -> Shares:
        """Have groups of namespaces divide the budget; returns what they hold of it."""
        units = {pool.component.name: blocks for pool, blocks in zip(self._pools, self._blocks, strict=True)}
        where = f"the budget on {'host' if is_host else 'device'}"
        shares = self.shares = Shares(tenants, Room(where, is_host, self.block_count, units, self.budget.size_bytes))
        for slot, pool in enumerate(self._pools):
            pool.shares, pool.slot = shares, slot
        return shares

    def next_victim(self) -> Value | None:
        """The value that goes first, of whatever pool; None if none can go. Of equals the deeper one goes first, then that of
        the earlier pool. Cost: that of `Pool.next_victim` for each.
        """
        best: Value | None = None
        best_standing = (0.0, 0.0)
        givers = [] if self.shares is None else self.shares.givers(OF_ALL)
        for pool in self._pools:
            first = pool.next_victim() if self.shares is None else pool.first_of_groups(givers)
            if first is None or (best is not None and first.urgency > best.urgency):
                continue
            standing = pool.standing(first)
            if best is None or first.urgency < best.urgency or standing < best_standing:
                best, best_standing = first, standing
            elif standing == best_standing and first.depth < best.depth:
                best = first
        return best

    @property
    def used_blocks(self) -> int:
        """Blocks that the tree holds. Cost: O(components)."""
        return sum([pool.used_pages * blocks for pool, blocks in zip(self._pools, self._blocks, strict=True)])

    @property
    def evictable_blocks(self) -> int:
        """Blocks that evicting could free now. Cost: O(components)."""
        return sum([pool.evictable_pages * blocks for pool, blocks in zip(self._pools, self._blocks, strict=True)])

    @property
    def evicted_blocks(self) -> int:
        """Blocks that left, ever. Cost: O(components)."""
        return sum([pool.evicted_pages * blocks for pool, blocks in zip(self._pools, self._blocks, strict=True)])

    def blocks_of(self, page_counts: Sequence[int]) -> int:
        """Blocks of so many pages by component. Cost: O(components)."""
        return sum([count * blocks for count, blocks in zip(page_counts, self.page_blocks, strict=True)])
