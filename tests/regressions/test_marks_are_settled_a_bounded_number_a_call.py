"""One eviction paid for all continuations of a prompt whose window went: each was no boundary any more, its values stranded."""

from __future__ import annotations

from grove import Grove
from kinds import FULL, swa

from unified_tree import TreeSettings


def a_prompt_with_continuations(count: int, settle_limit: int) -> Grove:
    grove = Grove([FULL, swa(8)], policy="fifo", settings=TreeSettings(settle_limit=settle_limit))
    grove.put("abcdefgh")
    for i in range(count):
        grove.put(f"abcdefgh{chr(0x100 + i)}x", window=1)
    grove.tree.settle()
    assert grove.tree.settle() == 0
    return grove


def test_the_rest_waits_and_is_done_in_the_end() -> None:
    grove = a_prompt_with_continuations(200, settle_limit=5)
    assert grove.tree.pool("swa").stranded_pages == 0
    assert grove.evict(1, "swa")["swa"] == [200, 201, 202, 203], "the window of the prompt was there first"
    grove.check()
    assert grove.tree.pool("swa").stranded_pages < 20
    while grove.tree.settle(7) == 7:
        grove.check()
    assert grove.tree.pool("swa").stranded_pages == 200, "every continuation has lost its window"


def test_what_waits_is_no_boundary_meanwhile() -> None:
    grove = a_prompt_with_continuations(50, settle_limit=1)
    last = grove.match("abcdefgh" + chr(0x100) + "x").device
    assert grove.tree.transfers.is_boundary(last)
    grove.evict(1, "swa")
    assert not grove.tree.transfers.is_boundary(last), "whatever its mark still says"
    assert last not in grove.tree.transfers.boundaries()


def test_children_that_go_while_it_is_their_turn() -> None:
    grove = a_prompt_with_continuations(60, settle_limit=1)
    grove.evict(1, "swa")
    for _ in range(40):
        grove.evict(1)
        grove.check()
    while grove.tree.settle(1):
        grove.check()
