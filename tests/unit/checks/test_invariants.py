"""Every law sees the tree that breaks it, and no other law does.

The one test that reaches into the tree's own data: each case breaks a sound tree by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from grove import Grove, key
from kinds import CARRY_OVER, DRAFT, FULL, MAMBA, swa

from unified_tree import Amount, BlockBudget, NodeId, TenantGroup, Tenants, Tier, UnifiedTree
from unified_tree.checks.invariants import LAWS
from unified_tree.nodes.claim import Claim, Claimant
from unified_tree.nodes.node import Node, Root, Value
from unified_tree.state.shared_pools import SharedPools
from unified_tree.state.shares import Share

FULL_INDEX, SWA_INDEX, MAMBA_INDEX, DRAFT_INDEX = 0, 1, 2, 3


CAPPED = Tenants(groups=(TenantGroup(name="all", namespaces=("",), cap=Amount(pages={"full": 99, "mamba": 99})),))


def sound_tree(tenants: Tenants | None = None) -> UnifiedTree:
    """[ab] with children [cd] and [xx] under it, of all kinds, with a lock on [abcd] and copies of [abxx] on host."""
    grove = Grove([FULL, swa(3), MAMBA, DRAFT, CARRY_OVER], tenants=tenants)
    grove.put("abcd", [2, 4])
    grove.put("abxx", [4])
    grove.put("abxxyy", window=0)  # a stranded tail
    grove.lock("abcd")
    grove.backup("abxx")
    return grove.tree


def node_at(tree: UnifiedTree, text: str) -> Node:
    """The node at whose end a text ends."""
    boundary = tree.match_prefix(key(text), touch=False).device
    assert boundary.length == len(text)
    node = tree.state.nodes.get(boundary.node)
    assert node is not None
    return node


def device(node: Node, component: int) -> Value:
    value = node.device[component]
    assert value is not None
    return value


def same_edge_as_a_sibling(tree: UnifiedTree) -> None:
    node_at(tree, "abcd").edge = bytes(key("xx").data)


def short_edge(tree: UnifiedTree) -> None:
    node = node_at(tree, "abcd")
    node.edge = node.edge[:-8]


def forgotten_id(tree: UnifiedTree) -> None:
    node = node_at(tree, "abcd")
    tree.state.nodes.remove(node.id)


def ghost_id(tree: UnifiedTree) -> None:
    ghost = Node(NodeId(99), node_at(tree, "ab"), b"", 4, len(tree.components))
    tree.state.nodes.add(ghost)


def empty_root(tree: UnifiedTree) -> None:
    tree.state.roots["tenant", False] = Root(("tenant", False), len(tree.components), 0)


def sharer_outside_its_owner(tree: UnifiedTree) -> None:
    device(node_at(tree, "abxx"), DRAFT_INDEX).pages = np.array([77]).tobytes()


def path_shorter_than_its_node(tree: UnifiedTree) -> None:
    node = node_at(tree, "abxx")
    device(node, DRAFT_INDEX).pages = b""
    tree.state.note_copies(node, DRAFT_INDEX)


def path_with_a_hole(tree: UnifiedTree) -> None:
    """The draft, which is optional, goes from the parent without going from the children."""
    node = node_at(tree, "ab")
    node.set_value(DRAFT_INDEX, Tier.DEVICE, None)
    tree.state.note_copies(node, DRAFT_INDEX)


def page_owned_twice(tree: UnifiedTree) -> None:
    ours, theirs = device(node_at(tree, "abxx"), MAMBA_INDEX), device(node_at(tree, "abcd"), MAMBA_INDEX)
    ours.pages = theirs.pages


def wrong_pool_size(tree: UnifiedTree) -> None:
    tree.pool("full").used_pages += 1


def ledger_behind(tree: UnifiedTree) -> None:
    tree.pool("swa").ledger.acquire(np.array([500]).tobytes())


def host_count_wrong(tree: UnifiedTree) -> None:
    tree.state.host_value_count += 1


def lock_too_many(tree: UnifiedTree) -> None:
    device(node_at(tree, "abcd"), MAMBA_INDEX).locks += 1


def protected_size_wrong(tree: UnifiedTree) -> None:
    tree.pool("mamba").protected_pages += 1


def holder_forgotten(tree: UnifiedTree) -> None:
    device(node_at(tree, "abcd"), SWA_INDEX).locked_by = None


def child_too_many(tree: UnifiedTree) -> None:
    device(node_at(tree, "ab"), DRAFT_INDEX).children += 1


def missing_entry(tree: UnifiedTree) -> None:
    tree.pool("mamba").remove_evictable(device(node_at(tree, "abxx"), MAMBA_INDEX))


def ghost_entry(tree: UnifiedTree) -> None:
    tree.pool("full").order.add(Value(node_at(tree, "abxx"), 0, Tier.DEVICE, b"", 0, 0), 0, 0.0, 0.0, 0)


def locked_but_in_line(tree: UnifiedTree) -> None:
    tree.pool("mamba").add_evictable(device(node_at(tree, "abcd"), MAMBA_INDEX))


def rank_fell(tree: UnifiedTree) -> None:
    device(node_at(tree, "abxx"), MAMBA_INDEX).touched = -1


def wrong_run(tree: UnifiedTree) -> None:
    device(node_at(tree, "abxx"), SWA_INDEX).run_pages += 1


def not_resumable(tree: UnifiedTree) -> None:
    node_at(tree, "abxx").resumable = False


def nearest_too_far(tree: UnifiedTree) -> None:
    node_at(tree, "abxx").nearest_boundary += 2


def stranded_unmarked(tree: UnifiedTree) -> None:
    """The draft of a needed path: a sharer has no entry and no sum of its own."""
    device(node_at(tree, "abxx"), DRAFT_INDEX).stranded = True


def stranded_size_wrong(tree: UnifiedTree) -> None:
    tree.pool("full").stranded_pages -= 1


def copy_unmarked(tree: UnifiedTree) -> None:
    pool, value = tree.pool("full"), device(node_at(tree, "abxx"), 0)
    assert value.copied
    value.copied = False
    pool.copied_pages -= value.page_count


def copied_size_wrong(tree: UnifiedTree) -> None:
    tree.pool("full", Tier.HOST).copied_pages += 1


def marked_for_ever(tree: UnifiedTree) -> None:
    boundary = tree.match_prefix(key("abxx")).device
    effect = tree.transfers.backup(
        boundary, {name: np.arange(900, 900 + n) for name, n in tree.transfers.backup_needs(boundary).items()}
    )
    tree.transfers.abort(effect)
    device(node_at(tree, "abxx"), 0).copying = (effect,)


def forgotten_namespace(tree: UnifiedTree) -> None:
    """Nodes that were given up, which the walk through what was given up does not know of."""
    root = node_at(tree, "ab").root
    assert root is not None
    del tree.state.roots[root.name]
    root.is_retired = True


def blocks_out_of_nowhere(tree: UnifiedTree) -> None:
    """Pools that share fewer blocks than they hold."""
    pages = {c.name: 1 for c in tree.components if c.shares is None}
    shared = SharedPools(tree.state.device_pools, BlockBudget(block_count=1, page_blocks=pages))
    tree.state.shared_pools = (shared, None)


def share_of(tree: UnifiedTree, name: str) -> Share:
    shares = tree.pool(name).shares
    assert shares is not None
    return shares.of_group(1)


def share_too_large(tree: UnifiedTree) -> None:
    share_of(tree, "mamba").used += 1


def cap_forgotten(tree: UnifiedTree) -> None:
    share_of(tree, "mamba").cap = 0


def of_another_group(tree: UnifiedTree) -> None:
    tree.state.groups = {}


def claimed(node: Node, of: Node) -> Claim:
    claim = node.claim = Claim(Claimant(None), of)
    claim.live = 1
    return claim


def live_without_a_tip(tree: UnifiedTree) -> None:
    node = node_at(tree, "abcd")
    claimed(node, node)


def claim_of_another_node(tree: UnifiedTree) -> None:
    claimed(node_at(tree, "abcd"), node_at(tree, "ab")).tips = 1


def claimed_above_strangers(tree: UnifiedTree) -> None:
    node = node_at(tree, "ab")
    claimed(node, node).tips = 1


CASES: dict[str, list[Callable[[UnifiedTree], None]]] = {
    "structure": [short_edge, forgotten_id, ghost_id, empty_root, same_edge_as_a_sibling],
    "shapes": [sharer_outside_its_owner, path_shorter_than_its_node],
    "closure": [path_with_a_hole],
    "ownership": [page_owned_twice, wrong_pool_size, ledger_behind, host_count_wrong],
    "budgets": [blocks_out_of_nowhere],
    "lock_counts": [lock_too_many, protected_size_wrong, holder_forgotten],
    "child_counts": [child_too_many],
    "eviction_order": [missing_entry, ghost_entry, locked_but_in_line, rank_fell],
    "shares": [share_too_large, cap_forgotten, of_another_group],
    "copies": [copy_unmarked, copied_size_wrong],
    "copying": [marked_for_ever],
    "boundaries": [wrong_run, not_resumable, nearest_too_far],
    "stranded": [stranded_unmarked, stranded_size_wrong],
    "retired": [forgotten_namespace],
    "claims": [live_without_a_tip, claim_of_another_node, claimed_above_strangers],
}


def test_a_sound_tree_breaks_no_law() -> None:
    tree = sound_tree()
    assert tree.check() == [], tree.dump()
    assert tree.pool("full").stranded_pages == 1
    assert tree.pool("swa", Tier.HOST).used_pages == 2


def test_every_law_is_tried() -> None:
    assert list(CASES) == [law.__name__ for law in LAWS]
    assert all(CASES.values())


@pytest.mark.parametrize(("law", "harm"), [(law, harm) for law, harms in CASES.items() for harm in harms])
def test_a_broken_law_fires_alone(law: str, harm: Callable[[UnifiedTree], None]) -> None:
    tree = sound_tree(CAPPED if law == "shares" else None)
    assert not tree.check()
    harm(tree)
    violations = tree.check()
    assert {violation.law for violation in violations} == {law}, violations
    assert all(violation.what for violation in violations)
