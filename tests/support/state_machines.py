"""How Hypothesis drives the random machines of `tests/model`."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from kinds import SETS


def search(machine: type[RuleBasedStateMachine], kinds: str, **options: Any) -> int:
    """Let Hypothesis search for histories that break a machine over a set of kinds; returns how many operations that were."""
    made: Any = type(machine.__name__, (machine,), {"kinds": SETS[kinds], "operations": 0})
    run_state_machine_as_test(
        made, settings=settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, **options)
    )
    return int(made.operations)
