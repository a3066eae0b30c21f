"""A required window in the pages of a longer one: whoever gave both never gets pages that hold only one."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import CARRY_OVER, FULL, swa
from numpy.typing import NDArray

from unified_tree import Boundary, Key, UnifiedTree

TOKENS = np.arange(100, 110)


def pages(first: int, count: int) -> NDArray[np.int64]:
    return np.arange(first, first + count)


def loaded_tree() -> tuple[UnifiedTree, Boundary]:
    """Six and four tokens that came back from host: 40, 41 and 42 hold the window of 5, 41 and 42 the one of 3 as well."""
    tree = UnifiedTree([FULL, swa(5), CARRY_OVER], 2)
    tree.insert(Key(TOKENS[:6]), {"full": pages(0, 3)})
    boundary = tree.insert(Key(TOKENS), {"full": pages(3, 2), "swa": pages(0, 3)}).boundary
    host = {"full": pages(0, 5), "swa": pages(0, 3), "carry": pages(0, 2)}
    tree.transfers.acknowledge(tree.transfers.backup(boundary, host))
    tree.evict({"full": 5, "swa": 3})
    tree.transfers.acknowledge(tree.transfers.load(boundary, {"full": pages(40, 5), "swa": pages(40, 3)}))
    return tree, boundary


def test_locked_pages_without_the_sharer_leave_the_given_ones_to_their_caller() -> None:
    tree, boundary = loaded_tree()
    receipt = tree.lock(boundary)
    result = tree.insert(Key(TOKENS[:6]), {"full": pages(20, 3), "swa": pages(20, 3)})
    assert sorted(result.canonical) == ["full"]
    assert result.duplicates["full"].tolist() == [20, 21, 22]
    assert "swa" not in result.duplicates
    assert tree.pool("swa").used_pages == 3
    assert not tree.transfers.is_boundary(result.boundary)
    receipt.release()
    assert tree.check() == []


def test_unlocked_pages_without_the_sharer_give_way() -> None:
    tree, _ = loaded_tree()
    result = tree.insert(Key(TOKENS[:6]), {"full": pages(20, 3), "swa": pages(20, 3)})
    assert result.canonical["swa"].tolist() == [20, 21, 22]
    assert result.replaced["swa"].tolist() == [40]
    assert tree.transfers.is_boundary(result.boundary)
    assert tree.check() == []


@pytest.mark.parametrize(("length", "is_shared"), [(8, False), (10, True)])
def test_locked_pages_are_shared_where_the_sharer_needs_no_more(length: int, is_shared: bool) -> None:
    tree, boundary = loaded_tree()
    receipt = tree.lock(boundary)
    result = tree.insert(Key(TOKENS[:length]), {"full": pages(20, length // 2), "swa": pages(20, 3)})
    assert ("swa" in result.canonical) is is_shared  # the three tokens before 8 begin in page 40
    receipt.release()
    assert tree.check() == []


def test_the_callers_own_lack_of_the_sharer_loses_nothing() -> None:
    tree, boundary = loaded_tree()
    receipt = tree.lock(boundary)
    result = tree.insert(Key(TOKENS[:6]), {"full": pages(20, 3), "swa": pages(20, 3)}, without=["carry"])
    assert result.canonical["swa"].tolist() == [20, 21, 40]
    receipt.release()
    assert tree.check() == []


def test_pages_that_are_the_trees_already_lose_nothing() -> None:
    tree, boundary = loaded_tree()
    receipt = tree.lock(boundary)
    held = tree.pages(boundary, "swa")
    result = tree.insert(Key(TOKENS[:6]), {"full": pages(40, 3), "swa": held[:1]})
    assert result.canonical["swa"].tolist() == held[:1].tolist()
    receipt.release()
    assert tree.check() == []
