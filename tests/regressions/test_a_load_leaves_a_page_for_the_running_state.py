"""A load took the last state page, so that the request that asked for it was refused: after pages had been evicted for it, and
though it could have run without.

Found by the simulation, which compares the books before and after a refusal.
"""

from __future__ import annotations

from held_engine import Tiered
from kinds import FULL, MAMBA


def test_without_a_page_for_the_state_nothing_is_loaded() -> None:
    tiered = Tiered([FULL, MAMBA], counts={"mamba": 2})
    tiered.serve("abcde")
    tiered.settle()
    tiered.forget()
    other = tiered.start("uv")
    dump = tiered.cache.tree.dump()
    request = tiered.start("abcdefg")
    assert (request.lease.cached_tokens, request.lease.is_loading) == (0, False)
    assert tiered.cache.tree.dump() == dump
    assert tiered.engine.open == {}
    tiered.runner.finish(other)
    tiered.runner.finish(request)
    tiered.forget()
    assert tiered.serve("abcdefg") == 4
    tiered.end()
