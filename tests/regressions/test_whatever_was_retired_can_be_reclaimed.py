"""Nodes of an invalidated namespace were forgotten: where a second one was invalidated while the first was being taken apart,
and where something was locked when `reclaim` came by."""

from __future__ import annotations

from grove import Grove
from kinds import FULL, MAMBA

from unified_tree import TreeSettings


def filled(grove: Grove, namespace: str, count: int) -> None:
    for i in range(count):
        grove.put(f"a{chr(0x100 + i)}", namespace=namespace)


def reclaim_all(grove: Grove) -> None:
    while grove.tree.is_reclaimable:
        grove.tree.reclaim(1)


def test_a_second_invalidation_while_the_first_is_taken_apart() -> None:
    grove = Grove([FULL])
    filled(grove, "one", 50)
    filled(grove, "two", 50)
    filled(grove, "live", 1)
    grove.tree.invalidate("one")
    grove.tree.reclaim(20)
    grove.tree.invalidate("two")
    while grove.tree.is_reclaimable:
        grove.tree.reclaim(7)
        grove.check()
    assert grove.tree.node_count == 1


def test_dead_pages_go_before_live_ones() -> None:
    grove = Grove([FULL])
    filled(grove, "live", 5)
    filled(grove, "dead", 100)
    grove.tree.invalidate("dead")
    grove.evict(100)
    assert grove.tree.node_count == 5
    assert grove.match("a\u0100", "live").device.length == 2


def test_what_was_locked_comes_back_when_it_is_unlocked() -> None:
    grove = Grove([FULL, MAMBA])
    for text in ("abcd", "abcdef", "abxx"):
        grove.put(text, [len(text)])
    first, second = grove.lock("abcdef"), grove.lock("abxx")
    grove.tree.invalidate()
    reclaim_all(grove)
    assert grove.tree.node_count == 4, "all of it stands above what is locked"
    first.release()
    grove.check()
    reclaim_all(grove)
    assert grove.tree.node_count == 2
    second.release()
    grove.check()
    grove.tree.reclaim(100)
    assert grove.tree.node_count == 0
    grove.check()


def test_a_limit_is_a_limit() -> None:
    grove = Grove([FULL], page_size=1)
    text = "".join(chr(0x100 + i) for i in range(500))
    for length in range(1, 501):
        grove.put(text[:length])
    grove.tree.invalidate()
    while grove.tree.is_reclaimable:
        assert grove.tree.reclaim(10).deleted_nodes <= 10
    assert grove.tree.node_count == 0


def test_an_eviction_looks_at_a_bounded_number_of_retired_nodes() -> None:
    grove = Grove([FULL], page_size=1, settings=TreeSettings(evict_reclaim_limit=5))
    text = "".join(chr(0x100 + i) for i in range(100))
    for length in range(1, 101):
        grove.put(text[:length])
    grove.put("z", namespace="live")
    grove.tree.invalidate("")
    result = grove.tree.evict({"full": 1})
    assert result.deleted_nodes == 1
    assert grove.tree.is_reclaimable
    grove.check()
