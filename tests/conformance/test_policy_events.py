"""The protocol of eviction policies: a custom policy hears what `density` hears, chooses victims, and can do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import EvictionPolicy, TreeSettings, TreeView
from unified_tree.controllers.testing import check_policy
from unified_tree.nodes.node import Node, Value
from unified_tree.nodes.order import Order
from unified_tree.policies.table import EVENTS


class Recorder(EvictionPolicy):
    """Least recently used first; notes each event."""

    follows_texts = True

    def __init__(self, view: TreeView) -> None:
        self.view = view
        self.heard: list[str] = []
        self.returned: list[object] = []
        self.brought: list[object] = []

    def rank(self, value: Value) -> float:
        return value.touched

    def placed(self, value: Value) -> None:
        assert value.is_placed and value.rank == value.touched
        self.heard.append("placed")

    def touched(self, value: Value) -> None:
        assert value.touched <= self.view.now
        self.heard.append("touched")

    def went(self, value: Value, *, is_whole: bool) -> None:
        assert value.page_count
        self.heard.append("went" if is_whole else "went in part")

    def arrived(self, node: Node | None, length: int, hit: int) -> object:
        self.heard.append("arrived")
        if node is not None:
            assert node.line is not None and hit <= length <= node.end
            self.returned.append(node.line.policy_state)
            node.line.policy_state = f"{length} were known"
        return length

    def grew(self, node: Node, last: int, arrival: object) -> None:
        assert node.end <= last
        self.brought.append(arrival)
        self.heard.append("grew")

    def published(self, node: Node, length: int) -> None:
        assert length <= node.end
        self.heard.append("published")

    def saved(self, node: Node, resumed: int, arrival: object) -> None:  # noqa: ARG002
        self.heard.append("saved")

    def locked(self, node: Node) -> None:  # noqa: ARG002
        self.heard.append("locked")

    def unlocked(self, node: Node) -> None:  # noqa: ARG002
        self.heard.append("unlocked")


def recorded(ghost_bytes: int) -> tuple[Grove, Recorder]:
    made: list[Recorder] = []

    def factory(view: TreeView) -> Recorder:
        made.append(Recorder(view))
        return made[-1]

    grove = Grove([FULL, MAMBA], policy=factory, settings=TreeSettings(ghost_bytes=ghost_bytes))
    return grove, made[0]


@pytest.mark.parametrize("ghost_bytes", [0, 1 << 20])
def test_each_event_is_heard_when_it_happens(ghost_bytes: int) -> None:
    grove, policy = recorded(ghost_bytes)

    def heard(call: Callable[[], object]) -> set[str]:
        policy.heard.clear()
        call()
        return set(policy.heard)

    assert heard(lambda: grove.put("abcd", [4])) == {"grew", "touched", "placed", "saved"}
    assert "arrived" in heard(lambda: grove.match("abcd"))
    assert "published" in heard(lambda: grove.put("abcd", [4]))
    receipts: list[Any] = []
    assert heard(lambda: receipts.append(grove.lock("abcd"))) >= {"locked"}
    assert heard(receipts[0].release) >= {"unlocked", "placed"}
    assert heard(lambda: grove.evict(2)) >= {"went"}
    assert grove.tree.pool("full").policy_failures == 0


@pytest.mark.parametrize("ghost_bytes", [0, 1 << 20])
def test_a_text_that_comes_back_is_known(ghost_bytes: int) -> None:
    grove, policy = recorded(ghost_bytes)
    grove.put("zz")
    grove.put("abcd")
    grove.match("abcd")
    grove.evict(100)
    grove.put("abcd")
    grove.match("abcd")
    assert policy.returned == [None, "4 were known"]


def test_what_a_request_brings_is_told_with_its_arrival() -> None:
    grove, policy = recorded(0)
    grove.match("abcd")
    grove.put("abcd")
    grove.match("abcdef")
    grove.put("abcdef")
    assert policy.brought == [0, 4], "how much was known of each"


def test_a_window_is_told_once_where_a_request_can_resume() -> None:
    """Not at each node that it crosses, and also where a part of it was there before."""
    told: list[tuple[int, int]] = []

    class Listener(Recorder):
        def saved(self, node: Node, resumed: int, arrival: object) -> None:  # noqa: ARG002
            told.append((node.end, resumed))

    grove = Grove([FULL, swa(6)], policy=Listener)
    grove.put("abcdefgh", repeatable=True)
    grove.put("abcdefxyzz"[:8])
    grove.put("abcdef")
    grove.put("abcdef")
    assert told == [(8, 6), (8, 8), (6, 6)]


class Chooser(EvictionPolicy):
    """Ranks all alike; what it chooses comes from outside."""

    def __init__(self, choose: Callable[[Order, Value], Any]) -> None:
        self._choose = choose

    def rank(self, value: Value) -> float:  # noqa: ARG002
        return 0.0

    def next_victim(self, order: Order, first: Value) -> Value:
        chosen: Value = self._choose(order, first)
        return chosen


def test_a_policy_may_choose_another_victim_than_the_first() -> None:
    def last(order: Order, first: Value) -> Any:
        return order.last_up_to(first.urgency, 0.0)

    grove = Grove([FULL], policy=lambda _: Chooser(last))
    for text in ("aa", "bb", "cc"):
        grove.put(text)
    assert [grove.evict(1)["full"] for _ in range(3)] == [[102], [101], [100]]
    check_policy(lambda _: Chooser(last))


def raises(*_: object, **__: object) -> Any:
    raise KeyError("no victim")


@pytest.mark.parametrize(
    "choose", [lambda *_: 7, lambda *_: "x", lambda *_: None, raises], ids=["a number", "a text", "None", "raises"]
)
def test_what_cannot_be_the_next_victim_is_counted_and_the_first_goes(choose: Callable[..., Any]) -> None:
    grove = Grove([FULL], policy=lambda _: Chooser(choose))
    for text in ("aa", "bb"):
        grove.put(text)
    assert [grove.evict(1)["full"] for _ in range(2)] == [[100], [101]]
    assert grove.tree.pool("full").policy_failures == 2
    grove.check()


def test_a_victim_of_another_pool_or_one_that_is_locked_is_refused() -> None:
    kept: list[Value] = []
    grove = Grove([FULL, MAMBA], policy=lambda _: Chooser(lambda _, first: kept[0] if kept else first))
    grove.put("ab", [2])
    grove.put("cd", [2])
    node = grove.tree.state.nodes.get(grove.match("ab", touch=False).device.node)
    assert node is not None
    receipt = grove.lock("ab")
    for value in node.device:
        assert value is not None
        kept[:] = [value]
        assert grove.evict(1, "mamba")["mamba"] != [300], "what is locked stays"
        grove.put("cd", [2])
    receipt.release()
    grove.check()
    assert grove.tree.pool("mamba").policy_failures == 2


@pytest.mark.parametrize("event", [name for name in EVENTS if name != "withdrew"])
def test_an_event_that_raises_is_counted_and_harms_nothing(event: str) -> None:
    fragile = type("Fragile", (Recorder,), {event: raises})
    grove = Grove([FULL, MAMBA], policy=fragile)
    for text in ("abcd", "abcdef", "zzzz"):
        grove.put(text, [len(text)])
        grove.put(text, [len(text)])
        grove.match(text)
    grove.lock("abcd").release()
    grove.evict(100)
    grove.check()
    assert grove.tree.node_count == 0
    pools = [grove.tree.pool(name) for name in ("full", "mamba")]
    assert any("no victim" in str(pool.last_policy_failure) for pool in pools)
