"""The invariants of a tree, one small function each. They only read, and yield every violation.

Each invariant recomputes from the nodes what the tree maintains incrementally. `UnifiedTree.check()` collects all violations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.declare.owners import owner_at
from unified_tree.inputs.arguments import INT64_BYTES
from unified_tree.nodes.children import SiblingPlace, child_at, first_page
from unified_tree.nodes.node import Node, Value, group_of
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.locks.locks import Locks
    from unified_tree.state.tree_state import TreeState

TIERS = (Tier.DEVICE, Tier.HOST)


class Violation(NamedTuple):
    """A broken invariant and its place."""

    law: str
    what: str


def violations(state: TreeState, locks: Locks) -> Iterator[Violation]:
    """Every broken invariant. Cost: O(tree)."""
    for law in LAWS:
        for what in law(state, locks):
            yield Violation(law.__name__, what)


def _nodes(state: TreeState) -> Iterator[Node]:
    retired = (node.root for node in state.nodes if node.root is not None)
    pending: list[Node] = list(dict.fromkeys([*state.roots.values(), *retired]))
    while pending:
        node = pending.pop()
        pending.extend(node.children())
        if node.parent is not None:
            yield node


def _values(state: TreeState, tier: Tier) -> Iterator[Value]:
    for node in _nodes(state):
        for value in node.values(tier):
            if value is not None:
                yield value


def _owned(state: TreeState, tier: Tier) -> Iterator[Value]:
    return (v for v in _values(state, tier) if tier is Tier.HOST or state.layout.owner_of[v.component] == v.component)


def structure(state: TreeState, _locks: Locks) -> Iterator[str]:
    """Nodes stand where their first page puts them, have whole pages, and are found by their ids; no root is empty."""
    for name, root in state.roots.items():
        if root.first_child is None:
            yield f"root {name} has no children"
    seen = set()
    for node in _nodes(state):
        seen.add(node.id)
        parent = node.parent
        assert parent is not None
        tokens = node.end - parent.end
        width = INT64_BYTES * (2 if node.root is not None and node.root.name[1] else 1)
        if tokens <= 0 or tokens % state.page_size or len(node.edge) != tokens * width:
            yield f"{node} is {len(node.edge)} bytes long for {tokens} tokens"
        elif child_at(parent, first_page(node, state.page_size)) is not node:
            yield f"{node} is not where its first page says"
        if node.root is not (parent if parent.parent is None else parent.root):
            yield f"{node} is of another namespace than its parent"
        if sum(1 for _ in node.children()) != node.child_count:
            yield f"{node} counts {node.child_count} children"
        if state.nodes.get(node.id) is not node:
            yield f"{node} is not known by its id"
    known = {node.id for node in state.nodes}
    if seen != known:
        yield f"ids known but not in the tree: {sorted(known - seen)}"


def shapes(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A path value covers its node, a window a suffix of it, a state one page; a sharer's pages are its owner's last."""
    for tier in TIERS:
        for value in _values(state, tier):
            node, name = value.node, state.components[value.component].name
            pages = (node.end - node.start) // state.page_size
            if node.values(tier)[value.component] is not value:
                yield f"{name} at {node} is not its node's value"
            if state.layout.is_path[value.component]:
                fits = value.page_count == pages
            elif value.component in state.layout.points:
                fits = value.page_count == 1
            else:
                fits = 0 < value.page_count <= pages
            if not fits:
                yield f"{name} at {node} has {value.page_count} pages for {pages}"
            owner = node.device[state.layout.owner_of[value.component]]
            if tier is Tier.DEVICE and (owner is None or not owner.pages.endswith(value.pages)):
                yield f"{name} at {node} does not lie in its owner's pages"


def closure(state: TreeState, _locks: Locks) -> Iterator[str]:
    """Paths are prefix-closed on each tier, and every node's required paths are on some tier."""
    for node in _nodes(state):
        parent = node.parent
        assert parent is not None
        if state.lacks_path(node):
            yield f"{node} lacks a required path on every tier"
        for i in state.layout.paths:
            for tier in TIERS:
                if node.values(tier)[i] is not None and parent.parent is not None and parent.values(tier)[i] is None:
                    yield f"{state.components[i].name} is on {tier.name.lower()} at {node} but not above it"


