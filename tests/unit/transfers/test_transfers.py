"""Effects: copies between device and host, acknowledged or aborted exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key, lists
from kinds import FULL, MAMBA, swa

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


def test_a_host_copy_goes_freely_where_the_device_has_one() -> None:
    grove = Grove([FULL]).having("ab", "abcd")
    grove.backup("abcd")
    result = grove.tree.evict({"full": 1}, HOST)
    assert sum(ids.size for ids in result.freed.values()) == 1
    assert result.deleted_nodes == 0
    assert grove.match("abcd").device.length == 4
    grove.check()


def test_pages_in_flight_belong_to_their_transfer() -> None:
    grove = Grove([FULL]).having("ab", "cd")
    first = grove.tree.transfers.backup(grove.match("ab").device, {"full": np.array([5])})
    with pytest.raises(PageError, match="5"):
        grove.tree.transfers.backup(grove.match("cd").device, {"full": np.array([5])})
    grove.check()
    grove.tree.transfers.abort(first)
    second = grove.tree.transfers.backup(grove.match("cd").device, {"full": np.array([5])})
    grove.tree.transfers.acknowledge(second)
    grove.check()


def test_device_pages_in_flight_cannot_be_inserted() -> None:
    grove = Grove([FULL]).having("ab")
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


@pytest.mark.parametrize("ends_well", [True, False])
def test_target_pages_are_claimed_until_the_effect_ends_whatever_the_caller_does_to_its_arrays(ends_well: bool) -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcdefgh", [8])
    boundary = grove.match("abcdefgh", touch=False).device
    pages = {name: grove.fresh(name, count) for name, count in grove.tree.transfers.backup_needs(boundary).items()}
    asked = {name: ids.tolist() for name, ids in pages.items()}
    effect = grove.tree.transfers.backup(boundary, lambda _: pages)
    for ids in pages.values():
        ids[:] = -1
    pools = {name: grove.tree.pool(name, HOST) for name in asked}
    assert {name: pool.ledger.in_flight_pages for name, pool in pools.items()} == {n: len(ids) for n, ids in asked.items()}
    assert all(pools[name].ledger.owns(page) for name, ids in asked.items() for page in ids)
    if ends_well:
        assert not grove.tree.transfers.acknowledge(effect)
        assert host_pages(grove, "abcdefgh") == asked["full"]
    else:
        assert lists(grove.tree.transfers.abort(effect)) == asked
    assert not any(pool.ledger.in_flight_pages for pool in pools.values())
    assert all(pools[name].ledger.owns(page) == ends_well for name, ids in asked.items() for page in ids)
