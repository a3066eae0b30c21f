"""Splits: a node that is cut keeps its id on the lower half, and each half what is its own."""

from __future__ import annotations

from grove import Grove
from kinds import FULL, swa


def test_a_suffix_window_gives_the_upper_half_what_exceeds_the_lower() -> None:
    grove = Grove([FULL, swa(6)]).having("abcdefgh")
    grove.put("abcdefxx", window=1)
    assert grove.tree.dump().splitlines() == [
        "namespace ''",
        "  #2 [0, 6) full:3 swa:2",
        "    #1 [6, 8) resumable full:1 swa:1",
        "    #3 [6, 8) resumable full:1 swa:1",
    ]
    assert grove.pages("abcdefgh", "swa") == [200, 201, 202]
    assert grove.pages("abcdefxx", "swa") == [200, 201, 203]


def test_hits_inside_a_node_belong_to_the_half_they_ended_in() -> None:
    grove = Grove([FULL], policy="lfu").having("abcdef")
    for _ in range(3):
        grove.match("abcdyy")
    grove.put("zz")
    grove.match("zz")
    grove.match("zz")
    grove.put("abcdxx")
    assert grove.evict(1) == {"full": [102]}, "no hit went as far as its lower half"
    assert grove.evict(1) == {"full": [104]}
    assert grove.evict(1) == {"full": [103]}, "two hits; the upper half has three"
    assert grove.evict(1) == {"full": [100, 101]}


def test_recency_inside_a_node_belongs_to_the_half_it_ended_in() -> None:
    grove = Grove([FULL]).having("abcdef", "zz")
    grove.match("abcd")
    grove.put("abcdxx")
    assert grove.evict(1) == {"full": [102]}, "the lower half was last used when it was made"
    assert grove.evict(1) == {"full": [103]}