def ownership(state: TreeState, _locks: Locks) -> Iterator[str]:
    """Every page has one owner, and the pools' counters agree."""
    for tier in TIERS:
        counts: dict[int, Counter[int]] = {i: Counter() for i in range(len(state.components))}
        for value in _owned(state, tier):
            counts[value.component].update(np.frombuffer(value.pages, np.int64).tolist())
        for i, pages in counts.items():
            pool = state.pools(tier)[i]
            twice = [page for page, count in pages.items() if count > 1]
            if twice:
                yield f"{pool.component.name} on {tier.name}: pages owned twice: {twice[:5]}"
            if pool.used_pages != pages.total():
                yield f"{pool.component.name} on {tier.name}: {pool.used_pages} pages booked, {pages.total()} owned"
            if pool.ledger.owned_count() != len(pages) or not all(pool.ledger.owns(page) for page in pages):
                yield f"{pool.component.name} on {tier.name}: the ledger disagrees with the nodes"
    if state.host_value_count != sum(1 for _ in _values(state, Tier.HOST)):
        yield f"{state.host_value_count} host values booked"


def budgets(state: TreeState, _locks: Locks) -> Iterator[str]:
    """The tree holds no more blocks than a shared budget has, and the next victim is the first of all orders; a policy
    that chooses may note what it is asked, so it is not asked.
    """
    for tier, shared in zip(TIERS, state.shared_pools, strict=True):
        if shared is None:
            continue
        used = sum(value.page_count * shared.page_blocks[value.component] for value in _owned(state, tier))
        if used > shared.block_count:
            yield f"the tree holds {used} blocks on {tier.name.lower()}, where there are {shared.block_count}"
        if used != shared.used_blocks:
            yield f"{shared.used_blocks} blocks booked on {tier.name.lower()}, {used} are held"
        pools = state.pools(tier)
        if state.policy.chooses or state.tenants is not None:
            continue
        firsts = []
        for i, pool in enumerate(pools):
            first = pool.next_victim()
            if first is not None and shared.page_blocks[i]:
                firsts.append((first.urgency, pool.standing(first), first.depth, i))
        victim = shared.next_victim()
        if (None if victim is None else victim.component) != (min(firsts)[-1] if firsts else None):
            yield f"{victim} is not the first to go on {tier.name.lower()}"


def lock_counts(state: TreeState, locks: Locks) -> Iterator[str]:
    """Counts equal the receipts and the locked children; protected sizes equal the locked values."""
    ends = Counter(value for receipt in locks.open.values() for value in receipt.paths)
    locked = Counter(value for receipt in locks.open.values() for value in receipt.values)
    for tier in TIERS:
        protected = [0] * len(state.components)
        for value in _owned(state, tier):
            node, i = value.node, value.component
            expected = locked[value]
            if state.layout.is_path[i]:
                below = (child.values(tier)[i] for child in node.children())
                expected += ends[value] + sum(v is not None and v.locks > 0 for v in below)
            if value.locks != expected:
                yield f"{state.components[i].name} at {node} counts {value.locks} locks, not {expected}"
            if value.locks:
                protected[i] += value.page_count
            if (value.locked_by is not None) != (locked[value] > 0):
                yield f"{state.components[i].name} at {node}: the receipts that lock it disagree with those that say so"
        for pool, pages in zip(state.pools(tier), protected, strict=True):
            if pool.protected_pages != pages:
                yield f"{pool.component.name} on {tier.name}: {pool.protected_pages} pages booked as protected, {pages} are"


