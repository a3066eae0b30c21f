"""Reads a `config.json` field by field; a field with an invalid value raises an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unified_tree.inputs.given_files import shown
from unified_tree.terms.errors import ConfigurationError

LEGACY_LAYER_KINDS = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
"""Names of layer kinds in older files, and what `transformers` 5 calls them."""


LAYERS = "num_hidden_layers"
MAX_LAYERS = 1 << 14
MAX_COUNT = 1 << 40
"""More than this is taken for a mistake."""


class ConfigFields:
    """The fields of one model's configuration. A null counts as missing.

    Several names in one call are spellings of one field: the first that is present is used, and errors name the first spelling.
    Every method raises ConfigurationError naming the field and the `model_type`.
    """

    __slots__ = ("_values", "model_type")

    def __init__(self, values: Mapping[str, Any], model_type: str) -> None:
        self._values = values
        self.model_type = model_type

    def overlaid(self, values: Mapping[str, Any]) -> ConfigFields:
        """The same fields with `values` in front."""
        return ConfigFields({**self._values, **values}, self.model_type)

    def get(self, *names: str) -> Any:
        """The raw value, or None."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def error(self, name: str, problem: str) -> ConfigurationError:
        """The error to raise about field `name`; `problem` continues the sentence."""
        return ConfigurationError(f"{self.model_type}: config field {name!r} {problem}")

    def count(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer of `minimum` or more; `default` where it is missing and a default is given."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise self.error(names[0], "is missing")
            return default
        if type(value) is not int or value < minimum:
            raise self.error(names[0], f"must be an integer of {minimum} or more, not {shown(value)}")
        most = MAX_LAYERS if names[0] == LAYERS else MAX_COUNT
        if value > most:
            raise self.error(names[0], f"must be {most} or less, not {value}")
        return value

    def optional_count(self, *names: str) -> int | None:
        """A positive integer, or None where it is missing."""
        return None if self.get(*names) is None else self.count(*names)

    def flag(self, name: str) -> bool:
        """A boolean; False where it is missing."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {shown(value)}")
        return value

    def quotient(self, name: str, dividend: int, divisor: int) -> int:
        """`dividend / divisor`, which must be an integer; `name` is the field that the error names."""
        if dividend % divisor:
            raise self.error(name, f"does not come out even: {dividend} / {divisor}")
        return dividend // divisor

    def list_of(self, kind: type, name: str) -> list[Any] | None:
        """A list whose entries are all of `kind`, or None where it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(name, f"must be a list, not {shown(value)}")
        for position, entry in enumerate(value):
            if type(entry) is not kind:
                raise self.error(name, f"must hold {kind.__name__} entries only, not {shown(entry)} at position {position}")
        return list(value)

    def kinds(self, name: str, length: int, known: Sequence[str], default: Sequence[str]) -> list[str]:
        """One kind a layer, each of `known`; `default` where the field is missing."""
        entries = self.list_of(str, name)
        if entries is None:
            return list(default)
        if len(entries) != length:
            raise self.error(name, f"has {len(entries)} entries for {length} layers")
        kinds = [str(LEGACY_LAYER_KINDS.get(entry, entry)) for entry in entries]
        for position, kind in enumerate(kinds):
            if kind not in known:
                raise self.error(name, f"is {kind!r} at layer {position}; known are {', '.join(known)}")
        return kinds

    def layer_indices(self, name: str, length: int, *, first: int = 0) -> set[int]:
        """Layer numbers counted from `first`, returned counted from 0; empty where the field is missing."""
        entries = self.list_of(int, name) or []
        for entry in entries:
            if not first <= entry < first + length:
                raise self.error(name, f"names layer {entry}; there are {length}")
        return {entry - first for entry in entries}
