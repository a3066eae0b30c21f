"""Configuration of all engines: explicit settings, then a file, then the environment, then the defaults.

An engine describes its settings as a frozen dataclass of int, float, str, bool, and those or None; a field without a default
must be given somewhere. The file is YAML or JSON with one mapping an engine, so that one file serves all of them:

    mooncake:
      master: 127.0.0.1:50051
      segment_bytes: 4294967296

In the environment the setting `master` of the engine `mooncake` is unified_tree__mooncake__master, and the file may be named by
UNIFIED_TREE_STORAGE_CONFIG. An unknown setting in any of the three is an error, because a misspelt one would be ignored.

Variables of settings are in lower case and have two underscores between their parts. Kubernetes writes a service's address into
variables of its own, in capitals (UNIFIED_TREE_REDIS_PORT for a service unified-tree-redis), so it makes none of these; and
since no name of an engine or a setting holds two underscores, no engine reads another's. POSIX leaves names with lower-case
letters to applications (https://pubs.opengroup.org/onlinepubs/9699919799/basedefs/V1_chap08.html). The same name in another
case is an error if it is that of a known setting, and ignored otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_type_hints

from unified_tree.controllers.storage.setting_checks import fits, kinds, named, shown
from unified_tree.controllers.storage.settings_file import section
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.terms.errors import ConfigurationError

VARIABLE_PREFIX = "unified_tree__"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""Of an engine or a setting: no capitals, and never two underscores together, nor one at an end."""
_KUBERNETES = re.compile(r"[A-Z][A-Z0-9_]*_(?:SERVICE_HOST|SERVICE_PORT.*|PORT.*)")
"""What it may write for a service, of whatever name."""
FILE_VARIABLE = "UNIFIED_TREE_STORAGE_CONFIG"
"""Names the file where none is given."""
Settings = TypeVar("Settings")
Engine = TypeVar("Engine")


def load_settings(
    kind: type[Settings],
    engine: str,
    explicit: Mapping[str, Any],
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of an engine.

    Args:
        kind: the dataclass.
        engine: its name, which is the file's section and a part of the variables' names: lower-case letters, digits, and single
            underscores between them.
        explicit: settings by name; these win.
        file: YAML (.yaml, .yml) or JSON (.json); by default what UNIFIED_TREE_STORAGE_CONFIG names, if anything.
        environment: by default the process's.

    Raises ConfigurationError for an invalid engine name. Its message names every setting that is unknown, missing or of another
    type, and where it was found.
    """
    if type(engine) is not str or not _NAME.fullmatch(engine):
        raise ConfigurationError(
            f"an engine's name must be lower-case letters, digits and single underscores between them, not {engine!r}"
        )
    variables = os.environ if environment is None else environment
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    assert all(map(_NAME.fullmatch, known)), "a setting's variable could be another's"
    types = get_type_hints(kind)
    path = file if file is not None else variables.get(FILE_VARIABLE)
    found: dict[str, Any] = {}
    wrong = [f"{given} must be written {name}" for given, name in _in_other_cases(engine, known, variables)]
    missing = {name: None for name, field in known.items() if _is_required(field)}
    for where, given in (
        (f"the environment ({_variable(engine, '')}…)", _of_environment(engine, known, types, variables)),
        (str(path), {} if path is None else section(Path(path), engine)),
        ("the explicit settings", explicit),
    ):
        for name, value in given.items():
            missing.pop(name, None)
            if name not in known:
                wrong.append(f"{where} has an unknown setting {name!r}")
            elif not fits(value, types[name]):
                wrong.append(f"{name} in {where} must be {named(types[name])}, not {shown(known[name], value)}")
            else:
                found[name] = value
    wrong += [f"{name} is missing: give it, or set {_variable(engine, name)}" for name in missing]
    if wrong:
        raise ConfigurationError(f"{engine}: {'; '.join(wrong)}; its settings are {', '.join(known)}")
    return kind(**found)


def engine_opener(
    engine: str, kind: type[Settings], storage: Callable[[Sequence[StoredPool], Settings], Engine]
) -> Callable[..., Engine]:
    """A factory for the registry, which opens an engine with the settings from `load_settings`.

    Args:
        engine, kind: see `load_settings`.
        storage: makes the engine, of pools and settings.
    """

    def opened(pools: Sequence[StoredPool], *, config_file: str | Path | None = None, **settings: Any) -> Engine:
        return storage(pools, load_settings(kind, engine, settings, file=config_file))

    return opened


def _variable(engine: str, name: str) -> str:
    return f"{VARIABLE_PREFIX}{engine}__{name}"


def _in_other_cases(engine: str, known: Mapping[str, Field[Any]], variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that a setting's would be but for capitals, and how they are written."""
    wanted = {_variable(engine, name) for name in known}
    others = [given for given in sorted(variables) if given not in wanted and not _KUBERNETES.fullmatch(given)]
    return [(given, given.lower()) for given in others if given.lower() in wanted]


def _of_environment(
    engine: str, known: Mapping[str, Field[Any]], types: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Settings by name; a text that cannot be what its setting is stays a text."""
    start, given = _variable(engine, ""), {}
    for variable, text in sorted(variables.items()):
        if variable.startswith(start):
            name = variable.removeprefix(start)
            given[name] = _parsed(text, types[name]) if name in known else text
    return given


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _parsed(text: str, of: Any) -> object:
    [kind] = [kind for kind in kinds(of) if kind is not NoneType]
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text
