"""Page -1 was taken where the tree knew the place but had no value there: the next hit handed out -1, and `evict` freed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import EffectError, PageError, Tier

BAD: list[Any] = [[-1, -1], [1.0, 2.0], [True, False], ["1", "2"], [1 << 63, 1], [[1, 2]], [3, 3], None]


def tombstoned(grove: Grove) -> None:
    """The tree knows the text, but has neither its window nor its draft on device."""
    grove.put("abcd", [4], without=["draft"] if any(c.name == "draft" for c in grove.tree.components) else ())
    for component in ("swa", "draft", "mamba"):
        if component in grove.tree.state.layout.index:
            grove.evict(10, component)


@pytest.mark.parametrize("pages", BAD, ids=repr)
@pytest.mark.parametrize("component", ["swa", "draft"])
def test_a_tombstone_is_not_filled_with_what_is_no_page(component: str, pages: Any) -> None:
    grove = Grove([FULL, swa(3), OWN_DRAFT, MAMBA])
    tombstoned(grove)
    before = grove.tree.dump()
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.empty(0, np.int64), component: pages})
    assert grove.tree.dump() == before
    grove.check()


def test_a_state_is_no_page_below_zero() -> None:
    grove = Grove([FULL, MAMBA])
    tombstoned(grove)
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.empty(0, np.int64)}, {"mamba": {4: -1}})
    grove.check()


def test_a_node_that_lives_on_host_alone_is_not_filled_with_it() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    grove.backup("abcd")
    grove.evict(2)
    with pytest.raises(PageError):
        grove.tree.insert(key("abcd"), {"full": np.array([-1, -1])})
    grove.check()


@pytest.mark.parametrize("pages", [*BAD, [1], [1, 2, 3]], ids=repr)
def test_host_pages_are_page_ids(pages: Any) -> None:
    grove = Grove([FULL], host_page_counts={"full": 8})
    grove.put("abcd")
    boundary = grove.match("abcd").device
    with pytest.raises((PageError, EffectError)):
        grove.tree.transfers.backup(boundary, {"full": pages})
    grove.check()
    assert grove.tree.pool("full").protected_pages == 0


@pytest.mark.parametrize("pages", [*BAD, [7, 8]], ids=repr)
def test_grafted_pages_are_page_ids(pages: Any) -> None:
    grove = Grove([FULL], host_page_counts={"full": 8})
    with pytest.raises(PageError):
        grove.tree.transfers.graft(key("abcd"), {"full": pages})
    assert grove.tree.pool("full", Tier.HOST).used_pages == grove.tree.node_count == 0
    grove.check()


def test_host_pages_lie_in_the_pool() -> None:
    grove = Grove([FULL], host_page_counts={"full": 8})
    grove.put("abcd")
    with pytest.raises(PageError, match="below 8"):
        grove.tree.transfers.backup(grove.match("abcd").device, {"full": np.array([7, 8])})
