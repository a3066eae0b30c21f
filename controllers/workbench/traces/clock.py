"""The clock of a trace: what its times count, and why that is believed."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions
    from unified_tree.controllers.workbench.traces.workload import Request, Workload


PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
OVERRIDE = "--clock-unit overrides"
MAX_SECONDS = 1e12
UNIX_SECONDS = (1e9, 4e9)
"""From 2001 to 2096: a number of that size is taken for a date."""


class Clock:
    """Reads times as seconds.

    Args:
        given: the unit that the user states: s, ms, us, ns; None for none.
        own: the unit of this format.
        field: the field that the notes speak of.
    """

    def __init__(self, given: str | None, own: str, field: str = "timestamp") -> None:
        self._given = given
        self._own = own
        self._field = field
        self._unit = given or own
        self._has_dates = False
        self._is_read = False

    @property
    def was_read(self) -> bool:
        """Whether there was any time."""
        return self._is_read or self._has_dates

    def seconds(self, record: Record, name: str) -> float:
        """A field as seconds: a finite number of zero or more, one as a string, or a date as in ISO 8601.

        The first number decides of the unit, if none was given: one that is a date of this century in another unit than the
        format's is taken for that. Raises TraceError.
        """
        value = record.field(name)
        number = -1.0
        if type(value) in (int, float, str):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if number < 0 and isinstance(value, str | datetime):
            with suppress(ValueError, OverflowError, OSError):
                date = datetime.fromisoformat(value) if isinstance(value, str) else value
                number = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
                self._has_dates = True
            per_second = 1
        else:
            if not self._is_read:
                self._decide(number)
            per_second = PER_SECOND[self._unit]
        if not 0 <= number <= MAX_SECONDS * per_second:
            raise record.inner(name).error("must be a number of zero or more, or a date", value)
        return number / per_second

    def duration(self, record: Record, name: str) -> float:
        """A field that lasts, as seconds: never a date."""
        value = record.field(name)
        per_second = PER_SECOND[self._given or self._own]
        if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS * per_second:
            raise record.inner(name).error("must be a number of zero or more", value)
        return float(value) / per_second

    def _decide(self, number: float) -> None:
        self._is_read = True
        low, high = UNIX_SECONDS
        for unit, per_second in PER_SECOND.items():
            if self._given is None and low * per_second <= number < high * per_second:
                self._unit = unit

    def note(self, why: str, field: str | None = None) -> str:
        """The unit that was taken, and why; `why` is the format's own reason, `field` another than the clock's own."""
        field = field or self._field
        if self._has_dates and not self._is_read:
            return f"{field} holds dates"
        taken = f"{field} is taken as {NAMES[self._unit]}"
        if self._given is not None:
            return f"{taken}, as given"
        if self._unit != self._own:
            return f"{taken} since 1970, for it is a date of this century then; {OVERRIDE}"
        return f"{taken}, {why}; {OVERRIDE}"


class Arrivals:
    """The requests of a workload that have not arrived, by time and chain.

    Args:
        steps_per_s: steps of the server's clock that one second of the workload's takes.
    """

    def __init__(self, workload: Workload, steps_per_s: float) -> None:
        self._steps_per_s = steps_per_s
        self._to_come = deque(workload.requests)
        self._parked: dict[int, deque[Request]] = {}

    @property
    def next_step(self) -> int | None:
        """The step at which the next request arrives; None if none is left but those behind an earlier turn."""
        return ceil(self._to_come[0].arrival_s * self._steps_per_s) if self._to_come else None

    def until(self, step: int) -> list[tuple[int, Request]]:
        """Those that arrive up to a step, each with its step; a turn whose chain is at work is held back."""
        arrived = []
        while (next_step := self.next_step) is not None and next_step <= step:
            request = self._to_come.popleft()
            if request.chain in self._parked:
                self._parked[request.chain].append(request)
                continue
            if request.chain != NO_CHAIN:
                self._parked[request.chain] = deque()
            arrived.append((next_step, request))
        return arrived

    def after(self, request: Request) -> Request | None:
        """A request has ended: the turn of its chain that was held back for it."""
        if request.chain == NO_CHAIN:
            return None
        if self._parked[request.chain]:
            return self._parked[request.chain].popleft()
        del self._parked[request.chain]
        return None


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
