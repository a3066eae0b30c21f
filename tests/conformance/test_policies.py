"""Every eviction policy: the order it documents, and what the tree relies on."""

from __future__ import annotations

from typing import Any

import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import POLICIES, Component, EvictionPolicy, Path, Point, TreeView
from unified_tree.controllers.testing import Check, check_policy, policy_checks, victims_of
from unified_tree.nodes.node import Value

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
    "density": "acdb",
}
"""Victims of one scripted history."""


def test_every_policy_has_its_order_written_down() -> None:
    assert set(ORDERS) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_victims_come_in_the_documented_order(policy: str) -> None:
    assert victims_of(policy) == ORDERS[policy]


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


@pytest.mark.parametrize("check", policy_checks(), ids=repr)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_contract(policy: str, check: Check) -> None:
    check(POLICIES[policy])


class LongestFirst(EvictionPolicy):
    """The longest prefix goes first."""

    def touched(self, value: Value) -> None:
        self.used = value

    def rank(self, value: Value) -> float:
        return -value.node.end

    def went(self, value: Value, *, is_whole: bool) -> None:
        assert is_whole
        self.last = value


def test_a_policy_of_ones_own() -> None:
    made: list[LongestFirst] = []

    def factory(_: TreeView) -> LongestFirst:
        made.append(LongestFirst())
        return made[-1]

    grove = Grove([FULL, MAMBA], policy=factory)
    assert len(made) == 1, "one a tree"
    for text in ("ab", "cdefgh", "ijkl"):
        grove.put(text, [2])
        grove.match(text)
    assert grove.evict(1)["full"] == [102, 103]
    assert grove.evict(1)["full"] == [105]


class Hostile(EvictionPolicy):
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

    def went(self, _: Value, *, is_whole: bool) -> None:  # noqa: ARG002
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


class Mute(EvictionPolicy):
    """Least recently used first; says nothing that can be read."""

    def rank(self, value: Value) -> int:
        return value.touched


@pytest.mark.parametrize(
    ("method", "answer"),
    [("figures", 5), ("figures", {"misses": "many"}), ("explain", 7), ("likely_victim", "x")],
    ids=["figures no mapping", "figures no number", "explain no text", "likely no value"],
)
def test_the_contract_names_what_a_policy_says_wrongly(method: str, answer: object) -> None:
    wrong = type("Wrong", (Mute,), {method: lambda *_: answer, "next_victim": lambda _, __, first: first})
    with pytest.raises(AssertionError, match="tells of itself without failing"):
        check_policy(lambda _: wrong())
