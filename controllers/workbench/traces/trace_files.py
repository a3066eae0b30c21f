"""Reading a trace file record by record, whatever it is packed in.

A trace is a sequence of objects: JSON, one a line, in one array, or printed over several lines; CSV with a heading; Parquet;
MessagePack. It may be compressed. All of that is known by the first bytes, never by the file's name. A directory stands for
the files in it, in the order of their names. What is large is read piece by piece; only a single record must fit in memory.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import zlib
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from unified_tree.controllers.workbench.traces.trace_records import Record, Row, number_or_text
from unified_tree.inputs.given_files import NotJsonError, open_given, parse_json
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_RECORD_BYTES = 1 << 28
PIECE = 1 << 20
BRACKETS = (b"{", b"[")
EXTRA = "pip install 'unified-tree[traces]'"
NAMES = (".json", ".csv", ".parquet", ".msgpack")
"""Of the files of a directory that are read."""
NO_TRACES = {
    b"PK\x03\x04": "a zip archive: unpack it",
    b"SQLite format 3": "an SQLite database: export what it holds as JSON or CSV",
    b"\x80\x04": "a Python pickle, which is not opened because it may run any code: save the same as JSON",
    b"\x80\x05": "a Python pickle, which is not opened because it may run any code: save the same as JSON",
}
SEPARATORS = (b",", b";", b"\t")
"""Between the columns of a table; the heading has most of it."""
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""UTF-32 with its mark begins with one of them, or has zeros."""
PARQUET = b"PAR1"
ZSTD = b"\x28\xb5\x2f\xfd"
TELL_EVERY = 64
"""Records between two calls that say how far a file was read."""


def read_records(path: Path, progress: Callable[[int], None] | None = None) -> Iterator[Record]:
    """The records of a trace file, or of all files of a directory and of those in it, one at a time.

    Args:
        progress: called now and then with the bytes of files read since the last call; not for pipes.

    Raises TraceError for a file that cannot be read, or holds something that is none.
    """
    if not os.path.isdir(path):
        yield from _read_file(path, progress)
        return
    files: list[Path] = []

    def give_up(error: OSError) -> None:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error

    for folder, _, names in os.walk(path, onerror=give_up):
        files += (Path(folder, name) for name in names if any(kind in name for kind in NAMES))
    if not files:
        raise TraceError(f"{path}: the directory holds no .json, .jsonl, .csv, .parquet or .msgpack file")
    for file in sorted(files):
        yield from _read_file(file, progress)


def _read_file(path: Path, progress: Callable[[int], None] | None) -> Iterator[Record]:
    lines = _Lines(path)
    try:
        with open_given(path) as file, _unpacked(file, path) as stream:
            start = stream.peek(16)[:16]
            for magic, what in NO_TRACES.items():
                if start.startswith(magic):
                    raise TraceError(f"{path}: is {what}")
            if start.startswith(PARQUET):
                yield from _parquet(stream, path)
            elif start[:1] and (0x80 < start[0] < 0xA0 or start[0] in (0xDC, 0xDD, 0xDE, 0xDF)):
                yield from _messages(stream, path)
            elif start.startswith(WIDE) or b"\0" in start:
                raise TraceError(f"{path}: is text in UTF-16 or UTF-32, or binary: save it in UTF-8")
            else:
                records = lines.records(stream)
                yield from records if progress is None or not file.seekable() else _followed(records, file, progress)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        place = f"{path}:{lines.number + 1}" if lines.number else f"{path}"
        why = printable(str(getattr(error, "strerror", None) or error))
        raise TraceError(f"{place}: cannot be read: {why}") from error


def _followed(records: Iterator[Record], file: io.BufferedReader, progress: Callable[[int], None]) -> Iterator[Record]:
    """The same records; `progress` is told how far the file was read for them."""
    at = 0
    for number, record in enumerate(records):
        if number % TELL_EVERY == 0:
            now = file.tell()
            progress(now - at)
            at = now
        yield record


