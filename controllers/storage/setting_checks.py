"""Checks of settings: the type that the dataclass declares, and the bounds of numbers.

Types are exact: True is not a number of threads; an integer is a valid time-out, but "2" is not. Numbers must be finite,
because a NaN time-out would never expire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from unified_tree.controllers.storage.server_address import host_and_port
from unified_tree.terms.errors import ConfigurationError

LONGEST_S = 1_000_000.0
"""Of a time-out or a pause: eleven days, what every clock and socket underneath can still count in milliseconds."""
MAX_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number's minimum and maximum, both allowed; above 0 with `is_positive`, whatever the minimum is.

    >>> str(Bounds(1, 256)), str(Bounds(0, 10.0, is_positive=True))
    ('at least 1 and at most 256', 'positive and at most 10.0')
    """

    min_value: float
    max_value: float
    is_positive: bool = False

    def __contains__(self, number: float) -> bool:
        return self.min_value <= number <= self.max_value and (number > 0 or not self.is_positive)

    def __str__(self) -> str:
        return f"{'positive' if self.is_positive else f'at least {self.min_value}'} and at most {self.max_value}"


SECONDS = Bounds(0, LONGEST_S, is_positive=True)
"""Of what waits."""
BYTES = Bounds(0, MAX_BYTES, is_positive=True)
"""Of what must hold something."""


def check_settings(engine: str, settings: object, bounds: Mapping[str, Bounds]) -> None:
    """Raise ConfigurationError that names every field of a dataclass whose value is of another type, or out of its bounds.

    Args:
        engine: begins the message.
        settings: an instance of a dataclass, of int, float, str, bool, dict, and those or None.
        bounds: of every number among its fields, by name.
    """
    types, wrong = get_type_hints(type(settings)), []
    for field in fields(settings):  # type: ignore[arg-type]
        value, of = getattr(settings, field.name), types[field.name]
        assert field.name in bounds or not {int, float}.intersection(kinds(of)), f"{field.name} has no bounds"
        if isinstance(value, str) and not _is_text(value):
            wrong.append(f"{field.name} must be a path or other text without NUL, not {shown(field, value)}")
        elif not fits(value, of):
            wrong.append(f"{field.name} must be {named(of)}, not {shown(field, value)}")
        elif field.name in bounds and isinstance(value, int | float) and value not in bounds[field.name]:
            wrong.append(f"{field.name} must be {bounds[field.name]}, not {value!r}")
    if wrong:
        raise ConfigurationError(f"{engine}: {'; '.join(wrong)}")


def _is_text(value: str) -> bool:
    """Whether it can go to a server, or be a file's name; bytes of a name that are no text may be."""
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def check_number(name: str, value: object, of: type[int] | type[float], bounds: Bounds) -> None:
    """Raise ConfigurationError for an argument that is not a number of this type and within these bounds."""
    if not fits(value, of) or value not in bounds:  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be {of.__name__}, {bounds}, not {value!r}")


def check_key_prefix(engine: str, prefix: str, signs: str = "-_") -> None:
    """Raise ConfigurationError for what does not do as the beginning of every key of a store."""
    if not re.fullmatch(f"[A-Za-z0-9{re.escape(signs)}]{{1,32}}", prefix):
        raise ConfigurationError(
            f"{engine}: key_prefix must be 1 to 32 letters, digits, {', '.join(signs[:-1])} and {signs[-1]}, "
            f"which {prefix!r} is not"
        )


def check_address(engine: str, name: str, address: str) -> None:
    """Raise ConfigurationError for what is no address of a server."""
    try:
        host_and_port(address)
    except ValueError as error:
        raise ConfigurationError(f"{engine}: {name} must be host:port, as in 10.0.0.7:30001, not {address!r}") from error


def kinds(of: Any) -> tuple[type, ...]:
    """The types that a field may have; of a mapping or a sequence not those of its items."""
    return tuple(get_origin(kind) or kind for kind in (get_args(of) if isinstance(of, UnionType) else (of,)))


def named(of: Any) -> str:
    """The same in words."""
    return " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds(of))


def shown(field: Field[Any], value: object) -> str:
    """A value in a message; not one that the dataclass keeps out of its representation."""
    return repr(value) if field.repr else "what it is (a secret)"


def fits(value: object, of: Any) -> bool:
    """Whether a value is of just this type; a whole number is a float, too."""
    return any(type(value) is kind or (kind is float and type(value) is int) for kind in kinds(of))
