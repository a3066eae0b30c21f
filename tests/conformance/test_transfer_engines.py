"""Every transfer engine keeps the contract, as `unified_tree.controllers.testing` checks it."""

from __future__ import annotations

import random
from collections.abc import Callable

import patient_checks
import pytest
from engine_rigs import NAMES, rig

from unified_tree.controllers.testing import Check, transfer_engine_checks
from unified_tree.controllers.testing.transfer_contract import TRAFFIC_STEPS


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_checks.let_no_copy_be_too_slow(monkeypatch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", transfer_engine_checks(), ids=repr)
def test_every_engine_keeps_the_contract(check: Check, name: str, record_property: Callable[[str, object], None]) -> None:
    check(rig(name, chunk_blocks=random.Random(f"{name} {check}").choice([1, 4, 100])))
    if check.name.startswith("random") and name != "null":
        record_property("operations", TRAFFIC_STEPS)
