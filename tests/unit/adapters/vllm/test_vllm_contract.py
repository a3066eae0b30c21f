"""The check of vLLM's interface: what it has recorded of the accepted versions, and what it tells of another."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_interface import ABSTRACT

from unified_tree.controllers.adapters.vllm import TESTED_VERSIONS

SCRIPT = Path(__file__).parents[3] / "e2e" / "vllm" / "vllm_contract.py"


@pytest.fixture
def contract() -> Any:
    spec = importlib.util.spec_from_file_location("vllm_contract", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vllm_contract"] = module
    spec.loader.exec_module(module)
    return module


def test_every_version_that_is_accepted_is_recorded_and_declares_what_the_connector_uses(contract: Any) -> None:
    recorded = contract.INTERFACE.recorded()
    assert tuple(recorded) == TESTED_VERSIONS
    wanted = {name for names in contract.INTERFACE.classes.values() for name in names} | contract.INTERFACE.functions.keys()
    used = contract.INTERFACE.used()
    for version in TESTED_VERSIONS:
        assert recorded[version].keys() == wanted
        assert not [
            str(change) for change in contract.INTERFACE.compare(recorded["0.32.0"], recorded[version], used) if change.matters
        ]


def test_a_change_of_what_the_connector_uses_is_told_first_and_matters(contract: Any) -> None:
    before = contract.INTERFACE.recorded()["0.33.0"]
    after = copy.deepcopy(before)
    base = after["KVConnectorBase_V1"]
    del base["restore_kv_caches"]
    base["new_duty"] = ABSTRACT + "(self)"
    base["new_offer"] = "(self)"
    changes = contract.INTERFACE.compare(before, after, contract.INTERFACE.used())
    assert [(change.what, change.name, change.matters) for change in changes] == [
        ("added", "new_duty", True), ("removed", "restore_kv_caches", True), ("added", "new_offer", False),
    ]  # fmt: skip


def test_a_folder_is_read_and_compared(contract: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / contract.CONNECTORS
    folder.mkdir(parents=True)
    (folder / "base.py").write_text("class KVConnectorBase_V1:\n    def reset_cache(self): ...\n")
    (tmp_path / "vllm-9.9.9.dist-info").mkdir()
    assert contract.INTERFACE.main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "! removed: KVConnectorBase_V1.shutdown" in told
    assert "vLLM 9.9.9 against 0.33.0" in told
