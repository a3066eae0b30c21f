"""One record of a trace, with errors that say where: `FILE:LINE: what is wrong`; and the clock of a trace: what its times
count, and why that is believed.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unified_tree.inputs.given_files import shown
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from unified_tree.controllers.workbench.traces.workload import Int64s, Workload


MAX_TOKENS = 1 << 26
"""A longer prompt or answer is taken for a mistake."""


class Record:
    """One object of a trace with its place, for checked access to fields. Fields nobody asks for are ignored."""

    __slots__ = ("fields", "path", "where")
    noun: ClassVar[str] = "the line"

    def __init__(self, fields: Any, where: str, path: str = "") -> None:
        self.where = where
        self.path = path
        if not isinstance(fields, dict):
            raise self.error("is no JSON object", fields)
        self.fields: dict[str, Any] = fields

    def error(self, what: str, value: Any) -> TraceError:
        """The error to raise about this record: place, what is wrong, the value (shortened)."""
        return TraceError(f"{self.where}: {self.path or self.noun} {what}: {shown(value)}")

    def has(self, *names: str) -> bool:
        """Whether all of these fields are there."""
        return all(name in self.fields for name in names)

    @property
    def is_flat(self) -> bool:
        """Whether every field holds a plain value, as a cell of a table does."""
        return not any(isinstance(value, list | dict) for value in self.fields.values())

    @property
    def has_blocks(self) -> bool:
        """Whether a field seems to list blocks, whatever it is called."""
        return any(
            isinstance(value, list) and re.search("hash|block", str(name), re.IGNORECASE) for name, value in self.fields.items()
        )

    def field(self, name: str) -> Any:
        """The value of a field that must be there."""
        if name not in self.fields:
            raise self.inner(name).error("is missing; the object has the fields", list(self.fields))
        return self.fields[name]

    def integer(self, name: str, minimum: int = 0) -> int:
        """A field that must be an integer of `minimum` or more, and small enough to be a number of tokens."""
        value = self.field(name)
        if type(value) is not int or not minimum <= value <= MAX_TOKENS:
            raise self.inner(name).error(f"must be an integer from {minimum} to {MAX_TOKENS}", value)
        return value

    def text(self, name: str) -> str:
        """A field that must be a string."""
        value = self.field(name)
        if not isinstance(value, str):
            raise self.inner(name).error("must be a string", value)
        return value

    def key(self, name: str) -> object:
        """A field that must be an integer or a string, by which records are told apart."""
        value = self.field(name)
        if type(value) not in (int, str):
            raise self.inner(name).error("must be an integer or a string", value)
        return value

    def items(self, name: str) -> list[Any]:
        """A field that must be a list."""
        value = self.field(name)
        if not isinstance(value, list):
            raise self.inner(name).error("must be a list", value)
        return value

    def record(self, name: str) -> Record:
        """A field that must be an object."""
        return Record(self.field(name), self.where, self._prefix() + name)

    def records(self, name: str) -> Iterator[Record]:
        """The objects of a field that must be a list of objects."""
        for i, item in enumerate(self.items(name)):
            yield Record(item, self.where, f"{self._prefix()}{name}[{i}]")

    def block_runs(self) -> Int64s:
        """The block ids of `hash_runs` (start, count, start, count, …)."""
        value = self.items("hash_runs")
        place = self.inner("hash_runs")
        wanted = "must be a list of integers of zero or more, below 2**63"
        for kind in set(map(type, value)) - {int}:
            raise place.error(wanted, next(item for item in value if type(item) is kind))
        if value and not (min(value) >= 0 and max(value) < 1 << 63):
            raise place.error(wanted, min(value) if min(value) < 0 else max(value))
        runs = np.array(value, np.int64)
        if runs.size % 2 or ((runs[1::2] < 1) | (runs[1::2] > MAX_TOKENS)).any():
            raise place.error("must be pairs of a start and a count of one or more", value)
        return runs

    def inner(self, name: str) -> Record:
        """This place, one field further in; for messages."""
        return Record({}, self.where, self._prefix() + name)

    def _prefix(self) -> str:
        return self.path + "." if self.path else ""


def plain(name: object) -> str:
    """A name without what spellings differ in."""
    return re.sub(r"[\W_]", "", str(name)).lower()


TIMES = (
    "timestamp", "created", "createdat", "requesttime", "requesttimestamp", "requestcreatedat", "starttime", "arrivaltime",
    "arrivedat", "receivedat", "datetime", "time", "ts",
)  # fmt: skip
"""Fields of a time in logs, spelled plainly; the first of these that is there counts."""


def time_field(record: Record) -> str | None:
    """The name of the field that holds the record's time; None if it has none."""
    given = {plain(name): name for name, value in record.fields.items() if value is not None}
    return next((given[name] for name in TIMES if name in given), None)


