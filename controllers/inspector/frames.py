"""Frames: what an inspector and its page tell each other, through a socket or in a file.

A frame is two lengths, a JSON object with a `kind`, and a body of bytes. Arrays of int64 go as they are in the body.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.given_files import parse_json
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping
    from gzip import GzipFile

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


def _head(text: bytes) -> dict[str, Any]:
    fields = parse_json(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise ConfigurationError("a frame says what kind it is of, which this does not")
    return fields


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
                fields = _head(bytes(view[LENGTHS.size : LENGTHS.size + head]))
                frame = Frame(fields.pop("kind"), fields, bytes(view[end - body : end]))
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
        fields = _head(bytes(self._parts[1]))
        frame = Frame(fields.pop("kind"), fields, self._parts[2] if self._body_bytes else b"")
        self._begin()
        return frame


def read_frames(stream: GzipFile) -> Iterator[Frame]:
    """The frames of a recording. One that was cut off ends with its last whole frame. Raises ConfigurationError for others."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise ConfigurationError("this is no recording of an inspector")
    decoder = FrameDecoder()
    while piece := stream.read1(1 << 16):
        yield from decoder.feed(piece)
