"""Engines by name: the built-in ones, those of installed packages, and those that a program registers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.storage.file import FileStorage
from unified_tree.controllers.storage.memory_storage import MemoryStorage, NullStorage
from unified_tree.controllers.storage.storage_engine import StorageEngine, StoredPool, check_can_hold
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "unified_tree.storage"
"""An installed package offers `name = "module:factory"` here, as this library does for its own engines with servers."""
OWN = "unified_tree."

Factory = Callable[..., StorageEngine]
"""Called with the pools, a sequence of StoredPool, and the engine's own options by keyword."""


def entry_points(*, group: str) -> Iterable[EntryPoint]:
    """The entry points of a group."""
    from importlib.metadata import entry_points as installed  # takes longer to import than the tree

    return installed(group=group)


class StorageRegistry:
    """The engines that can be opened by name: null, memory, file, and those of entry points, this library's own included.

    A package's name never replaces a built-in one; a name that the program registers replaces both.
    """

    def __init__(self) -> None:
        self._factories: dict[str, Factory] = {"null": NullStorage, "memory": MemoryStorage, "file": FileStorage}
        points = entry_points(group=ENTRY_POINT_GROUP)
        self._installed = {point.name: point for point in sorted(points, key=lambda point: point.value.startswith(OWN))}

    @property
    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted({*self._factories, *self._installed})

    def register(self, name: str, factory: Factory) -> None:
        """Register an engine. Raises ConfigurationError for an empty name, or a factory that cannot be called."""
        if type(name) is not str or not name:
            raise ConfigurationError(f"a storage engine's name must be a non-empty string, not {repr_of(name)}")
        if not callable(factory):
            raise ConfigurationError(f"the storage engine {name!r} must be opened by a function, not {repr_of(factory)}")
        self._factories[name] = factory

    def open(self, name: str, pools: Sequence[StoredPool], **options: Any) -> StorageEngine:
        """A new engine for these pools.

        Raises ConfigurationError for an unknown name, a package that cannot be imported, invalid options, an object without all
        methods of a StorageEngine, and pools that it cannot keep; such an engine is closed again. Errors of the factory are
        passed on.

        >>> pool = StoredPool(name="full", format_digest=bytes(32), value_bytes=4160)
        >>> StorageRegistry().open("memory", [pool], capacity_bytes=1 << 20).capabilities.zero_copy
        False
        """
        factory = self._factory(name)
        _check_options(name, factory, options)
        engine = factory(pools, **options)
        try:
            _check_methods(name, engine)
            check_can_hold(engine.capabilities, pools)
        except ConfigurationError:
            if callable(getattr(engine, "close", None)):
                engine.close()
            raise
        return engine

    def _factory(self, name: str) -> Factory:
        if name in self._factories:
            return self._factories[name]
        if name not in self._installed:
            raise ConfigurationError(f"no storage engine is called {name!r}; known are {', '.join(self.names)}")
        try:
            loaded: Factory = self._installed[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the storage engine {name!r} of an installed package cannot be loaded: {error}"
            ) from error
        return loaded


def _check_options(name: str, factory: Factory, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for options that a factory does not take, or lacks.

    Checked before the call, so that a TypeError inside the factory is not mistaken for a wrong option.
    """
    if inspect.isabstract(factory):
        lacking = ", ".join(sorted(getattr(factory, "__abstractmethods__", ())))
        raise ConfigurationError(f"storage {name!r}: the class {factory!r} is not whole, it lacks {lacking}")
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some functions written in C do not say
        return
    try:
        signature.bind((), **options)
    except TypeError as error:
        known = list(signature.parameters)[1:]
        given = ", ".join(sorted(options)) or "no options"
        raise ConfigurationError(
            f"storage {name!r} cannot be opened with {given}: {error}; its options are {', '.join(known) or 'none'}"
        ) from None


def _check_methods(name: str, engine: object) -> None:
    wanted = [member for member in vars(StorageEngine) if not member.startswith("_")]
    lacking = [member for member in wanted if not hasattr(engine, member)]
    if lacking:
        kind = type(engine).__name__
        raise ConfigurationError(f"storage {name!r} opens a {kind}, which is no StorageEngine: it lacks {', '.join(lacking)}")
