"""Eviction: victims of the pool that is short, leaves first, and what cannot stand without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grove import Grove, lists
from kinds import DRAFT, FULL, MAMBA, swa

from unified_tree import (
    Component,
    ConfigurationError,
    Key,
    MissCause,
    Path,
    StaleBoundaryError,
    TreeSettings,
    UnifiedTree,
    Value,
)

KV2 = Component(name="kv2", coverage=Path())
DRAFT_OF_KV2 = Component(name="draft", coverage=Path(), required=False, shares="kv2")


def test_eviction_frees_as_many_as_can_be() -> None:
    grove = Grove([FULL]).having("abcd")
    assert grove.evict(0) == {}
    result = grove.tree.evict({"full": 99})
    assert lists(result.freed) == {"full": [100, 101]}
    assert (result.victims, result.tombstones, result.deleted_nodes) == (1, 0, 1)
    assert grove.evict(1) == {}


def test_the_least_recently_used_goes_first() -> None:
    grove = Grove([FULL]).having("ab", "cd", "ef")
    grove.match("ab")
    grove.match("cd", touch=False)
    assert grove.evict(3) == {"full": [101, 102, 100]}


def test_stranded_values_go_first() -> None:
    grove = Grove([FULL, swa(2), MAMBA])
    grove.put("ab", [2])
    grove.put("cd", [2])
    grove.put("ef", [2])
    grove.evict(1, "mamba")  # of "ab", so that its window is of no use
    grove.match("ab")
    grove.put("gh")
    assert grove.tree.pool("swa").stranded_pages == 2
    assert grove.evict(1, "swa") == {"swa": [200]}
    assert grove.evict(1, "swa") == {"swa": [203]}
    assert grove.evict(1, "swa") == {"swa": [201]}


def test_a_new_leaf_inherits_the_recency_of_its_last_child() -> None:
    grove = Grove([FULL]).having("ab", "yz")
    receipt = grove.lock("yz")
    grove.put("abcd")
    assert grove.evict(1) == {"full": [102]}
    receipt.release()
    assert grove.evict(1) == {"full": [101]}, "[ab] was made earlier, but its child was used later"


def test_a_new_leaf_keeps_its_own_recency_if_that_is_later() -> None:
    grove = Grove([FULL]).having("ab", "abcd", "yz")
    grove.match("ab")
    assert grove.evict(2) == {"full": [101, 102]}


def test_a_new_leaf_inherits_priority() -> None:
    grove = Grove([FULL], policy="priority").having("ab")
    grove.put("abcd", priority=5)
    grove.put("yz", priority=1)
    assert grove.evict(1) == {"full": [102]}
    grove.put("wx", priority=9)
    assert grove.evict(1) == {"full": [101]}
    assert grove.evict(1) == {"full": [100]}


def test_a_new_leaf_inherits_the_sum_of_hits() -> None:
    grove = Grove([FULL], policy="lfu").having("ab", "abcd", "yz")
    for text in ("ab", "abcd", "abcd", "yz", "yz"):
        grove.match(text)
    assert grove.evict(1) == {"full": [101]}
    assert grove.evict(1) == {"full": [102]}, "two hits; [ab] has three now"
    assert grove.evict(1) == {"full": [100]}


@pytest.mark.parametrize("needs", [{"nope": 1}, {"draft": 1}, {"full": -1}])
def test_what_cannot_be_evicted(needs: dict[str, Any]) -> None:
    grove = Grove([FULL, DRAFT]).having("abcd")
    with pytest.raises(ConfigurationError, match=r"cannot evict|must be 0 or more"):
        grove.tree.evict(needs)
    assert grove.match("abcd").device.length == 4


@pytest.mark.parametrize("ghost_bytes", [0, 1 << 20])
def test_a_leaf_that_is_larger_than_needed_is_cut(ghost_bytes: int) -> None:
    grove = Grove([FULL], settings=TreeSettings(ghost_bytes=ghost_bytes)).having("abcdefgh", "yz")
    grove.lock("yz")
    result = grove.tree.evict({"full": 1}, cut_pages=1)
    assert lists(result.freed) == {"full": [103]}
    assert (result.victims, result.deleted_nodes) == (1, 1)
    assert grove.match("abcdefgh").device.length == 6
    assert lists(grove.tree.evict({"full": 1}, cut_pages=2).freed) == {"full": [101, 102]}, "at least as many as that"
    assert lists(grove.tree.evict({"full": 9}, cut_pages=1).freed) == {"full": [100]}
    grove.check()


@pytest.mark.parametrize("ghost_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kinds", [[FULL], [FULL, DRAFT]])
def test_a_boundary_behind_a_cut_is_stale_and_stays_so(kinds: list[Any], ghost_bytes: int) -> None:
    grove = Grove(kinds, settings=TreeSettings(ghost_bytes=ghost_bytes))
    end = grove.put("abcdef").boundary
    inside = grove.match("abcd").device
    grove.tree.evict({"full": 1}, cut_pages=1)
    grove.check()
    assert grove.put("abcdef").boundary.length == 6
    with pytest.raises(StaleBoundaryError):
        grove.tree.lock(end)
    if kinds == [FULL]:
        grove.tree.lock(inside).release()
    assert grove.match("abcd").device.length == 4
    grove.check()


@pytest.mark.parametrize("kinds", [[FULL, swa(2)], [FULL, MAMBA]])
def test_a_leaf_with_a_window_or_a_state_goes_whole(kinds: list[Any]) -> None:
    grove = Grove(kinds)
    grove.put("abcdef", [6] if MAMBA in kinds else [])
    assert lists(grove.tree.evict({"full": 1}, cut_pages=1).freed)["full"] == [100, 101, 102]
    grove.check()


@pytest.mark.parametrize("cut_pages", [0, -1, 1.5, "1"])
def test_a_cut_of_no_pages_is_refused(cut_pages: Any) -> None:
    with pytest.raises(ConfigurationError, match="cut_pages must be"):
        Grove([FULL]).tree.evict({"full": 1}, cut_pages=cut_pages)


def test_spare_windows_go_first_and_all_at_a_place_together() -> None:
    grove = Grove([FULL, swa(2)], page_size=1)
    grove.put("abcdefgh", window=8, keep_spare=True)
    grove.put("uvwxyz")
    assert grove.evict(1, "swa") == {"swa": [200, 201, 202, 203, 204, 205]}, "before the least recently used window"
    assert grove.match("abcdefgh", touch=False).device.length == 8
    grove.check()


def test_who_branches_off_among_spare_windows_keeps_only_what_it_needs() -> None:
    grove = Grove([FULL, swa(2)], page_size=1)
    grove.put("abcdefgh", window=8, keep_spare=True)
    branch = grove.match("abcdXY").device
    assert branch.length == 4
    grove.tree.lock(branch).release()
    grove.put("abcdXY")
    evicted = [grove.evict(1, "swa")["swa"] for _ in range(2)]
    assert sorted(evicted) == [[200, 201], [204, 205]]
    assert [grove.match(text, touch=False).device.length for text in ("abcdZ", "abcdefZ", "abcZ")] == [4, 4, 0]
    grove.check()


def test_the_window_at_the_end_of_what_goes_on_is_spare() -> None:
    grove = Grove([FULL, swa(2)], page_size=1).having("uvwx")
    grove.put("abcd", ends_spare=True)
    assert grove.match("abcd", touch=False).device.length == 4
    assert grove.evict(1, "swa") == {"swa": [202, 203]}
    grove.check()


def test_what_a_later_boundary_needs_of_a_spare_window_is_kept() -> None:
    grove = Grove([FULL, swa(4)], page_size=1)
    grove.put("abcdef", window=6, keep_spare=True, ends_spare=True)
    grove.put("abcdefgh", window=2)
    assert grove.match("abcdefgh", touch=False).device.length == 8
    assert grove.evict(1, "swa") == {"swa": [202, 203]}, "what only the spare boundary needed"
    assert grove.evict(1, "swa") == {"swa": [200, 201]}
    assert grove.match("abcdefgh", touch=False).device.length == 8
    grove.check()


def test_what_a_later_boundary_supersedes_goes_first() -> None:
    grove = Grove([FULL, swa(2)])
    for text in ("abcd", "uvwx"):
        early = grove.put(text).boundary
        grove.put(text + "efgh")
        grove.tree.supersede(early, "swa", 8)
    grove.match("uvwx")
    assert grove.evict(1, "swa") == {"swa": [200]}, "of the two that were superseded the one that no match has used"
    assert grove.evict(1, "swa") == {"swa": [201]}, "then the oldest"
    grove.check()


@pytest.mark.parametrize("is_used", [False, True])
def test_what_a_match_has_used_is_not_superseded(is_used: bool) -> None:
    grove = Grove([FULL, swa(2), MAMBA])
    grove.put("wxyz", [4])
    early = grove.put("abcd", [4]).boundary
    if is_used:
        grove.match("abcd")
    grove.put("abcdefgh", [8])
    grove.tree.supersede(early, "swa", 8)
    assert grove.evict(1, "swa") == {"swa": [200 if is_used else 201]}
    grove.check()


def test_a_window_that_the_later_boundary_shares_stays_recent() -> None:
    grove = Grove([FULL, swa(8)]).having("yzyz")
    early = grove.put("abcd").boundary
    grove.put("abcdef")
    grove.tree.supersede(early, "swa", 6)
    assert grove.evict(1, "swa") == {"swa": [200, 201]}
    grove.check()


def test_only_windows_are_superseded() -> None:
    grove = Grove([FULL, swa(2), MAMBA])
    early = grove.put("abcd", [4]).boundary
    for name in ("full", "mamba"):
        with pytest.raises(ConfigurationError, match="no windows of its own"):
            grove.tree.supersede(early, name, 8)
    grove.evict(2)
    grove.tree.supersede(early, "swa", 8)  # it is gone


def test_a_match_before_a_cut_is_made_anew_for_its_misses() -> None:
    grove = Grove([FULL], settings=TreeSettings(ghost_bytes=1 << 20)).having("abcdefgh")
    key = Key([ord(letter) for letter in "abcdefghyz"])
    found = grove.tree.match_prefix(key, limit=key.length - 1)
    grove.tree.evict({"full": 2}, cut_pages=1)
    causes = [(miss.cause, miss.tokens) for miss in grove.tree.misses(key, found, 4)]
    assert causes[0] == (MissCause.EVICTED, 4)
    assert causes == [(miss.cause, miss.tokens) for miss in grove.tree.misses(key, grove.tree.match_prefix(key, limit=9), 4)]


class Forgetful:
    """Keeps its ranks by node, and forgets those of what goes."""

    def __init__(self) -> None:
        self._uses: dict[tuple[int, int], int] = {}

    def touched(self, value: Value) -> None:
        place = value.component, value.node.id
        self._uses[place] = self._uses.get(place, 0) + 1

    def rank(self, value: Value) -> float:
        return self._uses[value.component, value.node.id]

    def went(self, value: Value, *, is_whole: bool) -> None:
        if is_whole:
            del self._uses[value.component, value.node.id]


@pytest.mark.parametrize("ghost_bytes", [0, 1 << 20])
def test_a_custom_policy_is_told_of_a_victim_when_all_of_it_goes(ghost_bytes: int) -> None:
    grove = Grove([FULL], policy=lambda _: Forgetful(), settings=TreeSettings(ghost_bytes=ghost_bytes)).having(
        "abcdefgh", "uvwxyz"
    )
    grove.match("uvwxyz")
    for page in (103, 102, 101, 100, 106, 105, 104):
        assert lists(grove.tree.evict({"full": 1}, cut_pages=1).freed) == {"full": [page]}
    assert grove.tree.pool("full").policy_failures == 0


def test_a_sharer_goes_once_where_its_owner_goes_with_another_path() -> None:
    tree = UnifiedTree([FULL, KV2, DRAFT_OF_KV2], 1)
    tree.insert(Key(range(10)), {"full": np.arange(10), "kv2": np.arange(10)})
    tree.insert(Key(range(20)), {"full": np.arange(10, 20), "kv2": np.arange(10, 20)})
    assert lists(tree.evict({"full": 10}).freed) == {"full": list(range(10, 20)), "kv2": list(range(10, 20))}
    assert not tree.check()
    assert not lists(tree.evict({"full": 99}).freed_elsewhere) and not tree.check()
