"""`lock(components=[sharer])` pinned nothing: the pages are booked with the owner, which was not asked for."""

from __future__ import annotations

import pytest
from grove import Grove
from kinds import CARRY_OVER, DRAFT, FULL, MAMBA, swa


@pytest.mark.parametrize(("sharer", "owner", "page_count"), [("draft", "full", 2), ("carry", "swa", 2)])
def test_the_pages_it_lives_in_stay(sharer: str, owner: str, page_count: int) -> None:
    grove = Grove([FULL, DRAFT, swa(3), CARRY_OVER, MAMBA])
    grove.put("abcd", [4])
    receipt = grove.lock("abcd", components=[sharer])
    assert grove.tree.pool(owner).protected_pages == page_count
    grove.evict(10, owner)
    grove.check()
    assert grove.tree.pages(receipt.boundary, sharer).size == page_count
    receipt.release()
    grove.check()
