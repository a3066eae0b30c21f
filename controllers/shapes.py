"""Shapes of what JSON holds. A value of another shape is an error that says where.

A shape is a function: it is given a value and its place, and returns the value or raises ConfigurationError. Types are exact:
true is no number. Numbers are finite and fit in 63 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from unified_tree.inputs.given_files import shown
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

Shape: TypeAlias = "Callable[[Any, str], Any]"
MOST = (1 << 63) - 1


def wrong(where: str, wanted: str, value: object) -> ConfigurationError:
    """The error to raise about a value."""
    return ConfigurationError(f"{where} must be {wanted}, not {shown(value)}")


def integer(minimum: int = 0, maximum: int = MOST) -> Shape:
    """An integer within these bounds."""

    def check(value: Any, where: str) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise wrong(
                where,
                f"an integer from {minimum} to {maximum}" if maximum < MOST else f"an integer of {minimum} or more",
                value,
            )
        return value

    return check


COUNT = integer()


def number(value: Any, where: str) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not -MOST <= value <= MOST or not isfinite(value):
        raise wrong(where, "a finite number", value)
    return float(value)


def text(value: Any, where: str) -> str:
    """A string, made printable."""
    if type(value) is not str:
        raise wrong(where, "a string", value)
    return printable(value, 1000)


def choice(*words: str) -> Shape:
    """One of some strings."""

    def check(value: Any, where: str) -> str:
        if type(value) is not str or value not in words:
            raise wrong(where, f"one of {', '.join(words)}", value)
        return value

    return check


def flag(value: Any, where: str) -> bool:
    """true or false."""
    if type(value) is not bool:
        raise wrong(where, "true or false", value)
    return value


def anything(value: Any, _: str) -> Any:
    """Whatever it is."""
    return value


def maybe(shape: Shape) -> Shape:
    """null, or of a shape."""
    return lambda value, where: None if value is None else shape(value, where)


def list_of(shape: Shape, count: int | None = None) -> Shape:
    """A list of values of one shape, `count` of them if that is given."""

    def check(value: Any, where: str) -> list[Any]:
        if type(value) not in (list, tuple) or (count is not None and len(value) != count):
            raise wrong(where, "a list" if count is None else f"a list of {count}", value)
        return [shape(item, f"{where}[{i}]") for i, item in enumerate(value)]

    return check


def row(*shapes: Shape) -> Shape:
    """A list with a shape for each place."""

    def check(value: Any, where: str) -> list[Any]:
        if type(value) not in (list, tuple) or len(value) != len(shapes):
            raise wrong(where, f"a list of {len(shapes)}", value)
        return [shape(item, f"{where}[{i}]") for i, (shape, item) in enumerate(zip(shapes, value, strict=True))]

    return check


def mapping_of(shape: Shape) -> Shape:
    """An object with any names, which are made printable; of those that are then alike, numbers are added up."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(where, "an object", value)
        found: dict[str, Any] = {}
        for name, item in value.items():
            key = text(name, f"a name in {where}")
            checked = shape(item, f"{where}[{key!r}]")
            found[key] = found[key] + checked if key in found and isinstance(checked, int | float) else checked
        return found

    return check


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these members. Other members are left out."""
    known = {**required, **(optional or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(where, "an object", value)
        for name in required:
            if name not in value:
                raise ConfigurationError(f"{where} lacks {name!r}")
        inner = "" if where == "it" else f"{where}."
        return {name: shape(value[name], inner + name) for name, shape in known.items() if name in value}

    return check


def of_class(kind: type[Any]) -> Shape:
    """An object with the fields of a dataclass; the value is an instance. Integers are zero or more. Unknown members are left
    out.
    """
    hints = get_type_hints(kind)
    required: dict[str, Shape] = {}
    optional: dict[str, Shape] = {}
    for field in fields(kind):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        (optional if has_default else required)[field.name] = of_type(hints[field.name])
    members = record(required, optional)
    return lambda value, where: kind(**members(value, where))


def of_type(hint: Any) -> Shape:
    """The shape of a field's type: int, float, str, bool, lists, tuples and mappings of these, and dataclasses."""
    plain: dict[Any, Shape] = {int: COUNT, float: number, str: text, bool: flag, Any: anything}
    if hint in plain:
        return plain[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, UnionType):
        [kind] = [each for each in inner if each is not NoneType]
        return maybe(of_type(kind))
    if origin is tuple:
        pieces = row(*map(of_type, inner))
        return lambda value, where: tuple(pieces(value, where))
    if origin in (list, Sequence):
        return list_of(of_type(inner[0]))
    if origin in (dict, Mapping):
        return mapping_of(of_type(inner[1]))
    return of_class(hint)
