"""How long engines remember transfers that have ended."""

from __future__ import annotations

import pytest

from unified_tree.controllers.testing.transfer_rig import transfer
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED
from unified_tree.effect import EffectKind
from unified_tree.errors import TransferError


def test_what_is_forgotten_is_refused_and_not_guessed() -> None:
    engine = NullEngine()
    for ticket in range(REMEMBERED + 1):
        engine.submit([transfer(ticket, EffectKind.LOAD)])
    engine.poll()
    engine.wait_layer(1, 0)
    engine.wait(1)
    message = "transfer 0 is not known: it was never submitted, or ended over 4096"
    with pytest.raises(TransferError, match=message):
        engine.wait_layer(0, 0)
    with pytest.raises(TransferError, match=message):
        engine.wait(0)
