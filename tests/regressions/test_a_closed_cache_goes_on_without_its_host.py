"""After `close` the next poll or drain, or a commit of a lease still out, raised, for the engine takes no transfers any more.

Found by the simulation, in lives that close the cache while leases are out.
"""

from __future__ import annotations

from held_engine import Tiered
from kinds import FULL


def test_nothing_is_asked_of_a_closed_engine() -> None:
    tiered = Tiered([FULL])
    tiered.serve("abcdefgh")
    tiered.settle()
    tiered.forget()
    request = tiered.start("ijkl")
    tiered.cache.close()
    for call in (tiered.cache.poll, tiered.cache.drain, tiered.cache.flush):
        call()
    tiered.run(request)
    tiered.end()
