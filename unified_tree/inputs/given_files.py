"""Reading what somebody gave: files that may be anything, and JSON that may say anything. What is wrong is one line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from os import PathLike

MAX_BYTES: Final = 1 << 28
"""A file that is read at once holds no more."""


def open_given(path: str | PathLike[str]) -> BufferedReader:
    """A file for reading in binary. A pipe that nobody writes is empty: it is not waited for.

    Raises OSError. A name that no file can have is an OSError, too.
    """
    try:
        return open(path, "rb", opener=_without_waiting)
    except ValueError as error:  # a NUL in it, or what the file system's encoding cannot say
        raise OSError(None, str(error)) from error


def _without_waiting(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def read_given(path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> bytes:
    """All of a file. Raises ConfigurationError, with the path, for one that cannot be read or is too long."""
    try:
        with open_given(path) as stream:
            content = stream.read(max_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > max_bytes:
        raise ConfigurationError(f"{path}: is longer than {max_bytes:,} bytes")
    return content


class NotJsonError(ConfigurationError):
    """A text is no JSON that can be read.

    Attributes:
        line: where, counted from 1.
        why: what is wrong.
    """

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text.

    Args:
        pairs: makes objects of their members, as of `json.loads`.

    Raises NotJsonError: for what is no JSON, nested too deep, with an integer of thousands of digits, or no Unicode.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{error.msg.removesuffix(' at')} at column {error.colno}", error.lineno) from error
    except RecursionError as error:
        raise NotJsonError("it is nested too deep") from error
    except ConfigurationError:  # of `pairs`; it is a ValueError, too
        raise
    except ValueError as error:
        raise NotJsonError(printable(str(error))) from error


def shown(value: object, longest: int = 60) -> str:
    """A value from a file, as a message shows it: JSON where that is short."""
    if isinstance(value, dict | list) and len(value) > longest:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    if isinstance(value, str):
        value = printable(value, longest)
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"
    text = printable(text, 10 * longest)
    return text if len(text) <= longest else text[: longest - 3] + "..."
