"""A receipt that is to move to what is no boundary, or for components that there are not, says so and stays where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import Component, Key, Path, StaleBoundaryError, Trailing, UnifiedTree, UnifiedTreeError

PARTS = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(4))]


@pytest.mark.parametrize("boundary", [None, "x", 5, (1,), (1.5, 4), (None, 4), (1 << 40, 4)])
def test_what_is_no_boundary_is_refused(boundary: Any) -> None:
    tree = UnifiedTree(PARTS, page_size=4)
    end = tree.insert(Key(range(8)), {"full": np.arange(2), "swa": np.arange(1)}).boundary
    receipt = tree.lock(end)
    with pytest.raises(StaleBoundaryError):
        receipt.move(boundary)
    assert (receipt.boundary, tree.pool("full").protected_pages, tree.check()) == (end, 2, [])
    receipt.release()


@pytest.mark.parametrize("components", [["none"], "full", 5, [None], [["full"]]])
def test_what_is_no_component_is_refused(components: Any) -> None:
    tree = UnifiedTree(PARTS, page_size=4)
    end = tree.insert(Key(range(8)), {"full": np.arange(2), "swa": np.arange(1)}).boundary
    receipt = tree.lock(end)
    for call in (lambda: receipt.move(end, components), lambda: tree.lock(end, components=components)):
        with pytest.raises(UnifiedTreeError):
            call()
    assert tree.check() == []
    receipt.release()
    assert tree.pool("full").protected_pages == 0
