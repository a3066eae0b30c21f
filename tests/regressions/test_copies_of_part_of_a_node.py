"""A copy of a boundary inside a node asked for pages of the whole node, and lost those it did not use."""

from __future__ import annotations

import numpy as np
from grove import Grove, lists
from kinds import FULL


def test_every_page_given_is_used_or_handed_back() -> None:
    grove = Grove([FULL])
    grove.put("abcdef")
    boundary = grove.match("abcd").device
    assert grove.tree.transfers.backup_needs(boundary) == {"full": 2}
    effect = grove.tree.transfers.backup(boundary, {"full": np.array([7, 8])})
    assert lists(grove.tree.transfers.abort(effect)) == {"full": [7, 8]}
