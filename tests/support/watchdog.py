"""A dog that barks at whoever waits for something that cannot come, instead of letting a test stand still for ever.

It says nothing about how long anything takes: its patience is far beyond what a loaded machine needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

PATIENCE_S = 600.0
"""More than all that a product's time-outs add up to in a test: they end by themselves where nothing stands still."""


class Watchdog:
    """Within the block, nobody may stand still: if it has not ended after `PATIENCE_S`, `let_go` is called, and it fails.

    Args:
        let_go: ends whatever the block could be waiting for.
        doing: says what it is doing.
    """

    def __init__(self, let_go: Callable[[], object], doing: Callable[[], str]) -> None:
        self._let_go = let_go
        self._doing = doing
        self._stood: str | None = None

    def __enter__(self) -> Watchdog:
        self._timer = threading.Timer(PATIENCE_S, self._bark)
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        self._timer.join()
        assert self._stood is None, f"it waited for the store: {self._stood}"

    def _bark(self) -> None:
        self._stood = self._doing()
        self._let_go()


def until(ask: Callable[[], object], what: str) -> None:
    """Ask again and again; the patience is the dog's."""
    deadline = time.monotonic() + PATIENCE_S
    while not ask():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.0005)  # others have the processor, too
