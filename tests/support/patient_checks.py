"""The contract checks that users run, with more patience than they have of themselves: a busy machine breaks no clause."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import PATIENCE_S, PROGRAM_S

from unified_tree.controllers import testing
from unified_tree.controllers.testing import checks, transfer_rig


def let_no_clause_be_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a clause that hangs is given up."""
    for name in (*testing.__all__, "check_prefix_linker", "check_windowed_linker"):
        if name.startswith("check_"):
            check: Any = getattr(testing, name)
            monkeypatch.setitem(check.__kwdefaults__, "limit_s", PROGRAM_S)


def let_no_copy_be_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a copy given up that comes at all."""
    for module in (checks, transfer_rig):
        monkeypatch.setattr(module, "PATIENCE_S", PATIENCE_S)
