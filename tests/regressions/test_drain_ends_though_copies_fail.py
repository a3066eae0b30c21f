"""Waiting for all transfers began what had failed anew, for ever.

Found by the simulation: a write-back cache whose engine had died never came back from `drain`.
"""

from __future__ import annotations

import pytest
from held_engine import Tiered
from kinds import FULL

from unified_tree.controllers import WritePolicy


def test_what_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = Tiered([FULL], device=10, write_policy=WritePolicy.WRITE_BACK, low_water=1.0, max_backup_share=0.1)
    for text in ("abcd", "efgh", "ijklmn"):
        tiered.serve(text)
    monkeypatch.setattr(tiered.engine, "drain", lambda: [tiered.engine.fail(open_) for open_ in list(tiered.engine.open)])
    tiered.cache.drain()
    assert tiered.engine.open == {}
    assert tiered.on_host() == 0
    monkeypatch.undo()
    tiered.end()
