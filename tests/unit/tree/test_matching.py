"""Matching: a match is always a boundary, never just a length, and changes nothing."""

from __future__ import annotations

import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import NOWHERE, Boundary, StaleBoundaryError, UnifiedTreeError


def test_a_match_is_the_longest_prefix_in_whole_pages() -> None:
    grove = Grove([FULL])
    grove.put("abcdefg")
    for text, length in {"abcdefgh": 6, "abcdefx": 6, "abcdex": 4, "abcd": 4, "abc": 2, "a": 0, "": 0, "xbcd": 0}.items():
        match = grove.match(text)
        assert match.device.length == match.reachable.length == match.path_length == length
    assert grove.pages("abcdxx") == [100, 101]


def test_a_match_changes_no_structure() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdef", [4])
    before = grove.tree.dump()
    grove.match("abcdxx")
    grove.match("abxx", touch=False)
    grove.match("zz", "new")
    assert grove.tree.dump() == before
    grove.check()


def test_a_match_stops_at_the_limit() -> None:
    grove = Grove([FULL])
    grove.put("abcdef")
    for limit, length in {6: 6, 5: 4, 1: 0, 0: 0, -3: 0, 99: 6}.items():
        assert grove.match("abcdef", limit=limit).device.length == length


def test_nothing_matched_is_nowhere() -> None:
    grove = Grove([FULL])
    assert grove.match("ab").device == NOWHERE
    assert grove.tree.pages(NOWHERE, "full").size == 0


def test_a_window_gates_a_boundary() -> None:
    grove = Grove([FULL, swa(3)])
    grove.put("abcdefgh")
    assert grove.match("abcdefgh").device.length == 8
    behind = grove.match("abcdefxx")
    assert (behind.device.length, behind.path_length) == (0, 6)
    assert grove.pages("abcdefgh", "swa") == [200, 201]
    assert grove.pages("abcdefgh", "full") == [100, 101, 102, 103]


def test_a_window_that_reaches_over_nodes_has_boundaries_inside_them() -> None:
    grove = Grove([FULL, swa(3)])
    grove.put("abcd")
    grove.put("abcdefghij", window=3)
    # [8, 10) needs [5, 8): the second node has [6, 10); and at 8 the window [5, 8) lacks its first page
    assert grove.match("abcdefghij").device.length == 10
    assert grove.match("abcdefghxx").device.length == 4
    grove.put("abcdefghijklmn")
    assert grove.match("abcdefghijklxx").device.length == 12


def test_a_window_longer_than_the_prefix_needs_all_of_it() -> None:
    grove = Grove([FULL, swa(9)])
    grove.put("abcd")
    assert grove.match("abcd").device.length == 4
    assert grove.match("abxx").device.length == 2
    grove.evict(1, "swa")
    assert grove.match("abcd").device.length == 0


@pytest.mark.parametrize(("window", "pages"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)])
def test_a_window_needs_the_pages_it_touches(window: int, pages: int) -> None:
    grove = Grove([FULL, swa(window)])
    grove.put("abcdefgh", window=pages - 1)
    assert grove.match("abcdefgh").device.length == 0
    grove.put("abcdefgh", window=pages)
    assert grove.match("abcdefgh").device.length == 8
    assert len(grove.pages("abcdefgh", "swa")) == pages


def test_a_state_is_valid_only_where_it_was_saved() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdefgh", [4])
    for text, length in {"abcdefgh": 4, "abcdxx": 4, "abcd": 4, "abxx": 0}.items():
        assert grove.match(text).device.length == length
    assert grove.match("abcdefgh").path_length == 8
    assert grove.match("abcd", limit=3).device.length == 0
    assert grove.pages("abcdef", "mamba") == [200]


def test_all_required_kinds_must_meet() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    grove.put("abcdefgh", [4])
    assert grove.match("abcdefgh").device.length == 0, "the window is at 8, the state at 4"
    grove.put("abcd", [4])
    assert grove.match("abcdefgh").device.length == 4
    grove.put("abcdefgh", [8])
    assert grove.match("abcdefgh").device.length == 8


def test_an_optional_kind_never_shortens_a_match() -> None:
    grove = Grove([FULL, OWN_DRAFT])
    grove.tree.insert(key("abcdef"), {"full": grove.fresh("full", 3)})
    grove.put("abxx", since=0)
    assert grove.match("abcdef").device.length == 6
    assert grove.pages("abcdef", "draft") == [200]


@pytest.mark.parametrize(("tail", "resumed"), [("ijkl", 12), ("ijkx", 10), ("ijxx", 10), ("", 8)])
def test_a_missing_window_can_be_rebuilt(tail: str, resumed: int) -> None:
    grove = Grove([FULL, swa(3, rebuild_tokens=4)])
    grove.put("abcdefghijkl", window=0)
    match = grove.match("abcdefgh" + tail)
    assert match.device == NOWHERE
    assert match.rebuild.length == resumed
    # four tokens, and those before them that make the window's first page whole
    assert match.rebuild_tokens == 6
    assert (match.rebuild.length - match.rebuild_tokens) % 2 == 0


def test_a_rebuild_is_no_use_near_a_plain_boundary() -> None:
    grove = Grove([FULL, swa(3, rebuild_tokens=4)])
    grove.put("abcd")
    grove.put("abcdefgh", window=0)
    match = grove.match("abcdefgh")
    assert match.rebuild == match.device
    assert (match.device.length, match.rebuild_tokens) == (4, 0)
    grove.put("abcdefghijkl", window=0)
    match = grove.match("abcdefghijkl")
    assert (match.device.length, match.rebuild.length, match.rebuild_tokens) == (4, 12, 6)


def test_nothing_is_rebuilt_where_that_is_not_known_to_be_exact() -> None:
    for components in ([FULL, swa(3)], [FULL, swa(3, rebuild_tokens=3), MAMBA]):
        grove = Grove(components)
        grove.put("abcdefghijkl", window=0)
        match = grove.match("abcdefghijkl")
        assert match.rebuild == match.device == NOWHERE
        assert match.rebuild_tokens == 0


def test_pages_of_a_boundary_that_is_gone() -> None:
    grove = Grove([FULL])
    boundary = grove.put("abcd").boundary
    grove.evict(2)
    with pytest.raises(StaleBoundaryError, match="match again"):
        grove.tree.pages(boundary, "full")
    for nonsense in (Boundary(boundary.node, 3), Boundary(boundary.node, 6), Boundary(boundary.node, -2)):
        with pytest.raises(StaleBoundaryError):
            grove.tree.pages(nonsense, "full")


def test_pages_of_a_component_that_does_not_exist() -> None:
    grove = Grove([FULL])
    with pytest.raises(UnifiedTreeError, match="no component 'swa'"):
        grove.tree.pages(NOWHERE, "swa")


def test_pages_cannot_be_written_to() -> None:
    grove = Grove([FULL])
    pages = grove.tree.pages(grove.put("abcd").boundary, "full")
    assert not pages.flags.writeable
