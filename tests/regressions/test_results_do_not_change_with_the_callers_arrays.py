"""What the tree hands out, or keeps until an effect ends, was the caller's own array and changed when the caller reused it."""

from __future__ import annotations

import numpy as np
import pytest
from grove import Grove, key
from kinds import FULL, MAMBA, swa


def test_canonical_pages_are_a_copy() -> None:
    grove = Grove([FULL, swa(3), MAMBA])
    full, window = np.array([7, 8]), np.array([5, 6])
    result = grove.tree.insert(key("abcd"), {"full": full, "swa": window}, {"mamba": {4: 1}})
    full[:] = window[:] = 0
    assert {name: ids.tolist() for name, ids in result.canonical.items()} == {"full": [7, 8], "swa": [5, 6]}
    with pytest.raises(ValueError, match="read-only"):
        result.canonical["full"][0] = 1


def test_an_aborted_copy_gives_back_what_was_given() -> None:
    grove = Grove([FULL])
    grove.put("abcd")
    ids = np.array([3, 4])
    effect = grove.tree.transfers.backup(grove.match("abcd").device, {"full": ids})
    ids[:] = 9
    assert grove.tree.transfers.abort(effect)["full"].tolist() == [3, 4]
    grove.check()
