"""Reading a trace file record by record, with errors that say where: `FILE:LINE: what is wrong`.

A trace is a sequence of JSON objects: one a line, or one pretty-printed object a file. gzip is recognised by its first bytes,
never by the file's name. A directory stands for the files in it, in the order of their names.
"""

from __future__ import annotations

import gzip
import os
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from unified_tree.controllers.workbench.traces.workload import pack_runs
from unified_tree.inputs.given_files import NotJsonError, open_given, parse_json, shown
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unified_tree.controllers.workbench.traces.workload import Int64s

GZIP_MAGIC = b"\x1f\x8b"
MAX_TOKENS = 1 << 26
"""A longer prompt or answer is taken for a mistake."""
MAX_SECONDS = 1e12
MAX_LINE_BYTES = 1 << 28


class Record:
    """One JSON object of a trace with its place, for checked access to fields. Fields nobody asks for are ignored."""

    __slots__ = ("fields", "path", "where")

    def __init__(self, fields: Any, where: str, path: str = "") -> None:
        self.where = where
        self.path = path
        if not isinstance(fields, dict):
            raise self.error("is no JSON object", fields)
        self.fields: dict[str, Any] = fields

    def error(self, what: str, value: Any) -> TraceError:
        """The error to raise about this record: place, what is wrong, the value (shortened)."""
        return TraceError(f"{self.where}: {self.path or 'the line'} {what}: {shown(value)}")

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

    def seconds(self, name: str, per_second: float = 1.0) -> float:
        """A field that must be a finite number of zero or more, or one as a string, `per_second` of which make a second."""
        value = self.field(name)
        number = -1.0
        if type(value) in (int, float, str):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if not 0 <= number <= MAX_SECONDS * per_second:
            raise self.inner(name).error("must be a number of zero or more", value)
        return number / per_second

    def records(self, name: str) -> Iterator[Record]:
        """The objects of a field that must be a list of objects."""
        value = self.field(name)
        if not isinstance(value, list):
            raise self.inner(name).error("must be a list", value)
        for i, item in enumerate(value):
            yield Record(item, self.where, f"{self._prefix()}{name}[{i}]")

    def block_runs(self) -> Int64s:
        """The block ids as runs, from `hash_ids` (one id a block) or `hash_runs` (start, count, start, count, …)."""
        if "hash_runs" in self.fields:
            runs = self._integers("hash_runs")
            if runs.size % 2 or ((runs[1::2] < 1) | (runs[1::2] > MAX_TOKENS)).any():
                raise self.inner("hash_runs").error(
                    "must be pairs of a start and a count of one or more", self.fields["hash_runs"]
                )
            return runs
        return pack_runs(self._integers("hash_ids"))

    def _integers(self, name: str) -> Int64s:
        value = self.field(name)
        wanted = "must be a list of integers of zero or more, below 2**63"
        if not isinstance(value, list):
            raise self.inner(name).error(wanted, value)
        for item_type in set(map(type, value)) - {int}:
            raise self.inner(name).error(wanted, next(item for item in value if type(item) is item_type))
        if value and not (min(value) >= 0 and max(value) < 1 << 63):
            raise self.inner(name).error(wanted, min(value) if min(value) < 0 else max(value))
        return np.array(value, np.int64)

    def inner(self, name: str) -> Record:
        """This place, one field further in; for messages."""
        return Record({}, self.where, self._prefix() + name)

    def _prefix(self) -> str:
        return self.path + "." if self.path else ""


def read_records(path: Path) -> Iterator[Record]:
    """The objects of a trace file, or of all files of a directory, one at a time.

    Raises TraceError for a file that cannot be read, is not text, or holds something that is not JSON.
    """
    if os.path.isdir(path):
        try:
            files = sorted(file for file in path.iterdir() if file.is_file() and ".json" in file.name)
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
        if not files:
            raise TraceError(f"{path}: the directory holds no .json or .jsonl file")
        for file in files:
            yield from read_records(file)
        return
    line_number = 0
    try:
        with _open(path) as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                line_number += 1
                if line_number == 1 and line.strip() in (b"{", b"["):
                    line += stream.read(MAX_LINE_BYTES)
                if len(line) > MAX_LINE_BYTES:
                    raise TraceError(f"{path}:{line_number}: is longer than {MAX_LINE_BYTES:,} bytes")
                if line.strip():
                    yield from _parse(line, path, line_number)
    except (OSError, EOFError, zlib.error) as error:
        place = f"{path}:{line_number + 1}" if line_number else f"{path}"
        raise TraceError(f"{place}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """A file, unzipped if it is zipped. It is opened once, for it may be a pipe."""
    with open_given(path) as stream:
        if stream.peek(2)[:2] != GZIP_MAGIC:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream, mode="rb") as unzipped:
            yield cast("IO[bytes]", unzipped)


def _parse(text: bytes, path: Path, line_number: int) -> Iterator[Record]:
    """The object, or list of objects, in `text`, which starts at `line_number`."""
    try:
        value = parse_json(text.rstrip())
    except NotJsonError as error:
        raise TraceError(f"{path}:{line_number + error.line - 1}: is not JSON: {error.why}") from error
    for item in value if isinstance(value, list) else [value]:
        yield Record(item, f"{path}:{line_number}")