@contextmanager
def _unpacked(file: io.BufferedReader, path: Path) -> Iterator[io.BufferedReader]:
    """A file, decompressed if it is compressed. It is opened once, for it may be a pipe."""
    openers: dict[bytes, Callable[[], Any]] = {
        b"\x1f\x8b": lambda: gzip.GzipFile(fileobj=file, mode="rb"),
        b"BZh": lambda: bz2.BZ2File(file),
        b"\xfd7zXZ": lambda: lzma.LZMAFile(file),  # noqa: SIM115
    }
    start = file.peek(8)[:8]
    if start.startswith(ZSTD):
        zstd = _needed(path, "compressed by zstd", "backports.zstd", "compression.zstd", "backports.zstd")
        with zstd.ZstdFile(file) as stream, io.BufferedReader(stream, PIECE) as buffered:
            try:
                yield buffered
            except zstd.ZstdError as error:
                raise OSError(None, str(error)) from error
        return
    for magic, opener in openers.items():
        if start.startswith(magic):
            with opener() as stream, io.BufferedReader(stream, PIECE) as buffered:
                yield buffered
            return
    yield file


def _needed(path: Path, what: str, package: str, *modules: str) -> Any:
    """The first of these modules that is there, of an optional package."""
    for module in modules or (package,):
        with suppress(ModuleNotFoundError):
            return import_module(module)
    raise TraceError(f"{path}: is {what}, which needs {package}; run: {EXTRA}")


