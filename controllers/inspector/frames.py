"""Frames: what an inspector and its page tell each other, through a socket or in a file.

A frame is two lengths, a JSON object with a `kind`, and a body of bytes. Arrays of int64 go as they are in the body.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from unified_tree.controllers.cache.stats import TOTALS
from unified_tree.controllers.inspector.timeline import SERIES
from unified_tree.controllers.inspector.tree_walk import COLUMNS, COMPONENT_MASK
from unified_tree.controllers.shapes import (
    COUNT,
    Shape,
    anything,
    choice,
    flag,
    integer,
    list_of,
    mapping_of,
    maybe,
    number,
    record,
    row,
    text,
)
from unified_tree.inputs.given_files import parse_json
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from gzip import GzipFile

    from numpy.typing import NDArray


MAGIC = b"unified-tree inspector 2\n"
LENGTHS = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 30
QUESTION_BYTES = 1 << 18
"""As much of a pasted prompt is received in a step; it takes less than 0.1 ms, and a long prompt fewer steps."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    fields: Mapping[str, Any]
    body: bytes | bytearray = b""


def encode(kind: str, fields: Mapping[str, Any], body: bytes | bytearray = b"") -> bytes:
    """A frame as bytes."""
    head = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    return b"".join((LENGTHS.pack(len(head), len(body)), head, body))


def _frame(head: bytes, body: bytes | bytearray) -> Frame:
    fields = parse_json(head)
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise ConfigurationError("a frame says what kind it is of, which this does not")
    return Frame(fields.pop("kind"), fields, body)


class FrameDecoder:
    """Puts frames together from pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """The frames that these bytes complete. Raises ConfigurationError for what is none."""
        self._buffer += data
        while len(self._buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._buffer)
            if head + body > MAX_FRAME_BYTES:
                raise ConfigurationError(f"a frame of {head + body} bytes is no frame")
            end = LENGTHS.size + head + body
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                frame = _frame(bytes(view[LENGTHS.size : LENGTHS.size + head]), bytes(view[end - body : end]))
            del self._buffer[:end]
            yield frame


class QuestionReader:
    """Puts the page's questions together, with one bounded system call at a time, and without copying what they bring."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._parts = [bytearray(LENGTHS.size)]
        self._filled = 0

    def read(self, connection: socket.socket) -> Frame | None:
        """Take QUESTION_BYTES at most from a socket; the question, if it is whole now.

        Raises OSError, BlockingIOError where there is nothing yet, and where the other side has closed the connection.
        """
        part = self._parts[-1]
        if part:
            with memoryview(part) as view:
                size = connection.recv_into(view[self._filled : self._filled + QUESTION_BYTES])
            if not size:
                raise ConnectionResetError("the page has closed its connection")
            self._filled += size
            if self._filled < len(part):
                return None
        self._filled = 0
        if len(self._parts) == 1:
            head, body = LENGTHS.unpack(part)
            if head + body > MAX_FRAME_BYTES:
                raise ConnectionAbortedError(f"a frame of {head + body} bytes is no frame")
            self._parts += [bytearray(head)]
            self._body_bytes = body
            return None
        if len(self._parts) == 2 and self._body_bytes:
            self._parts.append(bytearray(self._body_bytes))
            return None
        frame = _frame(bytes(self._parts[1]), self._parts[2] if self._body_bytes else b"")
        self._begin()
        return frame