def number_or_text(text: str) -> int | float | str:
    """The number that a text is; the text itself for another one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Row(Record):
    """A record of a table in text; what was meant otherwise was read as a table by its first line."""

    __slots__ = ()
    noun = "the row, read as CSV,"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How to read a trace.

    Attributes:
        block_tokens: tokens in a block; None for what the trace says or its format has.
        max_requests: read no more than so many requests; None for all.
        session_gap_s: mean seconds between two starts, where a trace does not say when its sessions or requests begin.
        seed: of those starts.
        clock_unit: s, ms, us or ns: what the numbers of the trace's clock count; None for what its format has.
        sub_agent_clock: whether the times of a session's sub-agents count from its `root` or from their `parent`; None for
            what the trace shows.
        tokenizer: a `tokenizer.json`, for traces that hold texts; None for a token a byte.
    """

    block_tokens: int | None = None
    max_requests: int | None = None
    session_gap_s: float = 30.0
    seed: int = 0
    clock_unit: str | None = None
    sub_agent_clock: str | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A format of traces.

    Attributes:
        name: as the report and the documentation call it.
        fields: what its records must have.
        clock: what it says about its clock, for the documentation.
        matches: whether a file's first records, at least one, are of this format.
        read: the workload of a file of this name, from all of its records. Raises TraceError, `FILE:LINE: what is wrong`.
    """

    name: str
    fields: tuple[str, ...]
    clock: str
    matches: Callable[[Sequence[Record]], bool]
    read: Callable[[str, Iterable[Record], TraceOptions], Workload]


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
        self._first: float | None = None
        self._has_untimed = False

    @property
    def was_read(self) -> bool:
        """Whether there was any time."""
        return self._is_read or self._has_dates

    def seconds(self, record: Record, name: str) -> float:
        """A field as seconds: a finite number of zero or more, one as a string, or a date as in ISO 8601.

        The first number decides of the unit, if none was given: one that is a date of this century in another unit than the
        format's is taken for that. Raises TraceError, also where this one is a date and the first was none, or the reverse.
        """
        value = record.field(name)
        if self._has_untimed:
            raise record.inner(name).error("is given here, but a record before has no time", value)
        number = -1.0
        if type(value) in (int, float, str):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if number < 0 and isinstance(value, str | datetime):
            with suppress(ValueError, OverflowError, OSError):
                date = datetime.fromisoformat(value) if isinstance(value, str) else value
                number = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
                self._has_dates = True
            per_second, read_in = 1, ""
        else:
            if not self._is_read:
                self._decide(number)
            per_second, read_in = PER_SECOND[self._unit], f", read in {NAMES[self._unit]}"
        if not 0 <= number < math.inf:
            raise record.inner(name).error("must be a number of zero or more, or a date as in ISO 8601", value)
        seconds = number / per_second
        if self._first is None:
            self._first, self._field = seconds, name
        if seconds > MAX_SECONDS or (seconds < UNIX_SECONDS[0]) != (self._first < UNIX_SECONDS[0]):
            raise record.inner(name).error(f"is decades from the first time of the trace{read_in}", value)
        return seconds

    def untimed(self, record: Record, name: str) -> None:
        """Take note of a record without a time. Raises TraceError if one before it has a time."""
        self._has_untimed = True
        if self.was_read:
            raise record.inner(name).error("is missing, but a record before has a time; this one has", list(record.fields))

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
