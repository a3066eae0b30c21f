"""When sessions begin that say nothing about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.trace_format import TraceOptions


class Starts:
    """One after the other, at exponentially distributed gaps (a Poisson process), drawn from a seed."""

    def __init__(self, options: TraceOptions) -> None:
        self._gap_s = options.session_gap_s
        self._draw = np.random.default_rng(options.seed)
        self._count = 0
        self._at_s = 0.0

    def next(self) -> float:
        """When the next one begins, seconds."""
        if self._count:
            self._at_s += self._gap_s * self._draw.exponential()
        self._count += 1
        return self._at_s

    @property
    def note(self) -> str:
        """The report's sentence about it."""
        return (
            f"it has no clock: sessions, and requests without one, begin {self._gap_s:g} s apart on average (--session-gap-s)"
        )
