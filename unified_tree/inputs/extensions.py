"""Extensions by name: built-in, an installed package's entry point, or `module:attribute`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, cast

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def known_names(group: str, built_in: Iterable[str]) -> tuple[str, ...]:
    """The built-in names in their order, then those of installed packages, sorted. Cost: a look at every installed package."""
    names = list(built_in)
    return (*names, *sorted(_installed(group).keys() - names))


def find_extension(what: str, name: str, group: str, built_in: Mapping[str, T]) -> T:
    """The object of a name: a built-in one, else an entry point of this group, else `module:attribute`.

    Args:
        what: the kind of extension, for error messages.

    Raises ConfigurationError for an unknown name, and for an object that cannot be imported or called.
    """
    if name in built_in:
        return built_in[name]
    installed = _installed(group)
    if name not in installed and ":" not in name:
        names = ", ".join(known_names(group, built_in))
        raise ConfigurationError(f"unknown {what} {repr_of(name)}; there are {names}, and any of your own as module:factory")
    try:
        found = installed[name].load() if name in installed else _imported(name)
    except (Exception, SystemExit) as error:  # importing a module runs it
        raise ConfigurationError(f"{what} {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{what} {name!r} must be a factory, which {found!r} is not")
    return cast("T", found)


def _installed(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes longer to import than the tree

    return {point.name: point for point in entry_points(group=group)}


def _imported(name: str) -> object:
    module, _, attribute = name.partition(":")
    found: object = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
