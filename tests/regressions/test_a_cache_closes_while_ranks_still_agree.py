"""Among ranks a copy that has ended here waits for the others. Closing then published what stood on it first, and raised.

Seeds 92, 149, 156, 228 and 250 of the simulated ranks.
"""

from __future__ import annotations

from held_engine import Tiered
from kinds import FULL

from unified_tree.controllers.ranks import LocalConsensus


def test_what_stands_on_an_undecided_copy_ends_after_it() -> None:
    tiered = Tiered([FULL], ranks=LocalConsensus())
    for text in ("abcd", "abcdef"):
        tiered.serve(text)
        tiered.cache.poll()
    first, second = tiered.engine.open
    tiered.engine._land(first)
    tiered.cache.poll()
    tiered.engine._land(second)
    tiered.cache.close()
    tiered.end()
