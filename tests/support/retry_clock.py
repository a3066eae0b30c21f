"""The time by which an engine waits before it asks a store again: in a test that stops it, it passes where the test waits."""

from __future__ import annotations

import pytest

from unified_tree.controllers.storage.guarded_storage import CircuitBreaker

_now_s = 0.0


def let_pass(seconds: float) -> None:
    """So much of the stopped time passes at once. Where none is stopped nothing happens."""
    global _now_s  # noqa: PLW0603
    _now_s += seconds


def stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the time of engines that are opened from now on."""
    is_reachable, _ = CircuitBreaker.__init__.__defaults__ or (None, None)
    monkeypatch.setattr(CircuitBreaker.__init__, "__defaults__", (is_reachable, lambda: _now_s))
