"""Shares of groups of namespaces against a naive model, and what they promise after random operations."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import SETS

from unified_tree import BlockBudget, Component, Key, Path, PolicyFactory, Tier, UnifiedTree
from unified_tree.declare.tenants import Amount, TenantGroup, Tenants
from unified_tree.nodes.node import Value
from unified_tree.policies.eviction_policy import EvictionPolicy
from unified_tree.policies.tree_view import TreeView

FULL = Component(name="full", coverage=Path())


class Oldest(EvictionPolicy):
    """A custom policy: the oldest goes first."""

    compares_across_pools = True

    def __init__(self, view: TreeView) -> None:
        del view

    def rank(self, value: Value) -> float:
        return float(value.created)


POLICIES: tuple[str | PolicyFactory, ...] = ("lru", "cost", "density", Oldest)


class Naive:
    """Groups of pages with their last uses; victims are found by looking at all of them."""

    def __init__(self, shares: list[int], compared: int) -> None:
        self.shares, self.compared = shares, compared
        self.pages: list[dict[int, int]] = [{} for _ in shares]

    def fill(self, group: int) -> tuple[float, int, int]:
        used = len(self.pages[group])
        return (-used / self.shares[group] if self.shares[group] else -np.inf, -used, -group)

    def victim(self) -> tuple[int, int] | None:
        fullest = sorted((group for group in range(len(self.shares)) if self.pages[group]), key=self.fill)
        over = [group for group in fullest if len(self.pages[group]) > self.shares[group]][: self.compared]
        firsts = [min((at, page) for page, at in self.pages[group].items()) for group in over or fullest[:1]]
        if not firsts:
            return None
        _, page = min(firsts)
        return next(group for group in range(len(self.shares)) if page in self.pages[group]), page


SHAPES = [
    (2, 6, [0.5], 8),
    (2, 1, [1.0], 1),
    (3, 24, [0.25, 0.0], 8),
    (5, 64, [0.1, 0.2, 0.3, 0.4], 2),
    (40, 50, [0.01] * 39, 3),
]


@pytest.mark.parametrize(("groups", "page_count", "floors", "compared"), SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_the_victims_are_those_of_a_naive_model(
    groups: int, page_count: int, floors: list[float], compared: int, seed: int
) -> None:
    random = Random(seed)
    declared = tuple(
        TenantGroup(name=f"g{i}", namespaces=(f"n{i}",), floor=floor, weight=random.choice([0, 0, 1, 5]))
        for i, floor in enumerate(floors, 1)
    )
    tenants = Tenants(groups=declared, compared_groups=compared)
    tree = UnifiedTree([FULL], 1, page_counts={"full": page_count}, tenants=tenants)
    shares = tree.pool("full").shares
    assert shares is not None
    naive = Naive([shares.of_group(group).units for group in range(groups)], compared)
    free = list(range(page_count))
    texts: dict[tuple[int, int], int] = {}
    for clock in range(1, 401):
        group = min(random.randrange(groups), random.randrange(groups)) if random.random() < 0.7 else groups - 1
        text = random.randrange(2 * page_count)
        if random.random() < 0.2:
            count = random.randrange(1, 4)
            evicted = tree.evict({"full": count}).freed.get("full", np.empty(0, np.int64)).tolist()
            expected: list[int] = []
            while len(expected) < count and (found := naive.victim()) is not None:
                del naive.pages[found[0]][found[1]]
                expected.append(found[1])
            assert evicted == expected
            free += evicted
            texts = {key: page for key, page in texts.items() if page not in evicted}
        elif (group, text) in texts:
            tree.match_prefix(Key([text], f"n{group}"))
            naive.pages[group][texts[group, text]] = clock
        elif free:
            page = free.pop()
            tree.insert(Key([text], f"n{group}"), {"full": np.array([page])})
            texts[group, text] = page
            naive.pages[group][page] = clock
        assert clock % 8 or not tree.check()


def held(tree: UnifiedTree, tier: Tier) -> list[dict[str, tuple[int, int, bool]]]:
    """Of each room what its groups hold, their share, and whether something of it can go."""
    rooms = {id(pool.shares): pool.shares for pool in tree.state.pools(tier) if pool.shares is not None}
    return [
        {share.name: (share.used, share.units, share.has_evictable(-1)) for share in room.held()} for room in rooms.values()
    ]


def kept_its_promise(
    before: list[dict[str, tuple[int, int, bool]]], after: list[dict[str, tuple[int, int, bool]]], largest: int
) -> None:
    """Who was within its share lost something only if whoever was over theirs had nothing left that can go; whoever was over
    went under by less than one value.
    """
    for was, now in zip(before, after, strict=True):
        someone_gives = any(used > units and can_go for used, units, can_go in now.values())
        for name, (used, units, _) in was.items():
            left = now.get(name, (0, 0, False))[0]
            if someone_gives and used <= units:
                assert left == used, f"{name} had {used} of {units}, and {left} are left"
            elif someone_gives:
                assert left > units - largest, f"{name} fell from {used} of {units} to {left}"


KINDS = [*SETS.values()] if isinstance(SETS, dict) else list(SETS)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("with_budget", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_floors_hold_after_random_operations_of_all_kinds(policy: str | PolicyFactory, with_budget: bool, seed: int) -> None:
    random = Random(seed)
    components = random.choice([kinds for kinds in KINDS if all(c.shares is None for c in kinds)])
    size = 1
    names = [c.name for c in components]
    count = 40
    tenants = Tenants(
        groups=(
            TenantGroup(name="a", namespaces=("a", "a2"), floor=0.25),
            TenantGroup(name="b", namespaces=("b",), floor=0.2, cap=0.6, weight=1),
        )
    )
    budget = BlockBudget(block_count=count * 3, page_blocks={name: 1 + i for i, name in enumerate(names)})
    tree = UnifiedTree(
        components,
        size,
        policy=policy,
        page_counts=None if with_budget else dict.fromkeys(names, count),
        budget=budget if with_budget else None,
        tenants=tenants,
    )
    receipts = []
    for _ in range(300):
        step = random.random()
        tokens = [random.randrange(3) for _ in range(random.randrange(1, 12))]
        key = Key(tokens, random.choice(["a", "a2", "b", "c", "d"]))
        if step < 0.5:
            found = tree.match_prefix(key)
            matched = found.path_length
            free = free_ids(tree, names, budget if with_budget else None, count)
            pages, states = {}, {}
            for c in components:
                if c.coverage.is_path or c.coverage.window_tokens is not None:
                    pages[c.name] = free[c.name][: len(tokens) - (found.device.length if c.coverage.is_path else matched)]
                else:
                    states[c.name] = {len(tokens): int(free[c.name][0])} if free[c.name].size else {}
            needed = len(tokens)
            if all(ids.size > needed for ids in free.values()):
                tree.insert(key, {name: free[name][:needed] for name in pages}, states)
        elif step < 0.6:
            found = tree.match_prefix(key)
            if found.device.length:
                receipts.append(tree.lock(found.device))
        elif step < 0.75 and receipts:
            tree.unlock(receipts.pop(random.randrange(len(receipts))))
        else:
            before = held(tree, Tier.DEVICE)
            if with_budget:
                tree.evict_blocks(random.randrange(1, 12))
            else:
                tree.evict({random.choice(names): random.randrange(1, 6)})
            if len(components) == 1 or with_budget:
                kept_its_promise(before, held(tree, Tier.DEVICE), 12 * 3 * len(names))
        tree.evict_over_caps()
        for room in held(tree, Tier.DEVICE):
            used, _, can_go = room.get("b", (0, 0, False))
            cap = (count * 3 if with_budget else count) * 6 // 10
            assert used <= cap or not can_go
        assert not tree.check()
    for receipt in receipts:
        tree.unlock(receipt)
    for name in names:
        tree.evict({name: 10_000})
    assert not any(pool.used_pages for pool in tree.state.device_pools)


def free_ids(tree: UnifiedTree, names: list[str], budget: BlockBudget | None, count: int) -> dict[str, np.ndarray]:
    """Page ids of each pool that the tree does not own; none where the budget is nearly used up."""
    found = {}
    for name in names:
        total = count if budget is None else budget.page_count(name)
        pool = tree.pool(name)
        ids = [page for page in range(total) if not pool.ledger.owns(page)]
        if budget is not None:
            shared = tree.state.shared_pools[0]
            assert shared is not None
            room = (budget.block_count - shared.used_blocks) // sum(budget.page_blocks.values())
            ids = ids[: max(0, room)]
        found[name] = np.array(ids, np.int64)
    return found


def test_ten_thousand_groups_each_keep_what_is_theirs() -> None:
    """A flood by a group without a share takes what is idle, and gives it all back."""
    count = 10_000
    groups = tuple(TenantGroup(name=f"g{i}", namespaces=(f"n{i}",), weight=1) for i in range(count))
    tree = UnifiedTree([FULL], 1, page_counts={"full": count}, tenants=Tenants(groups=groups))
    tree.insert(Key(range(count), "flood"), {"full": np.arange(count)})
    for i in range(count):
        page = tree.evict({"full": 1}, cut_pages=1).freed["full"]
        tree.insert(Key([i], f"n{i}"), {"full": page})
    assert all(tree.match_prefix(Key([i], f"n{i}")).device.length == 1 for i in range(0, count, 97))
    assert not tree.match_prefix(Key(range(count), "flood")).device.length
    assert tree.evict({"full": 5}).freed["full"].size == 5, "what requests need is never refused for a floor"
    assert not tree.check()


def test_shares_in_pages_and_bytes_of_each_tier() -> None:
    kinds = [Component(name="full", coverage=Path(), page_bytes=3), Component(name="extra", coverage=Path(), page_bytes=1)]
    group = TenantGroup(
        name="a", namespaces=("a",), floor=Amount(size_bytes=200, host_pages={"full": 7}), cap=Amount(pages={"full": 90})
    )
    tree = UnifiedTree(
        kinds,
        1,
        page_counts={"full": 100, "extra": 100},
        host_page_counts={"full": 10, "extra": 10},
        tenants=Tenants(groups=(group,)),
    )
    shares = [tree.pool(name, tier).shares for tier in (Tier.DEVICE, Tier.HOST) for name in ("full", "extra")]
    assert [(s.of_group(1).units, s.of_group(1).cap) for s in shares if s is not None] == [(50, 90), (50, -1), (7, -1), (0, -1)]


def test_the_same_operations_have_the_same_result_on_every_rank() -> None:
    outcomes = []
    for _ in range(2):
        random, free, seen = Random(3), list(range(60)), []
        tenants = Tenants(groups=tuple(TenantGroup(name=f"g{i}", namespaces=(f"n{i}",), weight=i) for i in range(1, 9)))
        tree = UnifiedTree([FULL], 1, policy="density", page_counts={"full": 60}, tenants=tenants)
        for _ in range(600):
            key = Key([random.randrange(9) for _ in range(3)], f"n{random.randrange(12)}")
            if len(free) < 3:
                freed = tree.evict({"full": 4}).freed["full"].tolist()
                seen.append(freed)
                free += freed
            known = tree.match_prefix(key).device.length
            tree.insert(key, {"full": np.array([free.pop() for _ in range(3 - known)], np.int64)})
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]
