"""What a page must hold: other for every prefix, namespace, component and place in the page."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree.controllers.workbench.server.page_store import DIGEST_BYTES, component_digest, page_contents, prefix_digests

TOKENS = np.arange(40, dtype=np.int64)
FULL = component_digest("full")


def test_a_digest_stands_for_the_whole_prefix() -> None:
    digests = prefix_digests("", TOKENS, 8)
    assert digests.shape == (6, 8)
    assert len({row.tobytes() for row in digests}) == 6
    assert (prefix_digests("", TOKENS[:23], 8) == digests[:3]).all(), "whole pages only"
    changed = TOKENS.copy()
    changed[9] += 1
    other = prefix_digests("", changed, 8)
    assert (other[:2] == digests[:2]).all()
    assert (other[2:] != digests[2:]).any(axis=1).all(), "all that lies behind the change"
    assert (prefix_digests("tenant", TOKENS, 8) != digests).any(axis=1).all()


@pytest.mark.parametrize("page_bytes", [1, 63, 64, 65, 1000])
def test_contents_have_the_pages_size_and_differ(page_bytes: int) -> None:
    digests = prefix_digests("", TOKENS, 8)
    contents = page_contents(digests, FULL, page_bytes)
    assert contents.shape == (6, page_bytes)
    assert contents.dtype == np.uint8
    assert (contents == page_contents(digests, FULL, page_bytes)).all()
    if page_bytes >= 63:
        rows = [*contents, *page_contents(digests, component_digest("swa"), page_bytes)]
        assert len({row.tobytes() for row in rows}) == 12


def test_no_two_places_in_a_page_hold_the_same() -> None:
    [content] = page_contents(prefix_digests("", TOKENS[:0], 8), FULL, 100 * DIGEST_BYTES)
    assert len({block.tobytes() for block in content.reshape(100, -1)}) == 100
