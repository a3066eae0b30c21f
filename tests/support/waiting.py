"""Waiting for servers of other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120.0
"""Far beyond what a busy machine needs: whoever waits so long waits in vain."""
PROGRAM_S = 1200.0
"""The same for a whole program that computes."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once a condition holds. Asks some times a second."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def told(ask: Callable[[], Any], condition: Callable[[Any], Any], what: str) -> Any:
    """The first answer for which a condition holds."""
    answer: Any = None

    def holds() -> bool:
        nonlocal answer
        answer = ask()
        return bool(condition(answer))

    wait_until(holds, what)
    return answer
