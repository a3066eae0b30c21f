"""The clock of a trace: what its times count, and why that is believed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.trace_records import Record

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
