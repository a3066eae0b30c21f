"""A boundary was saved whose window the tree had in part. That part kept its age, and went long before the rest."""

from __future__ import annotations

import pytest
from grove import Grove
from kinds import FULL, swa


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_what_a_saved_window_needs_of_an_older_one_is_as_young_as_itself(policy: str) -> None:
    grove = Grove([FULL, swa(6)], policy=policy)
    grove.put("abcdefgh")
    grove.put("zzzzzzzz")
    grove.put("abcdef")  # the window before its end is in that before the end of the first, but for a page
    grove.evict(4, "swa")
    assert [grove.match(text, touch=False).device.length for text in ("abcdef", "zzzzzzzz")] == [6, 0]
    grove.check()


def test_an_insert_is_no_hit() -> None:
    grove = Grove([FULL, swa(6)])
    grove.put("abcdefgh")
    grove.put("abcdef")
    grove.match("abcdef")
    boundary = grove.match("abcdef", touch=False).device
    assert grove.tree.transfers.hits(boundary) == 1
    grove.check()