def read_frames(stream: GzipFile) -> Iterator[Frame]:
    """The frames of a recording. One that was cut off ends with its last whole frame. Raises ConfigurationError for others."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise ConfigurationError("this is no recording of an inspector")
    decoder = FrameDecoder()
    while piece := stream.read1(1 << 16):
        yield from decoder.feed(piece)


TIER: Final = integer(0, 1)
CAUSE: Final = integer(0, len(MissCause) - 1)
COMPONENT: Final = integer(0, COMPONENT_MASK)
ANY_INTEGER: Final = integer(-(1 << 62), 1 << 62)
SIZE: Final = integer(0, 1 << 48)
TOKENS: Final = integer(0, 1 << 53)
MISS: Final = record(
    {"cause": CAUSE, "begin": COUNT, "end": COUNT},
    {
        "detail": text,
        "evicted": record({"component": text, "tier": TIER, "ago_s": number, "for": maybe(text), "why": text}),
    },
)
LEASE: Final = record(
    {
        "number": maybe(COUNT),
        "held_s": maybe(number),
        "namespace": text,
        **dict.fromkeys(("prompt", "cached", "length", "committed"), COUNT),
        "loading": flag,
        "pages": mapping_of(COUNT),
        **dict.fromkeys(("bytes", "private"), ANY_INTEGER),
    }
)
REQUEST: Final = record(
    {
        "number": COUNT,
        "at_s": number,
        "namespace": text,
        **dict.fromkeys(("prompt", "cached", "compute_from", "host"), COUNT),
        "misses": list_of(MISS),
    }
)
EVENT: Final = row(
    number, text, maybe(TIER), maybe(text), maybe(text), *[ANY_INTEGER] * 6, list_of(row(maybe(text), ANY_INTEGER))
)  # fmt: skip
POOL: Final = row(text, TIER, maybe(COUNT), *[COUNT] * 6, SIZE, COUNT)
AGES: Final = record(
    {
        "edges_s": list_of(number),
        "pools": list_of(record({"component": COMPONENT, "tier": TIER, "hit": list_of(COUNT), "evicted": list_of(COUNT)})),
    }
)
STORAGE: Final = record(
    {"quarantined": mapping_of(COUNT), "errors": COUNT, "is_degraded": flag},
    {"last_error": maybe(text), "faults": mapping_of(COUNT), "freed_bytes": COUNT},
)
POLICY: Final = record({"name": text, "figures": mapping_of(number), "failures": COUNT, "last_failure": maybe(text)})
SHAPES: Final[Mapping[str, Shape]] = {
    "cache": record(
        {
            "page_size": integer(1, 1 << 32),
            "save_grid_tokens": SIZE,
            "ghost_bytes": COUNT,
            **dict.fromkeys(("has_host", "remembers", "in_pages"), flag),
            "components": list_of(
                record(
                    {
                        **dict.fromkeys(("name", "coverage"), text),
                        "kind": choice("path", "window", "state"),
                        "page_bytes": SIZE,
                        "shares": maybe(text),
                        "required": flag,
                    }
                )
            ),
        }
    ),
    "figures": record(
        {
            **dict.fromkeys(("clock", "nodes", "leases"), COUNT),
            "at_s": number,
            "totals": record(dict.fromkeys(TOTALS, TOKENS)),
            "drops": mapping_of(COUNT),
            "transfers": mapping_of(list_of(COUNT, 3)),
            "pools": list_of(POOL),
            "misses": list_of(TOKENS, len(MissCause)),
            "evicted": list_of(row(COMPONENT, TIER, TOKENS)),
            "short_by": list_of(row(COMPONENT, TIER, list_of(TOKENS))),
            "beneficiaries": mapping_of(TOKENS),
            "of_namespaces": list_of(row(text, text, TOKENS)),
            "details": list_of(row(CAUSE, text, TOKENS)),
            "namespaces": list_of(row(maybe(text), list_of(ANY_INTEGER, SERIES))),
        },
        {"ages": AGES, "policy": POLICY, "storage": STORAGE, "namespace_count": COUNT},
    ),
    "happened": record({"events": list_of(EVENT), "left_out": COUNT, "requests": list_of(REQUEST)}),
    "leases": record({"count": COUNT, "largest": list_of(LEASE), "longest": list_of(LEASE)}),
    "tree begins": record({"at_s": number, "clock": COUNT, "nodes": COUNT, "ages": list_of(row(number, number))}),
    "nodes": record({"rows": SIZE, "values": SIZE, "roots": list_of(row(text, flag, flag))}),
    "tree ends": record({"at_s": number, "clock": COUNT, "nodes": COUNT}),
    "stopped": record({"why": text}),
    "answer": anything,
}
"""Of the fields of each kind of frame."""


def checked(frame: Frame, components: Sequence[Mapping[str, Any]]) -> Frame:
    """A frame of a recording. Raises ConfigurationError for fields of another shape.

    Args:
        components: what the frame before, of the cache, said of them.
    """
    if frame.kind not in SHAPES:
        raise ConfigurationError(f"there are no frames of kind {frame.kind!r}")
    fields = SHAPES[frame.kind](frame.fields, frame.kind)
    if frame.kind == "figures":
        names = {component["name"] for component in components}
        counted = [entry[0] for name in ("evicted", "short_by") for entry in fields[name]]
        counted += [pool["component"] for pool in fields.get("ages", {}).get("pools", ())]
        if max(counted, default=-1) >= len(components) or not {pool[0] for pool in fields["pools"]} <= names:
            raise ConfigurationError("figures are of components that the cache does not have")
    if frame.kind == "nodes" and (fields["rows"] % COLUMNS or 8 * (fields["rows"] + fields["values"]) > len(frame.body)):
        raise ConfigurationError("nodes are not as many as they should be")
    return Frame(frame.kind, fields, frame.body)


def check_tree(rows: NDArray[np.int64], values: NDArray[np.int64], root_count: int, component_count: int) -> None:
    """Raise ConfigurationError for rows and values of nodes that could be of no tree. Circles are found later."""
    if len(rows):
        if (rows[:, 3] <= rows[:, 2]).any() or rows[:, :4].min() < 0 or rows[:, 3].max() > 1 << 40:
            raise ConfigurationError("nodes begin where they should end")
        if len(np.unique(rows[:, 0])) != len(rows):
            raise ConfigurationError("two nodes have one number")
        if rows[:, 4].min() < 0 or rows[:, 4].max() >= root_count:
            raise ConfigurationError("nodes are of a namespace that is not there")
        if rows[:, 7].min() < 0 or rows[:, 7].max() > 4 * (COMPONENT_MASK + 1):
            raise ConfigurationError("nodes have less than no values")
    if int(rows[:, 7].sum()) != len(values):
        raise ConfigurationError("values are not as many as they should be")
    if len(values) and (values.min() < 0 or (values & COMPONENT_MASK).max() >= component_count):
        raise ConfigurationError("values are of components that the cache does not have")