class _Lines:
    """Text: JSON by the line or over several, or CSV.

    Attributes:
        number: of the last line begun.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = 0

    def records(self, stream: IO[bytes]) -> Iterator[Record]:
        """The records of a file."""
        first = b""
        while not first.strip() and (line := stream.readline(MAX_RECORD_BYTES + 1)):
            self.number += 1
            first = line.removeprefix(codecs.BOM_UTF8) if self.number == 1 else line
        if not first.strip():
            return
        try:
            if len(first) > MAX_RECORD_BYTES:
                raise NotJsonError(f"it is longer than {MAX_RECORD_BYTES:,} bytes")
            value = parse_json(first.rstrip())
        except NotJsonError as error:
            if first.lstrip().startswith(BRACKETS):
                yield from _Values(stream, first, self._path, self.number)
            elif any(mark in first for mark in SEPARATORS):
                yield from self._csv(stream, first)
            else:
                place = f"{self._path}:{self.number}"
                raise TraceError(f"{place}: is no trace: neither JSON nor CSV with a heading ({error.why})") from error
            return
        yield from _records_of(value, f"{self._path}:{self.number}")
        while line := stream.readline(MAX_RECORD_BYTES + 1):
            self.number += 1
            if len(line) > MAX_RECORD_BYTES:
                raise TraceError(f"{self._path}:{self.number}: is longer than {MAX_RECORD_BYTES:,} bytes")
            is_whole = line.endswith(b"\n")
            line = line.rstrip()
            if line:
                try:
                    value = parse_json(line)
                except NotJsonError as error:
                    cut = "" if is_whole else "; the file ends within this line: remove it"
                    raise TraceError(f"{self._path}:{self.number}: is not JSON: {error.why}{cut}") from error
                yield from _records_of(value, f"{self._path}:{self.number}")

    def _csv(self, stream: IO[bytes], first: bytes) -> Iterator[Record]:
        """Rows by the names of the heading; empty cells are left out, numbers are numbers."""
        mark = max(SEPARATORS, key=first.count).decode()
        rows = csv.reader(self._decoded(stream, first), delimiter=mark)
        try:
            names = [name.strip() for name in next(rows)]
            if any(name and not isinstance(number_or_text(name), str) for name in names):
                raise TraceError(
                    f"{self._path}:{self.number}: is CSV without a heading: its first line must name the columns, such as "
                    "timestamp,input_length,output_length"
                )
            for row in rows:
                fields = {name: number_or_text(cell.strip()) for name, cell in zip(names, row, strict=False) if cell.strip()}
                if fields:
                    yield Row(fields, f"{self._path}:{self.number}")
        except csv.Error as error:
            why = "its lines end in carriage returns alone; save it with line feeds" if b"\r" in first else str(error)
            raise TraceError(f"{self._path}:{self.number}: is no CSV: {why}") from error

    def _decoded(self, stream: IO[bytes], line: bytes) -> Iterator[str]:
        while line:
            if len(line) > MAX_RECORD_BYTES:
                raise TraceError(f"{self._path}:{self.number}: is longer than {MAX_RECORD_BYTES:,} bytes")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise TraceError(f"{self._path}:{self.number}: is not UTF-8: {error.reason}") from error
            line = stream.readline(MAX_RECORD_BYTES + 1)
            self.number += 1


def _records_of(value: Any, where: str) -> Iterator[Record]:
    """The records that a value of a line is: an object, a list of objects, or a batch of KV events as an array."""
    if isinstance(value, list) and len(value) in (2, 3) and type(value[0]) in (int, float) and isinstance(value[1], list):
        value = dict(zip(("ts", "events", "data_parallel_rank"), value, strict=False))
    for item in value if isinstance(value, list) else [value]:
        yield Record(item, where)


class _Values:
    """Objects that are printed over several lines, one behind the other, or in an array; read piece by piece."""

    def __init__(self, stream: IO[bytes], first: bytes, path: Path, number: int) -> None:
        self._stream = stream
        self._path = path
        self._number = number
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._at_end = False
        self._text = self._decoded(first)
        self._at = 0

    def __iter__(self) -> Iterator[Record]:
        """The records."""
        self._skip()
        is_array = self._text[self._at] == "["
        self._at += is_array
        decoder = json.JSONDecoder()
        while self._skip():
            if is_array and self._text[self._at] == "]":
                self._at += 1
                if self._skip():
                    raise self._error("something follows the array")
                return
            value = self._value(decoder)
            yield Record(value, f"{self._path}:{self._number}")
            if self._skip() and is_array:
                if self._text[self._at] not in ",]":
                    raise self._error("a comma is missing")
                self._at += self._text[self._at] == ","
        if is_array:
            raise self._error("the array has no end")

    def _value(self, decoder: json.JSONDecoder) -> Any:
        """The value that begins here; more is read until it is whole."""
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 16
                if is_cut and not self._at_end and len(self._text) - self._at <= MAX_RECORD_BYTES:
                    self._more(max(PIECE, len(self._text)))
                    continue
                line = self._number + self._text.count("\n", self._at, error.pos)
                raise TraceError(f"{self._path}:{line}: is not JSON: {error.msg} at column {error.colno}") from error
            except RecursionError as error:
                raise self._error("it is nested too deep") from error
            except ValueError as error:
                raise self._error(printable(str(error))) from error
            if end < len(self._text) or self._at_end:
                self._move(end)
                return value
            self._more(PIECE)  # a number may go on

    def _skip(self) -> bool:
        """Go on to the next letter that is no space; whether there is one."""
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in " \t\r\n":
                end += 1
            self._move(end)
            if end < len(self._text):
                return True
            if self._at_end:
                return False
            self._more(PIECE)

    def _move(self, end: int) -> None:
        self._number += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self, size: int) -> None:
        piece = self._stream.read(size)
        self._at_end = not piece
        self._text = self._text[self._at :] + self._decoded(piece)
        self._at = 0

    def _decoded(self, piece: bytes) -> str:
        try:
            return self._decode(piece, not piece)
        except UnicodeDecodeError as error:
            raise self._error(f"it is not UTF-8: {error.reason}") from error

    def _error(self, why: str) -> TraceError:
        return TraceError(f"{self._path}:{self._number}: is not JSON: {why}")


def _parquet(stream: io.BufferedReader, path: Path) -> Iterator[Record]:
    """Rows, which count from 1 in messages; what is null is left out."""
    arrow, parquet = (_needed(path, "a Parquet file", "pyarrow", module) for module in ("pyarrow", "pyarrow.parquet"))
    number = 0
    try:
        source = stream if stream.seekable() else io.BytesIO(stream.read())
        for batch in parquet.ParquetFile(source).iter_batches(256):
            for row in batch.to_pylist():
                number += 1
                yield Record(_without_nulls(row), f"{path}:{number}")
    except arrow.ArrowException as error:
        raise TraceError(f"{path}: is no Parquet file that can be read: {printable(str(error))}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _messages(stream: IO[bytes], path: Path) -> Iterator[Record]:
    """MessagePack objects, one behind the other; they count from 1 in messages."""
    msgpack = _needed(path, "in MessagePack", "msgpack")
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, unicode_errors="backslashreplace", max_buffer_size=MAX_RECORD_BYTES
    )
    number = size = end = 0
    try:
        while piece := stream.read(PIECE):
            size += len(piece)
            unpacker.feed(piece)
            for value in unpacker:
                number, end = number + 1, unpacker.tell()
                yield from _records_of(value, f"{path}:{number}")
    except (msgpack.UnpackException, msgpack.exceptions.BufferFull, ValueError, TypeError) as error:
        if isinstance(error, TraceError):
            raise
        why = printable(str(error)) or type(error).__name__
        raise TraceError(f"{path}:{number + 1}: is no MessagePack that can be read: {why}") from error
    if end != size:
        raise TraceError(f"{path}:{number + 1}: ends within an object")
