"""The oracle can fail: each of these defects makes a model say something else, and is seen."""

from __future__ import annotations

from typing import Any

import pytest
from oracle.families import FAMILIES
from oracle.mutants import MUTANTS
from oracle.oracle_engine import WrongLogitsError
from oracle.recent_families import RECENT

ALL = {**FAMILIES, **RECENT}
CASES = [(name, family.name) for name, mutant in MUTANTS.items() for family in mutant.families]
SERVED = {(mutant.serve.__name__, family.name): mutant.serve for mutant in MUTANTS.values() for family in mutant.families}


@pytest.mark.parametrize(("name", "family"), CASES)
def test_a_defect_is_seen(name: str, family: str, monkeypatch: Any) -> None:
    MUTANTS[name].plant(monkeypatch)
    with pytest.raises(WrongLogitsError):
        MUTANTS[name].serve(ALL[family])


@pytest.mark.deep
@pytest.mark.parametrize(("served", "family"), SERVED)
def test_without_a_defect_nothing_is_seen(served: str, family: str) -> None:
    SERVED[served, family](ALL[family])


@pytest.mark.parametrize("family", ALL)
def test_each_family_has_a_defect_that_is_seen(family: str) -> None:
    assert any(family == seen for _, seen in CASES)
