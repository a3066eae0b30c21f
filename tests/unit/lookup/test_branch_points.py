"""Branch points: where the next prefill should save, so that the next sharer of a prefix hits."""

from __future__ import annotations

import pytest
from grove import Grove
from kinds import FULL, MAMBA, swa

from unified_tree import Component, Point


def test_the_place_where_a_key_leaves_the_tree() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcdefgh", [8])
    match = grove.match("abcdefxx")
    assert (match.device.length, match.path_length, match.save_at) == (0, 6, (6,))
    grove.put("abcdefxx", [6, 8])
    assert grove.match("abcdefyy").device.length == 6
    assert grove.match("abcdefyy").save_at == ()


def test_a_whole_hit_needs_no_save() -> None:
    grove = Grove([FULL, MAMBA])
    grove.put("abcd", [4])
    assert grove.match("abcdxx").save_at == ()
    assert grove.match("zz").save_at == ()


def test_a_window_branches_as_well() -> None:
    grove = Grove([FULL, swa(3)])
    grove.put("abcdefgh")
    assert grove.match("abcdefxx").save_at == (6,)


@pytest.mark.parametrize(("text", "save_at"), [("abcdefghxx", (8,)), ("abcdefxxxx", (4,)), ("abxxxxxxxx", ())])
def test_a_branch_point_lies_on_the_grid_where_states_can_be_saved(text: str, save_at: tuple[int, ...]) -> None:
    grove = Grove([FULL, Component(name="mamba", coverage=Point(), save_grid_tokens=4)])
    grove.put("abcdefghij")
    assert grove.match(text).save_at == save_at


def test_a_grid_point_behind_the_hit_is_of_no_use() -> None:
    grove = Grove([FULL, Component(name="mamba", coverage=Point(), save_grid_tokens=4)])
    grove.put("abcdefghij", [4])
    assert grove.match("abcdefxx").save_at == ()


def test_paths_alone_have_no_branch_points() -> None:
    grove = Grove([FULL])
    grove.put("abcdefgh")
    assert grove.match("abcdefxx").save_at == ()
