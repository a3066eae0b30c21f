"""The tree's data, and the only two methods by which values are added and removed.

`place` and `remove` maintain the pools, the eviction orders and the child counts, so nothing else has to. `resumability`
maintains what a change means for the boundaries (lengths one can resume from) around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.declare.component import Component
from unified_tree.declare.component_layout import ComponentLayout
from unified_tree.declare.owners import SHARED, Owners
from unified_tree.declare.tenants import Room
from unified_tree.memory.ages import Ages
from unified_tree.memory.ghosts import Ghosts
from unified_tree.nodes.children import detach
from unified_tree.nodes.claim import Claim, Claimant, Hold
from unified_tree.nodes.node import Node, NodeTable, Root, Value
from unified_tree.policies.table import guarded
from unified_tree.state.pool import Pool
from unified_tree.state.resumability import Resumability
from unified_tree.state.retiring import Retired
from unified_tree.state.shared_pools import SharedPools
from unified_tree.state.shares import Shares
from unified_tree.state.state_view import StateView
from unified_tree.terms.results import Boundary
from unified_tree.terms.tier import HOST, PAGE_ID_BYTES, NodeId, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.block_budget import BlockBudget
    from unified_tree.declare.settings import TreeSettings
    from unified_tree.declare.tenants import Tenants
    from unified_tree.nodes.line import Eviction
    from unified_tree.policies.eviction_policy import EvictionPolicy
    from unified_tree.policies.standard_policy import Standard
    from unified_tree.policies.tree_view import TreeView

FOLLOWED_BYTES: Final = 64 << 20
"""The memory of evictions for a policy that follows texts, where `ghost_bytes` is 0."""
PolicyMaker = Callable[["TreeView"], "EvictionPolicy | Standard"]


class TreeState:
    """Nodes, pools and the logical clock of one tree.

    Attributes:
        layout: what follows from its components; `components`, `page_size`: of it.
        has_budgets: whether any share one.
        shared_pools: by tier, the pools that share a budget; None where each has a page count of its own.
        blocked: nodes with a path value that is not evictable because something else at the node is locked.
        last_node_id: the largest id given to a node.
        retired: invalidated namespaces whose nodes may still exist.
        resumability: which nodes are boundaries, and which values are stranded.
        settings: every bound.
        tenants: the groups of namespaces; None without. `groups`: their indices by namespace, or what names it; `rooms`:
            what each holds of what.
        owners: of the namespaces that share; None if there are none.
        texts: what was evicted, and the lines of all texts; None if neither causes nor the policy need it.
        ghosts: the same, where it explains misses; None if that is not wanted.
        ages: of what is used and evicted; None likewise.
        policy: says which value goes next; `listener`: the same, if it wants the events of texts; None if not.
            `lock_listener`: likewise those of locks.
        arrival: what it answered to the arrival of the request that is served now.
        claimant: the session whose nodes are being made; None for none. `has_claims`: whether any session ever made one.
        claimants, holds: the open sessions, and what open hints hold.
        clock: counts operations; a later use has a larger stamp. `now_s`: what the clock of `ages` and evictions showed when it
            was read last.
        is_released: whether the tree was deleted.
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        page_counts: tuple[Mapping[str, int], Mapping[str, int]],
        budgets: tuple[BlockBudget | None, BlockBudget | None],
        policy: PolicyMaker,
        settings: TreeSettings,
        time_s: Callable[[], float],
        tenants: Tenants | None = None,
    ) -> None:
        self.page_size = page_size
        self.layout = ComponentLayout(components, page_size)
        self.components = self.layout.components
        self.settings = settings
        view = self._view = StateView(self.layout, settings)
        made = policy(view)
        guards = [guarded(made, view) for _ in range(2 * len(self.components))]
        self.device_pools = [
            Pool(c, Tier.DEVICE, guard, page_counts[0].get(c.name))
            for c, guard in zip(self.components, guards[::2], strict=True)
        ]
        self.host_pools = [
            Pool(c, Tier.HOST, guard, page_counts[1].get(c.name))
            for c, guard in zip(self.components, guards[1::2], strict=True)
        ]
        self.policy = guards[0]  # what raises in an event of texts counts for the first pool
        self.listener = self.policy if self.policy.hears_texts else None
        self.lock_listener = self.policy if self.policy.hears_locks else None
        of_device, of_host = budgets
        self.shared_pools = (
            None if of_device is None else SharedPools(self.device_pools, of_device),
            None if of_host is None else SharedPools(self.host_pools, of_host),
        )
        view.device_pools, view.host_pools, view.shared_pools = self.device_pools, self.host_pools, self.shared_pools
        self.has_budgets = of_device is not None or of_host is not None
        self.tenants = tenants
        self.groups: dict[str, int] = {} if tenants is None else tenants.index()
        self.owners = None if tenants is None or not tenants.are_sharing else Owners(tenants)
        self.rooms = [] if tenants is None else [*self._divide(tenants, Tier.DEVICE), *self._divide(tenants, Tier.HOST)]
        self.host_value_count = 0
        self.nodes = NodeTable()
        self.roots: dict[tuple[str, bool], Root] = {}
        self.blocked: set[Node] = set()
        self.clock = 0
        self.mark = object()  # what keys that were walked remember of this tree
        self.last_node_id = NodeId(0)
        self.retired = Retired()
        self.resumability = Resumability(self.layout, self.nodes, self.device_pools, self.host_pools, settings.settle_limit)
        self.texts: Ghosts | None = None
        self.ghosts: Ghosts | None = None
        self.ages: Ages | None = None
        self.arrival: object = None
        self._time_s = time_s
        self.now_s = 0.0
        self._is_at_once = False
        self._is_read = False
        self.claimant: Claimant | None = None
        self.has_claims = False
        self.claimants: set[Claimant] = set()
        self.holds: set[Hold] = set()
        self.is_released = False
        self._remember(time_s)

    def _divide(self, tenants: Tenants, tier: Tier) -> list[Shares]:
        """Have the groups divide the rooms of a tier; returns what they hold of each."""
        tenants.check([component.name for component in self.components])
        pools, shared, is_host = self.pools(tier), self.shared_pools[tier], tier is HOST
        if shared is not None:
            return [shared.divide(tenants, is_host)]
        owners = [pool for i, pool in enumerate(pools) if is_host or self.layout.owner_of[i] == i]
        sizes = [(pool.ledger.page_count or 0) * pool.component.page_bytes for pool in owners]
        tier_bytes = sum(sizes) if all(sizes) else 0
        rooms = []
        for pool in owners:
            name = pool.component.name
            where = f"the {tier.name.lower()} pool of {name}"
            room = Room(where, is_host, pool.ledger.page_count, {name: 1}, tier_bytes)
            shares = Shares(tenants, room)
            if room.unit_count is not None or max(tenants.caps(room)) >= 0:  # else there is nothing to divide
                pool.shares = shares
                rooms.append(shares)
        return rooms

    def _remember(self, time_s: Callable[[], float]) -> None:
        """Make the memory of what was evicted, for causes of misses, or for a policy that follows texts."""
        settings = self.settings
        size = settings.ghost_bytes or (FOLLOWED_BYTES if self.policy.follows_texts else 0)
        if size:
            self.texts = Ghosts(self.page_size, size, settings.faded_ghosts, time_s, is_gated=self.layout.is_gated)
        if settings.ghost_bytes:
            self.ghosts = self.texts
            self.ages = Ages(len(self.components), self.read_clock())

    def at_once(self, namespace: str) -> None:
        """As `note_beneficiary`; and all up to `later` happens at one time: the clock is read only once."""
        self.note_beneficiary(namespace)
        self._is_at_once, self._is_read = True, False

    def later(self) -> None:
        """The call ends, and the next reading of the clock is a new one."""
        self._is_at_once = self._is_read = False

    def read_clock(self) -> float:
        """The time, in seconds. The clock is the caller's, and may raise."""
        if not self._is_read:
            self.now_s = self._time_s()
            self._is_read = self._is_at_once
        return self.now_s

    def note_beneficiary(self, namespace: str | None) -> None:
        """Evictions make room for a namespace from now on; None for no namespace."""
        if self.ghosts is not None:
            self.ghosts.beneficiary = namespace

    def tick(self) -> None:
        """An operation begins: what it uses or makes has a later stamp."""
        clock = self.clock + 1
        if self.ages is not None:
            self.ages.tick(clock, self.read_clock())
        self.clock = self._view.now = clock

    def by_name(self, parts: dict[int, list[bytes]]) -> dict[str, NDArray[np.int64]]:
        """Page ids by component name, given by component index and as bytes in several parts."""
        return {self.components[i].name: np.frombuffer(b"".join(chunks), np.int64) for i, chunks in parts.items()}

    def pools(self, tier: Tier) -> list[Pool]:
        """The pools of one tier, by component index. A sharer's device pool stays empty."""
        return self.host_pools if tier is HOST else self.device_pools

    def evicted_pages(self, component: int, tier: Tier) -> int:
        """How much a pool has lost ever, in its pages; of a shared budget all that was lost there, rounded down."""
        shared = None if not self.has_budgets else self.shared_pools[1] if tier else self.shared_pools[0]
        if shared is None:
            return self.pools(tier)[component].evicted_pages
        return shared.evicted_blocks // shared.page_blocks[component]

    def new_node(self, parent: Node, edge: bytes, end: int) -> Node:
        """A node with an id never used before, not yet among its parent's children."""
        self.last_node_id = NodeId(self.last_node_id + 1)
        node = Node(self.last_node_id, parent, edge, end, len(self.components))
        self.nodes.add(node)
        return node

    def retire(self, namespace: str | None) -> None:
        """The roots of one namespace, or all, leave the tree; their nodes are removed later. Cost: O(1)."""
        if namespace is None:
            table, self.roots = self.roots, {}
            self.nodes.age += 1
            if self.texts is not None:
                self.texts.retired(table, None)
        else:
            table = {}
            for name in ((namespace, False), (namespace, True)):
                root = self.roots.pop(name, None)
                if root is not None:
                    root.is_retired = True
                    table[name] = root
                if self.texts is not None:
                    self.texts.retired({} if root is None else {name: root}, name)
        self.retired.add(table)

    def group_of(self, namespace: str) -> int:
        """The index of a namespace's group; 0 for one that no group names, and without tenants."""
        tenants = self.tenants
        if tenants is None:
            return 0
        return self.groups.get(namespace if tenants.named_by is None else tenants.named_by(namespace), 0)

    def root_of(self, name: tuple[str, bool]) -> Root:
        """The root of a (namespace, bigram) pair, made on demand."""
        root = self.roots.get(name)
        if root is None:
            owners = None if self.owners is None or name[0] != SHARED else self.owners.groups
            root = Root(name, len(self.components), self.nodes.age, self.group_of(name[0]), owners)
            self.roots[name] = root
            if self.texts is not None:
                root.line = self.texts.line_of_root(name)
        return root

    def place(
        self,
        node: Node,
        component: int,
        tier: Tier,
        pages: bytes,
        priority: int = 0,
        *,
        are_taken: bool = False,
        is_spare: bool = False,
    ) -> Value:
        """Give `node` a value it lacks. The pages were checked, perhaps marked as the tree's, too; a sharer's device value
        takes none.
        """
        pool = self.pools(tier)[component]
        value = Value(node, component, tier, pages, self.clock, priority)
        value.spare = is_spare
        on_host = node.host[component]
        if on_host is not None:  # the device value keeps the run of both
            value.run_pages = on_host.run_pages
        other = on_host if tier is not HOST else node.device[component]
        if other is not None:
            value.demoted = tier is HOST and other.demoted
            if other.holds:
                value.holds = other.holds
                for hold in other.holds:
                    hold.values.append(value)
        node.set_value(component, tier, value)
        if node.lost is not None:
            lost = node.lost_of(component)
            if lost is not None and lost.page_count <= value.page_count:
                node.forget_lost(component)
        if tier is HOST:
            self.host_value_count += 1
        if self.layout.is_path[component]:
            self._link_path(value)
        if tier is HOST or self.layout.owner_of[component] == component:
            pool.take(value, are_taken=are_taken)
            pool.created(value)
        if self.host_value_count:
            self.note_copies(node, component)
        return value

    def extend(self, value: Value, front: bytes) -> None:
        """Put older pages before a suffix. The pages were checked."""
        value.pages = front + value.pages
        if value.tier is HOST or self.layout.owner_of[value.component] == value.component:
            pool = self.pools(value.tier)[value.component]
            count = len(front) // PAGE_ID_BYTES
            pool.ledger.acquire(front)
            pool.hold(value, count)
            if value.locks:
                pool.protected_pages += count
            if value.stranded:
                pool.stranded_pages += count
            if value.copied:
                pool.copied_pages += count
        if self.host_value_count:
            self.note_copies(value.node, value.component)

    def set_spare(self, value: Value, is_spare: bool) -> None:
        """Let a value go before all that is kept for a boundary, or keep it from now on."""
        if value.spare != is_spare:
            value.spare = is_spare
            if value.tier is HOST or self.layout.owner_of[value.component] == value.component:
                self.pools(value.tier)[value.component].reorder(value)

    def shorten(self, value: Value, page_count: int, eviction: Eviction | None) -> bytes:
        """Take pages off the end of a leaf that has an evictable path value on device and nothing else; returns their ids.

        The leaf keeps its id, so that a boundary before the cut stays, and what was used of it its recency.

        Args:
            eviction: what is remembered of it; None without a memory.
        """
        node, pool = value.node, self.device_pools[value.component]
        tokens = page_count * self.page_size
        width = len(node.edge) // (node.end - node.start)
        gone, value.pages = value.pages[-page_count * PAGE_ID_BYTES :], value.pages[: -page_count * PAGE_ID_BYTES]
        pool.remove_evictable(value)
        if self.texts is not None:
            self.texts.remember_end(node, node.end - tokens, node.edge[-tokens * width :], eviction, 0)
        node.edge = node.edge[: -tokens * width]
        node.end -= tokens
        if value.marks is not None:
            kept = {length: mark for length, mark in value.marks.items() if length <= node.end}
            value.marks = kept if len(kept) > 1 else None
        pool.ledger.release(gone)
        pool.hold(value, -page_count)
        if value.stranded:
            pool.stranded_pages -= page_count
        pool.add_evictable(value)
        return gone

    def left_of(self, boundary: Boundary) -> Boundary:
        """What is left of a boundary whose leaf was shortened: one at its end now. Any other stays as it is. Cost: O(1)."""
        node = self.nodes.get(boundary.node)
        return boundary if node is None or node.end >= boundary.length else Boundary(node.id, node.end)

    def remove(self, value: Value) -> list[Value]:
        """Remove an unlocked value from its node, and on device the sharers of its pages. Returns all removed values, owner
        first.
        """
        assert value.locks == 0 and value.locked_by is None, "a locked value is never removed"
        node, component, tier = value.node, value.component, value.tier
        pool = self.pools(tier)[component]
        gone = [value]
        node.set_value(component, tier, None)
        if tier is HOST:
            self.host_value_count -= 1
            if not value.was_read:
                pool.unread_pages += value.page_count
        else:
            on_host = node.host[component]
            if on_host is not None:
                on_host.run_pages = value.run_pages
                self.host_pools[component].outlives(on_host, value)
            for sharer in self.layout.sharers_of[component]:
                shared = node.device[sharer]
                if shared is not None:
                    gone += self.remove(shared)
        if self.layout.is_path[component]:
            self._unlink_path(value)
        if tier is HOST or self.layout.owner_of[component] == component:
            pool.remove(value)
        if tier is HOST or self.host_value_count:
            self.note_copies(node, component)
        return gone

    def note_copies(self, node: Node, component: int) -> None:
        """Update which values are on both tiers, after a component's values at `node` have changed.

        A device page is on host only if all its required sharers' state is, too. Cost: O(sharers).
        """
        owner = self.layout.owner_of[component]
        on_device, on_host = node.device[owner], node.host[component]
        if on_device is not None:
            self._set_copied(on_device, self._is_copied(node, owner))
        if on_host is not None:
            there = node.device[component]
            self._set_copied(on_host, there is not None and there.page_count >= on_host.page_count)

    def _is_copied(self, node: Node, owner: int) -> bool:
        there, copy = node.device[owner], node.host[owner]
        if there is not None and (copy is None or copy.page_count < there.page_count):
            return False
        for i in self.layout.sharers_of[owner]:
            there, copy = node.device[i], node.host[i]
            if there is None or not self.components[i].required:
                continue
            if copy is None or copy.page_count < there.page_count:
                return False
        return True

    def _set_copied(self, value: Value, copied: bool) -> None:
        if value.copied == copied:
            return
        value.copied = copied
        pool = self.pools(value.tier)[value.component]
        pool.copied_pages += value.page_count if copied else -value.page_count
        if pool.copied_first or pool.weighs_copies:
            pool.reorder(value)

    def _link_path(self, value: Value) -> None:
        """A path value was added as a leaf of its tier: its parent is not a leaf any more."""
        node, component, tier = value.node, value.component, value.tier
        parent = node.parent
        assert parent is not None
        above = (parent.host if tier is HOST else parent.device)[component]
        if above is not None:
            above.children += 1
            if above.is_placed:
                self.pools(tier)[component].remove_evictable(above)
        if tier is HOST:
            self._enter_paths(node)
        else:
            self._enter_again(node.host[component])

    def _enter_paths(self, node: Node) -> None:
        """Host copies were added beside a node's device values, which may be evictable again."""
        for i in self.layout.on_device.paths:
            self._enter_again(node.device[i])

    def _enter_again(self, value: Value | None) -> None:
        if value is not None and not (value.is_placed or value.locks or value.children):
            self.pools(value.tier)[value.component].add_evictable(value)

    def _unlink_path(self, value: Value) -> None:
        """A path value was removed: its parent inherits its recency, and may be a victim if it is a leaf now."""
        node, component, tier = value.node, value.component, value.tier
        parent = node.parent
        assert parent is not None
        above = (parent.host if tier is HOST else parent.device)[component]
        if above is not None:
            above.children -= 1
            if value.touched > above.touched:
                above.touched = value.touched
                above.policy_state = value.policy_state
            above.priority = max(above.priority, value.priority)
            above.score = max(above.score, value.score)
            above.hits += value.hits
            if (tier or self.layout.owner_of[component] == component) and not (above.locks or above.children):
                self.pools(tier)[component].add_evictable(above)

    def lacks_path(self, node: Node) -> bool:
        """Whether a required path component of this node is on no tier, so that no prefix can pass through it."""
        return any(node.device[i] is None and node.host[i] is None for i in self.layout.required_paths)

    def delete(self, node: Node, eviction: Eviction | None, boundary_from: int) -> None:
        """Delete a node without values and children. Cost: O(log siblings).

        Args:
            eviction: why; None if its namespace was invalidated.
            boundary_from: see `matching.once_boundary_from`.
        """
        parent = node.parent
        assert parent is not None and node.first_child is None
        if self.texts is not None:
            self.texts.remember(node, eviction, boundary_from)
        if node.claim is not None:
            self._move_tips(node.claim, parent.claim)
        self.retired.removed(self.nodes, node)
        if self.layout.is_gated:
            self.resumability.deleted(node)
        detach(parent, node, self.page_size)
        self.nodes.remove(node.id)
        self.blocked.discard(node)
        node.parent = None
        if isinstance(parent, Root) and parent.first_child is None and self.roots.get(parent.name) is parent:
            del self.roots[parent.name]
            if self.texts is not None:
                self.texts.root_left(parent)

    def _move_tips(self, claim: Claim, above: Claim | None) -> None:
        """A claimed leaf is about to go: sessions that ended there go on from its parent. Cost: O(1)."""
        claim.node = None
        if above is not None:
            claim.moved_to = above
            above.tips += claim.tips
            above.live += claim.tips - (1 if claim.live else 0)

    def reclass(self, node: Node) -> None:
        """The class of what a node has may have changed. Cost: O(components), and O(log n) for what has."""
        for value in node.device:
            if value is not None and value.is_placed:
                self.device_pools[value.component].reclass(value)
        if self.host_value_count:
            for value in node.host:
                if value is not None and value.is_placed:
                    self.host_pools[value.component].reclass(value)

    def demote(self, value: Value) -> None:
        """Let a value go before those that others go on from, until it is used again."""
        if not value.demoted:
            value.demoted = True
            self.pools(value.tier)[value.component].reclass(value)

    def release(self) -> None:
        """Cut the references between the parts of a deleted tree; the garbage collector does not see these cycles."""
        self.is_released = True
        self.nodes.release()
        for claimant in self.claimants:
            claimant.forget()
        for hold in self.holds:
            hold.forget()
        for room in self.rooms:
            room.release()
        if self.texts is not None:
            self.texts.release()
