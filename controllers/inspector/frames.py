"""Frames: what an inspector and its page tell each other, through a socket or in a file.

A frame is two lengths, a JSON object with a `kind`, and a body of bytes. Arrays of int64 go as they are in the body.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from gzip import GzipFile

MAGIC = b"unified-tree inspector 2\n"
LENGTHS = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    fields: Mapping[str, Any]
    body: bytes = b""


def encode(kind: str, fields: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A frame as bytes."""
    head = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    return b"".join((LENGTHS.pack(len(head), len(body)), head, body))


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
                fields = json.loads(bytes(view[LENGTHS.size : LENGTHS.size + head]))
                frame = Frame(fields.pop("kind"), fields, bytes(view[end - body : end]))
            del self._buffer[:end]
            yield frame


def read_frames(stream: GzipFile) -> Iterator[Frame]:
    """The frames of a recording. One that was cut off ends with its last whole frame. Raises ConfigurationError for others."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise ConfigurationError("this is no recording of an inspector")
    decoder = FrameDecoder()
    while piece := stream.read1(1 << 16):
        yield from decoder.feed(piece)
