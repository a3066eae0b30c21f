"""Effects: copies between device and host, acknowledged or aborted exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key, lists
from kinds import DRAFT, FULL, MAMBA, swa

from unified_tree import NOWHERE, Copy, Effect, EffectError, EffectKind, PageError, StaleBoundaryError, Tier

HOST = Tier.HOST


def begin_backup(grove: Grove, text: str) -> Effect:
    boundary = grove.match(text, touch=False).device
    pages = {name: grove.fresh(name, count) for name, count in grove.tree.transfers.backup_needs(boundary).items()}
    return grove.tree.transfers.backup(boundary, pages)


def begin_load(grove: Grove, text: str) -> Effect:
    boundary = grove.match(text, touch=False).reachable
    pages = {name: grove.fresh(name, count) for name, count in grove.tree.transfers.load_needs(boundary).items()}
    return grove.tree.transfers.load(boundary, pages)


def copies(effect: Effect) -> dict[str, list[tuple[int, int]]]:
    return {copy.component: list(zip(copy.source.tolist(), copy.target.tolist(), strict=True)) for copy in effect.copies}


def host_pages(grove: Grove, text: str, component: str = "full") -> list[int]:
    ids: list[int] = grove.tree.pages(grove.match(text, touch=False).reachable, component, HOST).tolist()
    return ids


def test_a_backup_copies_what_a_boundary_needs() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcdefgh", [8])
    effect = begin_backup(grove, "abcdefgh")
    assert effect.kind is EffectKind.BACKUP
    assert [copy.component for copy in effect.copies] == ["full", "mamba", "swa"], "paths first, then the sidecars"
    assert all(isinstance(copy, Copy) for copy in effect.copies)
    assert copies(effect)["swa"] == [(200, 202), (201, 203)]
    assert host_pages(grove, "abcdefgh") == [], "not before it is acknowledged"
    assert grove.tree.transfers.acknowledge(effect) == {}
    assert host_pages(grove, "abcdefgh") == [104, 105, 106, 107]
    assert host_pages(grove, "abcdefgh", "swa") == [202, 203]
    assert host_pages(grove, "abcdefgh", "mamba") == [301]
    assert grove.tree.transfers.backup_needs(grove.match("abcdefgh").device) == {}
    grove.check()


def test_the_sources_are_pinned_until_the_effect_ends() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    effect = begin_backup(grove, "abcd")
    assert grove.tree.pool("full").evictable_pages == grove.tree.pool("mamba").evictable_pages == 0
    assert grove.evict(9) == grove.evict(9, "mamba") == {}
    grove.tree.transfers.abort(effect)
    assert (grove.tree.pool("full").evictable_pages, grove.tree.pool("mamba").evictable_pages) == (2, 1)
    grove.check()


def test_a_boundary_inside_a_node_needs_no_more_than_its_own_pages() -> None:
    grove = Grove([FULL])
    grove.put("abcdef")
    boundary = grove.match("abcd").device
    assert grove.tree.transfers.backup_needs(boundary) == {"full": 2}
    effect = grove.tree.transfers.backup(boundary, {"full": np.array([0, 1])})
    assert copies(effect) == {"full": [(100, 0), (101, 1)]}
    grove.tree.transfers.acknowledge(effect)
    grove.evict(3)
    inside = grove.match("ab").reachable
    assert grove.tree.transfers.load_needs(inside) == {"full": 1}
    loading = grove.tree.transfers.load(inside, {"full": np.array([9])})
    assert copies(loading) == {"full": [(0, 9)]}
    grove.tree.transfers.acknowledge(loading)
    assert grove.pages("abcd") == [9]
    grove.check()


def test_a_window_that_goes_on_below_the_boundary_is_cut_for_a_backup() -> None:
    grove = Grove([FULL, swa(3)])
    grove.put("abcd")
    grove.put("abcdefgh", window=2)
    boundary = grove.match("abcdef").device
    assert boundary.length == 6
    needs = grove.tree.transfers.backup_needs(boundary)
    effect = grove.tree.transfers.backup(boundary, {name: grove.fresh(name, count) for name, count in needs.items()})
    assert {copy.component: copy.target.size for copy in effect.copies} == needs
    grove.tree.transfers.acknowledge(effect)
    grove.check()


def test_an_aborted_effect_returns_all_its_pages() -> None:
    grove = Grove([FULL, swa(3)])
    grove.put("abcd")
    effect = begin_backup(grove, "abcd")
    assert lists(grove.tree.transfers.abort(effect)) == {"full": [102, 103], "swa": [202, 203]}
    assert grove.tree.pool("full", HOST).used_pages == 0
    grove.check()


@pytest.mark.parametrize("first", ["acknowledge", "abort"])
@pytest.mark.parametrize("second", ["acknowledge", "abort"])
def test_an_effect_ends_once(first: str, second: str) -> None:
    grove, other = Grove([FULL]), Grove([FULL])
    grove.put("abcd")
    effect = begin_backup(grove, "abcd")
    with pytest.raises(EffectError, match="another tree"):
        getattr(other.tree.transfers, first)(effect)
    getattr(grove.tree.transfers, first)(effect)
    before = grove.tree.dump()
    with pytest.raises(EffectError, match="ended before"):
        getattr(grove.tree.transfers, second)(effect)
    assert grove.tree.dump() == before
    grove.check()


def test_a_load_brings_back_what_the_device_lacks() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcdefgh", [8])
    grove.backup("abcdefgh")
    grove.tree.evict({"full": 9})
    match = grove.match("abcdefgh")
    assert (match.device.length, match.reachable.length, match.path_length) == (0, 8, 8)
    effect = begin_load(grove, "abcdefgh")
    assert effect.kind is EffectKind.LOAD
    assert copies(effect)["full"] == [(104, 108), (105, 109), (106, 110), (107, 111)]
    assert grove.tree.evict({"full": 9}, HOST).freed == {}, "the host copies are pinned"
    assert grove.tree.transfers.acknowledge(effect) == {}
    assert grove.pages("abcdefgh") == [108, 109, 110, 111]
    assert grove.match("abcdefgh").device.length == 8
    grove.check()


def test_a_load_takes_only_what_is_missing() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.backup("abcd")
    grove.evict(1, "mamba")
    boundary = grove.match("abcd").reachable
    assert grove.tree.transfers.load_needs(boundary) == {"mamba": 1}
    receipt = grove.tree.transfers.load(boundary, {"mamba": grove.fresh("mamba", 1)})
    assert grove.evict(9) == {}, "the path above the hole is pinned, too"
    grove.tree.transfers.acknowledge(receipt)
    assert grove.match("abcd").device.length == 4
    grove.check()


def test_the_same_is_not_copied_twice_at_a_time() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.put("abcdefgh", [8])
    grove.backup("abcdefgh")
    grove.backup("abcd")
    grove.tree.evict({"full": 9, "mamba": 9})
    first, second = begin_load(grove, "abcd"), begin_load(grove, "abcdefgh")
    assert second.after == (first,)
    assert copies(second) == {"full": [(106, 110), (107, 111)], "mamba": [(202, 205)]}
    third = begin_load(grove, "abcd")
    assert (third.copies, third.after) == ((), (first,))
    ahead = grove.match("abcdefgh").reachable
    assert grove.tree.transfers.pages_with_loads(ahead, "full").tolist() == [108, 109, 110, 111]
    assert grove.tree.transfers.pages_with_loads(ahead, "mamba").tolist() == [205]
    with pytest.raises(EffectError, match="stands on one that has not ended"):
        grove.tree.transfers.acknowledge(second)
    for effect in (first, third, second):
        assert grove.tree.transfers.acknowledge(effect) == {}
    assert grove.pages("abcdefgh") == [108, 109, 110, 111]
    grove.check()


def test_what_stands_on_an_aborted_load_comes_back_unused() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.tree.evict({"full": 9})
    first, second = begin_load(grove, "ab"), begin_load(grove, "abcd")
    assert lists(grove.tree.transfers.abort(first)) == {"full": [104]}
    assert grove.tree.transfers.pages_with_loads(grove.match("abcd").reachable, "full").size == 0, "a path has no holes"
    assert lists(grove.tree.transfers.acknowledge(second)) == {"full": [105]}
    grove.check()


def test_a_prefill_that_overtakes_a_load_wins() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(2)
    effect = begin_load(grove, "abcd")
    assert grove.put("abcd", since=0).duplicates == {}
    assert lists(grove.tree.transfers.acknowledge(effect)) == {"full": [104, 105]}
    assert grove.pages("abcd") == [106, 107]
    grove.check()


@pytest.mark.parametrize("way", ["backup", "load"])
def test_a_split_under_way_publishes_to_both_halves(way: str) -> None:
    grove = Grove([FULL, swa(5), MAMBA])
    grove.put("abcdefgh", [8])
    if way == "load":
        grove.backup("abcdefgh")
        grove.tree.evict({"full": 9})
    effect = begin_backup(grove, "abcdefgh") if way == "backup" else begin_load(grove, "abcdefgh")
    grove.put("abcdefxx", window=0, since=0)
    assert grove.tree.node_count == 3
    assert set(lists(grove.tree.transfers.acknowledge(effect))) <= {"full"}
    grove.check()
    if way == "backup":
        grove.tree.evict({"full": 9})
    match = grove.match("abcdefgh")
    assert (match.device.length, match.reachable.length)[way == "backup"] == 8
    tier = HOST if way == "backup" else Tier.DEVICE
    assert grove.tree.pool("swa", tier).used_pages == 3


def test_a_sharer_is_loaded_into_its_owners_pages() -> None:
    grove = Grove([FULL, DRAFT])
    grove.put("abcd")
    backed_up = grove.backup("abcd")
    assert set(backed_up) == {"full", "draft"}, "on host it has pages of its own"
    grove.evict(9)
    boundary = grove.match("abcd").reachable
    assert grove.tree.transfers.load_needs(boundary) == {"full": 2}
    effect = begin_load(grove, "abcd")
    assert [copy.component for copy in effect.copies] == ["full", "draft"]
    assert effect.copies[0].target.tolist() == effect.copies[1].target.tolist()
    assert effect.copies[1].source.tolist() == backed_up["draft"]
    grove.tree.transfers.acknowledge(effect)
    assert grove.pages("abcd", "draft") == grove.pages("abcd")
    grove.check()


def test_a_load_without_the_draft_leaves_it_invalid() -> None:
    grove = Grove([FULL, DRAFT])
    grove.put("abcd")
    grove.backup("abcd")
    assert set(grove.evict(9, "draft", HOST)) == {"draft"}
    grove.evict(9)
    grove.tree.transfers.acknowledge(begin_load(grove, "abcd"))
    assert len(grove.pages("abcd")) == 2
    assert grove.pages("abcd", "draft") == []


def test_a_host_copy_goes_freely_where_the_device_has_one() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    result = grove.tree.evict({"full": 1}, HOST)
    assert sum(ids.size for ids in result.freed.values()) == 1
    assert result.deleted_nodes == 0
    assert grove.match("abcd").device.length == 4
    grove.check()


def test_a_host_copy_under_host_only_nodes_stays() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(2)
    assert lists(grove.tree.evict({"full": 1}, HOST).freed) == {"full": [103]}, "the leaf, though [ab] is as old"
    assert grove.match("abcd").reachable.length == 2
    grove.evict(1, tier=HOST)
    assert grove.tree.node_count == 0
    grove.check()


def test_a_host_copy_above_others_stays_though_the_device_has_one() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(1)
    grove.match("abcd")
    assert grove.tree.dump().endswith("    #2 [2, 4) h:full:1")
    # were the host copy of [ab] gone, the device's would be the last one above [cd], and could not go
    assert grove.evict(1, tier=HOST) == {"full": [103]}
    assert grove.evict(1) == {"full": [100]}
    assert grove.match("ab").reachable.length == 2
    grove.check()


def test_a_host_only_node_returns_to_the_device() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(2)
    result = grove.put("abcd", since=0)
    assert result.duplicates == {}
    assert result.matched_length == 4
    assert grove.match("abcd").device.length == 4
    assert host_pages(grove, "abcd") == [102, 103]
    grove.check()


def test_a_lock_on_host_pins_the_host_copies() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    grove.backup("abcd")
    receipt = grove.tree.lock(grove.match("abcd").reachable, HOST)
    assert (grove.tree.pool("full", HOST).protected_pages, grove.tree.pool("full").protected_pages) == (2, 0)
    assert grove.evict(9, tier=HOST) == grove.evict(9, "mamba", HOST) == {}
    receipt.release()
    assert grove.tree.pool("full", HOST).protected_pages == 0
    grove.check()


@pytest.mark.parametrize("pages", [{}, {"full": [0]}, {"full": [0, 1, 2]}, {"full": [0, 1], "nope": [0]}])
def test_exactly_the_needed_pages(pages: dict[str, list[int]]) -> None:
    grove = Grove([FULL])
    boundary = grove.put("abcd").boundary
    before = grove.tree.dump()
    with pytest.raises(EffectError, match="takes"):
        grove.tree.transfers.backup(boundary, {name: np.array(ids) for name, ids in pages.items()})
    assert grove.tree.dump() == before


@pytest.mark.parametrize("pages", [[0, 0], [-1, 0]])
def test_bad_host_pages(pages: list[int]) -> None:
    grove = Grove([FULL])
    boundary = grove.put("abcd").boundary
    with pytest.raises(PageError):
        grove.tree.transfers.backup(boundary, {"full": np.array(pages)})
    assert grove.tree.pool("full").protected_pages == 0
    grove.check()


def test_pages_in_flight_belong_to_their_transfer() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.put("cd")
    first = grove.tree.transfers.backup(grove.match("ab").device, {"full": np.array([5])})
    with pytest.raises(PageError, match="5"):
        grove.tree.transfers.backup(grove.match("cd").device, {"full": np.array([5])})
    grove.check()
    grove.tree.transfers.abort(first)
    second = grove.tree.transfers.backup(grove.match("cd").device, {"full": np.array([5])})
    grove.tree.transfers.acknowledge(second)
    grove.check()


def test_device_pages_in_flight_cannot_be_inserted() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.backup("ab")
    grove.evict(1)
    effect = grove.tree.transfers.load(grove.match("ab").reachable, {"full": np.array([5])})
    with pytest.raises(PageError, match="5"):
        grove.tree.insert(key("zz"), {"full": np.array([5])})
    assert grove.tree.transfers.acknowledge(effect) == {}
    grove.check()


def test_only_what_is_covered_can_be_copied() -> None:
    grove = Grove([FULL, MAMBA])
    boundary = grove.put("abcd", [4]).boundary
    grove.evict(1, "mamba")
    with pytest.raises(StaleBoundaryError):
        grove.tree.transfers.backup(boundary, {"full": grove.fresh("full", 2)})
    with pytest.raises(StaleBoundaryError):
        grove.tree.transfers.load(boundary, {})
    assert grove.tree.pool("full").protected_pages == 0


def test_nowhere_needs_nothing() -> None:
    grove = Grove([FULL])
    assert grove.tree.transfers.backup_needs(NOWHERE) == grove.tree.transfers.load_needs(NOWHERE) == {}
    effect = grove.tree.transfers.backup(NOWHERE, {})
    assert effect.copies == ()
    assert grove.tree.transfers.acknowledge(effect) == {}
