"""Matching: a match is always a boundary, never just a length, and changes nothing."""

from __future__ import annotations

import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import NOWHERE, Boundary, StaleBoundaryError, UnifiedTreeError
from unified_tree.lookup.matching import path_boundary


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


@pytest.mark.parametrize(("used", "window"), [("ab", None), ("abcd", None), ("abcdef", None), ("abcdef", 3)])
def test_a_touch_is_a_match_that_ends_there(used: str, window: int | None) -> None:
    groves = [Grove([FULL, MAMBA, *([] if window is None else [swa(window)])]) for _ in range(2)]
    for grove in groves:
        grove.put("abcdef", [2, 4, 6])
        grove.put("xy", [2])
    groves[0].match(used)
    groves[1].tree.touch(groves[1].match(used, touch=False).device)
    names = ["mamba", "full", "mamba", *([] if window is None else ["swa"]), "full", "mamba"]
    matched, touched = ([grove.evict(1, name) for name in names] for grove in groves)
    assert touched == matched


def test_a_boundary_that_is_gone_cannot_be_touched() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    gone = grove.match("abcd").device
    grove.evict(2)
    with pytest.raises(StaleBoundaryError, match="match again"):
        grove.tree.touch(gone)
    grove.tree.touch(NOWHERE)


def test_a_path_ends_where_its_pages_do_whatever_windows_and_states_there_are() -> None:
    grove = Grove([FULL, MAMBA, swa(3)])
    grove.put("abcdef", [4], window=0)
    for text, length in {"abcdefg": 6, "abcdxx": 4, "abxx": 2, "zz": 0}.items():
        match = grove.match(text)
        found = path_boundary(grove.tree.state, match.known)
        assert (match.device, found.length) == (NOWHERE, length)
        grove.tree.lock(found, components=("full",)).release()
    known = grove.match("abcdef").known
    grove.evict(2)
    assert path_boundary(grove.tree.state, known) == NOWHERE, "its node is gone"
    assert path_boundary(grove.tree.state, grove.match("abcdef").known).length == 2
    grove.check()


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
