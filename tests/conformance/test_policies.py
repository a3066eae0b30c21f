"""Every eviction policy: the order it documents, and what the tree relies on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grove import Grove
from kinds import FULL, MAMBA, SETS, swa

from unified_tree import POLICIES, Component, EvictionPolicy, Path, Point, PolicyFactory, StaleBoundaryError, Tier, UnifiedTree
from unified_tree.eviction_policy import Rank, RestoreCost
from unified_tree.node import Node, Value

ORDERS = {
    # four values made in the order a, b, c, d with priorities 2, 0, 1, 0; hits: a twice, c, d twice, b, in this order
    "lru": "acdb",
    "lfu": "cbad",
    "fifo": "abcd",
    "mru": "bdca",
    "filo": "dcba",
    "slru": "acdb",
    "priority": "dbca",
    "cost": "acdb",
}
"""Victims of one scripted history."""


def test_every_policy_has_its_order_written_down() -> None:
    assert set(ORDERS) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_victims_come_in_the_documented_order(policy: str) -> None:
    grove = Grove([FULL], policy=policy)
    for letter, priority in zip("abcd", (2, 0, 1, 0), strict=True):
        grove.put(2 * letter, priority=priority)
    for letter in "aacddb":
        grove.match(2 * letter)
    victims = [grove.evict(1)["full"][0] for _ in range(4)]
    assert "".join("abcd"[page - 100] for page in victims) == ORDERS[policy]


def test_slru_spares_what_was_hit() -> None:
    grove = Grove([FULL], policy="slru")
    for letter in "abc":
        grove.put(2 * letter)
    grove.match("aa")
    assert [grove.evict(1)["full"] for _ in range(3)] == [[101], [102], [100]]


def test_the_cost_aware_policy_keeps_what_is_dear_to_bring_back() -> None:
    full = Component(name="full", coverage=Path(), page_bytes=10, flops_per_token=1.0)
    mamba = Component(name="mamba", coverage=Point(), page_bytes=10)
    grove = Grove([full, mamba], policy="cost")
    grove.put("abcdefgh", [2, 8])  # the state at 8 costs six tokens, the one at 2 two
    grove.put("zzzz", [4])  # four
    assert [grove.evict(1, "mamba")["mamba"] for _ in range(3)] == [[200], [202], [201]]


def test_what_the_cost_aware_policy_does_not_use_ages() -> None:
    full = Component(name="full", coverage=Path(), page_bytes=10, flops_per_token=1.0)
    mamba = Component(name="mamba", coverage=Point(), page_bytes=10)
    grove = Grove([full, mamba], policy="cost")
    grove.put("abcdefgh", [8])
    for i in range(10):
        grove.put(f"{i}{i}{i}{i}", [2, 4])
        if 200 in grove.evict(2, "mamba")["mamba"]:
            break
    else:
        pytest.fail("the dearest value stayed for ever")


def values(tree: UnifiedTree, component: int, tier: Tier = Tier.DEVICE) -> Iterator[Value]:
    pending: list[Node] = list(tree.state.roots.values())
    while pending:
        node = pending.pop()
        pending.extend(node.children())
        value = node.values(tier)[component]
        if value is not None:
            yield value


def removable(tree: UnifiedTree, value: Value) -> bool:
    """Unlocked; of a path a leaf, and of a required one at a node where nothing is locked."""
    node, component = value.node, tree.components[value.component]
    if value.locks:
        return False
    if not isinstance(component.coverage, Path):
        return True
    if any(child.device[value.component] is not None for child in node.children()):
        return False
    return not (component.required and any(other is not None and other.locks for other in node.device))


class Watched:
    """A policy under watch: compares each victim with all that could have gone instead."""

    def __init__(self, inner: EvictionPolicy, trees: list[UnifiedTree]) -> None:
        self.inner, self._trees = inner, trees
        self.victims = 0

    def touched(self, value: Value) -> None:
        self.inner.touched(value)

    def rank(self, value: Value) -> Rank:
        return self.inner.rank(value)

    def evicted(self, value: Value) -> None:
        [tree] = self._trees
        candidates = [other for other in values(tree, value.component) if removable(tree, other)]
        assert value in candidates
        first = min((not other.stranded, self.inner.rank(other)) for other in candidates)
        assert (not value.stranded, self.inner.rank(value)) == first
        self.victims += 1
        self.inner.evicted(value)


def watched(policy: str, trees: list[UnifiedTree], made: list[Watched]) -> PolicyFactory:
    def factory(cost: RestoreCost) -> EvictionPolicy:
        made.append(Watched(POLICIES[policy](cost), trees))
        return made[-1]

    return factory


@pytest.mark.parametrize("kinds", ["full", "mamba", "window and mamba", "draft of its own", "rebuilt window"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_victim_has_the_smallest_rank_of_all_that_can_go(policy: str, kinds: str) -> None:
    trees: list[UnifiedTree] = []
    made: list[Watched] = []
    grove = Grove(SETS[kinds], policy=watched(policy, trees, made))
    trees.append(grove.tree)
    rng = random.Random(f"{policy} {kinds}")
    owned = [c.name for c in grove.tree.components if c.shares is None]
    texts, receipts = ["ab"], []
    for _ in range(150):
        base = rng.choice(texts)
        text = base[: rng.randrange(len(base) + 1)] + "".join(rng.choices("xyz", k=rng.randrange(1, 7)))
        if rng.random() < 0.6:
            lengths = rng.sample(range(2, len(text) + 1, 2), k=min(len(text) // 2, rng.randrange(3)))
            result = grove.put(text, lengths, priority=rng.randrange(3))
            texts.append(text)
            if rng.random() < 0.2 and grove.match(text, touch=False).device.length:
                try:
                    receipts.append(grove.tree.lock(result.boundary))
                except StaleBoundaryError:
                    receipts.append(grove.lock(text))
        elif rng.random() < 0.7:
            grove.match(rng.choice(texts))
        elif receipts:
            receipts.pop(rng.randrange(len(receipts))).release()
        if rng.random() < 0.5:
            grove.evict(rng.randrange(1, 6), rng.choice(owned))
    grove.check()
    assert sum(policy.victims for policy in made) > 30
    assert not any(grove.tree.pool(name, tier).policy_failures for name in owned for tier in (Tier.DEVICE, Tier.HOST))


class LongestFirst:
    """A policy of one's own: the longest prefix goes first."""

    def touched(self, value: Value) -> None:
        self.used = value

    def rank(self, value: Value) -> float:
        return -value.node.end

    def evicted(self, value: Value) -> None:
        self.last = value


