"""How the random machines of `tests/model` are driven: by Hypothesis, or through one long life that it would not live."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from kinds import SETS


def search(machine: type[RuleBasedStateMachine], kinds: str, **options: Any) -> int:
    """Let Hypothesis search for histories that break a machine over a set of kinds; returns how many operations that were."""
    made: Any = type(machine.__name__, (machine,), {"kinds": SETS[kinds], "operations": 0})
    run_state_machine_as_test(made, settings=settings(suppress_health_check=list(HealthCheck), database=None, **options))
    return int(made.operations)


def walk(
    machine: type[RuleBasedStateMachine],
    kinds: str,
    seed: str,
    steps: int,
    operations: Sequence[str],
    *,
    looks_every: int = 1,
    **attributes: Any,
) -> int:
    """Live one long life over a set of kinds: histories that Hypothesis makes are short and stop early; returns the steps.

    Args:
        machine: has `start`, `may`, which says of an operation whether it can come now, and `sound`.
        operations: names of rules, drawn alike; one that is named twice comes twice as often.
        looks_every: after how many operations all laws are checked, which costs as much as the tree is large.
        attributes: of the machine's class.
    """
    rng = Random(seed)
    life: Any = type(machine.__name__, (machine,), {"kinds": SETS[kinds], **attributes})()
    life.start(rng.randrange(1 << 20))
    for step in range(steps):
        name = rng.choice(operations)
        if life.may(name):
            try:
                getattr(life, name)(rng.randrange(1 << 20))
                if step % looks_every == 0:
                    life.sound()
            except Exception as error:
                error.add_note(f"{machine.__name__} over {kinds!r}, seed {seed!r}, {attributes} at step {step}: {name}")
                raise
    life.teardown()
    return steps
