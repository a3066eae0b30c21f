"""Reads replies of a Redis server (protocol RESP2), large ones straight into pages.

https://redis.io/docs/latest/develop/reference/protocol-spec: a line that begins with its kind, and for strings as many bytes as
it says. A server that says anything else is not believed another word: StorageError, after which the connection is of no use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from unified_tree.errors import StorageError

LINE_BYTES = 4096
"""Of the buffer, which a line must fit into; more would only be copied once more on its way into a page."""
STRING_BYTES = 1 << 20
"""The longest string that is kept; those of control commands are short."""
LARGEST_BYTES = 512 << 20
"""The server's own limit of a value."""
_DEEPEST, _WIDEST = 4, 1 << 16


@dataclass(frozen=True, slots=True)
class RespError:
    """The server refused a command; its first word is the kind."""

    text: str


@dataclass(frozen=True, slots=True)
class WrongLength:
    """A string that did not have the length of the page for which it was asked; its bytes were skipped."""

    size_bytes: int


Answer: TypeAlias = "bytes | int | RespError | WrongLength | memoryview | list[Answer] | None"
"""A string, a number, nothing, a refusal, or several. A page that was filled is itself the answer."""


class RespReader:
    """Reads answers one by one.

    Args:
        receive: fills the front of a buffer and says how many bytes; none where the server has hung up.
    """

    def __init__(self, receive: Callable[[memoryview], int]) -> None:
        self._receive = receive
        self._bytes = bytearray(LINE_BYTES)
        self._view = memoryview(self._bytes)
        self._start = self._end = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything that arrived was read."""
        return self._start == self._end

    def read(self, page: memoryview | None = None, depth: int = 0) -> Answer:
        """The next answer; a string as long as the page goes into it. Raises StorageError, and what `receive` raises."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$":
                return self._string(_number(rest), page)
            case b"+":
                return rest
            case b":":
                return _number(rest)
            case b"-":
                return RespError(rest.decode("utf-8", "replace"))
            case b"*":
                count = _number(rest)
                if depth >= _DEEPEST or count > _WIDEST:
                    raise StorageError(f"redis: a list of {count} in {depth} others is not to be believed")
                return [self.read(depth=depth + 1) for _ in range(count)] if count >= 0 else None
        raise StorageError(f"redis: this is not its protocol: {line[:40]!r}")

    def _string(self, size: int, page: memoryview | None) -> Answer:
        if size == -1:
            return None
        if not 0 <= size <= (STRING_BYTES if page is None else LARGEST_BYTES):
            raise StorageError(f"redis: a string of {size} bytes is not to be believed")
        answer: Answer
        if page is None:
            kept = bytearray(size)
            self._fill(memoryview(kept))
            answer = bytes(kept)
        elif page.nbytes == size:
            self._fill(page.cast("B"))
            answer = page
        else:
            self._skip(size)
            answer = WrongLength(size)
        end = bytearray(2)
        self._fill(memoryview(end))
        if end != b"\r\n":
            raise StorageError(f"redis: a string of {size} bytes does not end there")
        return answer

    def _line(self) -> bytes:
        while True:
            at = self._bytes.find(b"\r\n", self._start, self._end)
            if at >= 0:
                line = bytes(self._view[self._start : at])
                self._start = at + 2
                return line
            if self._end - self._start == LINE_BYTES:
                raise StorageError(f"redis: a line of more than {LINE_BYTES} bytes is not to be believed")
            self._more()

    def _more(self) -> None:
        left = self._end - self._start
        self._view[:left] = self._bytes[self._start : self._end]
        self._start, self._end = 0, left
        self._end += self._received(self._view[left:])

    def _fill(self, target: memoryview) -> None:
        done = min(target.nbytes, self._end - self._start)
        target[:done] = self._view[self._start : self._start + done]
        self._start += done
        while done < target.nbytes:
            done += self._received(target[done:])

    def _skip(self, size: int) -> None:
        while size:
            if self.is_empty:
                self._more()
            step = min(size, self._end - self._start)
            self._start += step
            size -= step

    def _received(self, target: memoryview) -> int:
        count = self._receive(target)
        if not count:
            raise StorageError("redis: the server has hung up")
        return count


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise StorageError(f"redis: this is not a number: {text[:40]!r}") from None
