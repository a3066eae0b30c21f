"""Releasing a lease whose load had not been handed over raised when the engine refused it, with its pages half given back.

Found by a test of engines that die.
"""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL, MAMBA

from unified_tree import TransferError


def test_letting_go_always_works() -> None:
    tiered = Tiered([FULL, MAMBA])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    requests = [tiered.start("abcdefghi"), tiered.start("abcdefghj")]
    tiered.cache.allocate(requests[0].lease, 9)
    tiered.engine.error = "gone for good"
    tiered.runner.finish(requests[0])
    tiered.check()
    with pytest.raises(TransferError, match="gone for good"):
        tiered.cache.wait_layer(requests[1].lease, 0)
    tiered.runner.finish(requests[1])
    tiered.end()
