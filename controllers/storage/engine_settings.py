"""One way for every engine to be configured: explicit settings, then a file, then the environment, then the defaults.

An engine describes its settings as a frozen dataclass of int, float, str, bool, and those or None; a field without a default
must be given somewhere. The file is YAML or JSON with one mapping an engine, so that one file serves all of them:

    mooncake:
      master: 127.0.0.1:50051
      segment_bytes: 4294967296

In the environment the setting `master` of the engine `mooncake` is UNIFIED_TREE_MOONCAKE_MASTER, and the file may be named by
UNIFIED_TREE_STORAGE_CONFIG. Whatever is not a setting, in any of the three, is an error: a misspelt one would be ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from unified_tree.errors import ConfigurationError

VARIABLE_PREFIX = "UNIFIED_TREE_"
FILE_VARIABLE = "UNIFIED_TREE_STORAGE_CONFIG"
"""Names the file where none is given."""
Settings = TypeVar("Settings")


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
        engine: its name, which is the file's section and a part of the variables' names.
        explicit: settings by name; these win.
        file: YAML (.yaml, .yml) or JSON (.json); by default what UNIFIED_TREE_STORAGE_CONFIG names, if anything.
        environment: by default the process's.

    Raises ConfigurationError that names every setting which is unknown, missing or of another type, and where it was found.
    """
    variables = os.environ if environment is None else environment
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    path = file if file is not None else variables.get(FILE_VARIABLE)
    found: dict[str, Any] = {}
    wrong: list[str] = []
    missing = {name: None for name, field in known.items() if _is_required(field)}
    for where, given in (
        (f"the environment ({_variable(engine, '')}…)", _of_environment(engine, known, types, variables)),
        (str(path), {} if path is None else _section(Path(path), engine)),
        ("the explicit settings", explicit),
    ):
        for name, value in given.items():
            missing.pop(name, None)
            if name not in known:
                wrong.append(f"{where} has an unknown setting {name!r}")
            elif not _fits(value, types[name]):
                wrong.append(f"{name} in {where} must be {_named(types[name])}, not {_shown(known[name], value)}")
            else:
                found[name] = value
    wrong += [f"{name} is missing: give it, or set {_variable(engine, name)}" for name in missing]
    if wrong:
        raise ConfigurationError(f"{engine}: {'; '.join(wrong)}; its settings are {', '.join(known)}")
    return kind(**found)


def _variable(engine: str, name: str) -> str:
    return f"{VARIABLE_PREFIX}{engine}_{name}".upper()


def _of_environment(
    engine: str, known: Mapping[str, Field[Any]], types: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Settings by name; a text that cannot be what its setting is stays a text."""
    start, given = _variable(engine, ""), {}
    for variable, text in sorted(variables.items()):
        if variable.startswith(start):
            name = variable.removeprefix(start).lower()
            given[name] = _parsed(text, types[name]) if name in known else text
    return given


def _section(path: Path, engine: str) -> Mapping[str, Any]:
    """The mapping of an engine in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{engine}: the file of settings {path} cannot be read: {error}") from error
    if path.suffix not in {".yaml", ".yml", ".json"}:
        raise ConfigurationError(f"{engine}: the file of settings must end in .yaml, .yml or .json, which {path} does not")
    content = _of_json(path, text) if path.suffix == ".json" else _of_yaml(path, text)
    section = content.get(engine) if isinstance(content, dict) else None
    if not isinstance(section, dict) or not all(isinstance(name, str) for name in section):
        has = ", ".join(map(repr, content)) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigurationError(f"{path} must hold settings by name under {engine!r}; it has {has or 'nothing'}")
    return section


def _of_json(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error


def _of_yaml(path: Path, text: str) -> object:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise ConfigurationError(f"{path} needs pyyaml (pip install pyyaml); JSON needs nothing") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is no YAML: {error}") from error


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _kinds(of: Any) -> tuple[type, ...]:
    return get_args(of) if isinstance(of, UnionType) else (of,)


def _named(of: Any) -> str:
    return " or ".join("None" if kind is NoneType else kind.__name__ for kind in _kinds(of))


def _shown(field: Field[Any], value: object) -> str:
    """A value in a message; not one that the dataclass keeps out of its representation."""
    return repr(value) if field.repr else "what it is (a secret)"


def _fits(value: object, of: Any) -> bool:
    return any(type(value) is kind or (kind is float and type(value) is int) for kind in _kinds(of))


def _parsed(text: str, of: Any) -> object:
    [kind] = [kind for kind in _kinds(of) if kind is not NoneType]
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text
