"""One record of a trace, with errors that say where: `FILE:LINE: what is wrong`."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