def child_counts(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A path value knows how many children have its component on its tier."""
    for tier in TIERS:
        for value in _values(state, tier):
            if state.layout.is_path[value.component]:
                children = sum(c.values(tier)[value.component] is not None for c in value.node.children())
                if value.children != children:
                    name = state.components[value.component].name
                    yield f"{name} at {value.node} counts {value.children} children, not {children}"


def eviction_order(state: TreeState, _locks: Locks) -> Iterator[str]:
    """An eviction order holds exactly the evictable values, each at the place of its rank."""
    for tier in TIERS:
        placed: dict[int, set[Value]] = {i: set() for i in range(len(state.components))}
        for value in _owned(state, tier):
            pool = state.pools(tier)[value.component]
            name = f"{pool.component.name} on {tier.name} at {value.node}"
            if not value.is_placed:
                held_back = any(v is not None and v.locks for v in (*value.node.device, *value.node.host)) or _stands_above(
                    value
                )
                if not (value.locks or value.children or held_back):
                    yield f"{name} can go but is not in the order"
                continue
            placed[value.component].add(value)
            if value.locks or value.children:
                yield f"{name} cannot go but is in the order"
            if not pool.is_where_it_ranks(value):
                yield f"{name} stands elsewhere in the order than it should"
        for pool, values in zip(state.pools(tier), placed.values(), strict=True):
            orders = [list(order) for order in pool.orders()]
            entries = [entry for order in orders for entry in order]
            booked = sum(len(order) for order in pool.orders())
            if set(entries) != values or len(entries) != len(values) or booked != len(values):
                yield f"{pool.component.name} on {tier.name}: {len(entries)} entries for {len(values)} values"
            if any(one.place >= other.place for order in orders for one, other in pairwise(order)):
                yield f"{pool.component.name} on {tier.name}: entries out of order"


def shares(state: TreeState, _locks: Locks) -> Iterator[str]:
    """What each group of namespaces holds of each room is what its nodes hold, every value stands in its group's order, the
    groups stand by how full their shares are, and a node has one owner.
    """
    for tier in TIERS if state.tenants is not None else ():
        used: dict[int, dict[int, int]] = {}
        placed = {entry for pool in state.pools(tier) for order in pool.orders() for entry in order}
        for value in _owned(state, tier):
            pool = state.pools(tier)[value.component]
            root = value.node.root
            if pool.shares is None:
                continue
            if root is None or root.group != state.group_of(root.name[0]):
                yield f"{value.node} is not of its namespace's group"
                continue
            if root.owner_groups is not None and owner_at(value.node.edge, 0) != owner_at(value.node.edge, -INT64_BYTES):
                yield f"{value.node} has pages of two owners"
            of_room, group = used.setdefault(id(pool.shares), {}), group_of(value.node)
            of_room[group] = of_room.get(group, 0) + value.page_count * pool.shares.page_units[pool.slot]
            if (value in placed) != value.is_placed:
                yield f"{pool.component.name} on {tier.name} at {value.node} is not in its group's order"
        for room in {id(pool.shares): pool.shares for pool in state.pools(tier) if pool.shares is not None}.values():
            for deviation in room.deviations(used.get(id(room), {})):
                yield f"on {tier.name.lower()}: {deviation}"


def _stands_above(value: Value) -> bool:
    """Whether a path's value could only be removed with its node, which has children."""
    other = value.node.host if value.tier is Tier.DEVICE else value.node.device
    return value.node.first_child is not None and any(v is None for v in other)


def copies(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A value is marked as copied exactly if the other tier has all its pages, and the pools' sums agree."""
    for tier in TIERS:
        sums = [0] * len(state.components)
        for value in _owned(state, tier):
            node, i = value.node, value.component
            lives_here = (i, *state.layout.sharers_of[i]) if tier is Tier.DEVICE else (i,)
            needed = [j for j in lives_here if j == i or state.components[j].required]
            pairs = [(node.values(tier)[j], node.values(TIERS[1 - tier])[j]) for j in needed]
            copied = all(a is None or (b is not None and b.page_count >= a.page_count) for a, b in pairs)
            if value.copied != copied:
                yield f"{state.components[i].name} at {node} is {'' if value.copied else 'not '}marked copied"
            if value.copied:
                sums[i] += value.page_count
        for pool, pages in zip(state.pools(tier), sums, strict=True):
            if pool.copied_pages != pages:
                yield f"{pool.component.name} on {tier.name}: {pool.copied_pages} pages booked as copied, {pages} are"


def copying(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A value is marked as being copied exactly while an open effect copies some of its pages, whose receipt is then open
    too.
    """
    for tier in TIERS:
        for value in _values(state, tier):
            begin = value.node.end - value.page_count * state.page_size
            for effect in value.copying:
                has_ended = effect.receipt.is_released
                if has_ended or effect.copied_from(value.component, begin, value.node.end) == value.node.end:
                    what = f"{state.components[value.component].name} at {value.node}"
                    yield f"{what} is marked for a {effect.kind.name} that {'ended' if has_ended else 'copies none of it'}"


def boundaries(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A node's runs, `resumable` and `nearest_boundary` follow from its values, its parent and its children.

    If each node agrees with its neighbours, all are right. A node that waits to be settled may differ.
    """
    if not state.layout.is_gated:
        return
    marks = state.resumability
    for node in _nodes(state):
        if marks.is_pending(node):
            continue
        for deviation in marks.deviations(node):
            yield f"{node} is marked with {deviation}"
        parent = node.parent
        assert parent is not None
        if parent.parent is not None and parent.child_index is not None:
            sibling_place = node.sibling_place
            where = sibling_place.rank if isinstance(sibling_place, SiblingPlace) and sibling_place.is_placed else NO_LENGTH
            if where != node.nearest_boundary:
                yield f"{node} stands at {where} among its siblings, not at {node.nearest_boundary}"


def stranded(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A value is stranded exactly if no boundary at a node's end needs it (settled nodes only), and the pools' sums agree."""
    for tier in TIERS:
        sums = [0] * len(state.components)
        for value in _values(state, tier):
            is_settled = state.layout.is_gated and not state.resumability.is_pending(value.node)
            if is_settled and value.stranded == state.resumability.is_needed(value):
                name = state.components[value.component].name
                yield f"{name} at {value.node} is {'' if value.stranded else 'not '}marked stranded"
            if value.stranded and (tier is Tier.HOST or state.layout.owner_of[value.component] == value.component):
                sums[value.component] += value.page_count
        for pool, pages in zip(state.pools(tier), sums, strict=True):
            if pool.stranded_pages != pages:
                yield f"{pool.component.name} on {tier.name}: {pool.stranded_pages} pages booked as stranded, {pages} are"


def retired(state: TreeState, _locks: Locks) -> Iterator[str]:
    """`reclaim` can reach every retired node: it is still to be visited, or it has locks at or below it."""
    if state.retired.is_pending:
        return
    locked: set[Node] = set()
    for node in _nodes(state):
        if state.nodes.is_retired(node) and any(v is not None and v.locks for v in (*node.device, *node.host)):
            at: Node | None = node
            while at is not None and at not in locked:
                locked.add(at)
                at = at.parent
    for node in _nodes(state):
        if state.nodes.is_retired(node) and node not in locked:
            yield f"{node} was retired and is reached by nothing"


def claims(state: TreeState, _locks: Locks) -> Iterator[str]:
    """A claim is live as often as tips are there and live claims below, and its owner is not below that of a claim under it."""
    for node in _nodes(state):
        claim = node.claim
        if claim is None:
            if any(child.claim is not None and child.claim.node is not child for child in node.children()):
                yield f"a claim under {node} is of another node"
            continue
        if claim.node is not node:
            yield f"the claim of {node} is of {claim.node}"
        below = [child.claim for child in node.children()]
        live = claim.tips + sum(each is not None and each.live > 0 for each in below)
        if claim.live != live:
            yield f"the claim of {node} is live {claim.live} times, not {live}"
        for each in below:
            if each is None or claim.owner.nearest_above(each.owner) is not claim.owner:
                yield f"under {node} is a claim of a stranger"


LAWS: tuple[Callable[[TreeState, Locks], Iterator[str]], ...] = (
    structure,
    shapes,
    closure,
    ownership,
    budgets,
    lock_counts,
    child_counts,
    eviction_order,
    shares,
    copies,
    copying,
    boundaries,
    stranded,
    retired,
    claims,
)