def test_a_policy_of_ones_own() -> None:
    made: list[LongestFirst] = []

    def factory(_: Callable[[Value], float]) -> LongestFirst:
        made.append(LongestFirst())
        return made[-1]

    grove = Grove([FULL, MAMBA], policy=factory)
    assert len(made) == 4, "one a pool: two components on two tiers"
    for text in ("ab", "cdefgh", "ijkl"):
        grove.put(text, [2])
        grove.match(text)
    assert grove.evict(1)["full"] == [102, 103]
    assert grove.evict(1)["full"] == [105]


class Hostile:
    """Raises, or ranks by what is no number."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    def _answer(self) -> Any:
        self.answers.append(self.answers.pop(0))
        if isinstance(self.answers[-1], Exception):
            raise self.answers[-1]
        return self.answers[-1]

    def touched(self, _: Value) -> None:
        self._answer()

    def rank(self, _: Value) -> Any:
        return self._answer()

    def evicted(self, _: Value) -> None:
        self._answer()


@pytest.mark.parametrize(
    "answers",
    [
        [ValueError("no")],
        [float("nan")],
        [float("nan"), 1.0],
        ["x"],
        [None],
        [(1, 2, 3)],
        [(1.0, float("nan"))],
        [1j, 2.0, KeyError()],
    ],
    ids=repr,
)
def test_a_policy_that_fails_cannot_break_the_tree(answers: list[Any]) -> None:
    grove = Grove([FULL, swa(3), MAMBA], policy=lambda _: Hostile(list(answers)))
    for text in ("abcd", "abcdef", "abxx", "zzzz"):
        grove.put(text, [len(text)])
    receipt = grove.lock("abcd")
    grove.match("abxx")
    grove.evict(3)
    grove.check()
    receipt.release()
    grove.evict(100)
    grove.evict(100, "mamba")
    grove.check()
    assert grove.tree.node_count == 0
    assert grove.tree.pool("full").policy_failures > 0


def test_where_a_policy_always_fails_recency_decides() -> None:
    grove = Grove([FULL], policy=lambda _: Hostile([ValueError("no")]))
    for letter in "abc":
        grove.put(2 * letter)
    grove.match("aa")
    assert [grove.evict(1)["full"] for _ in range(3)] == [[101], [102], [100]]
