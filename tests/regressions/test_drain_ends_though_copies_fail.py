"""Waiting for all transfers began what had failed anew, for ever; and when it came back, it had begun something else.

Found by the simulation: a write-back cache whose engine died, and one with a low-water mark that was never reached.
"""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL

from unified_tree.controllers import WritePolicy


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_open_afterwards(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, most_backed_up=0.1)
    for text in ("abcd", "efgh", "ijklmn"):
        tiered.serve(text)
    if fails:
        monkeypatch.setattr(tiered.engine, "drain", lambda: [tiered.engine.fail(open_) for open_ in list(tiered.engine.open)])
    tiered.cache.drain()
    assert tiered.engine.open == {}
    assert tiered.on_host() == (0 if fails else 7)
    monkeypatch.undo()
    tiered.end()
