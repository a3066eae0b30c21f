"""A file of settings: YAML or JSON, with one mapping an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given
from unified_tree.terms.errors import ConfigurationError

MAX_BYTES = 1 << 20


def section(path: Path, engine: str) -> Mapping[str, Any]:
    """The settings of an engine by name. Raises ConfigurationError for a file that is not such a one, or gives a name twice."""
    try:
        text = read_given(path, max_bytes=MAX_BYTES).decode("utf-8")
    except (ConfigurationError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{engine}: the file of settings {path} cannot be read: {error}") from error
    if path.suffix not in {".yaml", ".yml", ".json"}:
        raise ConfigurationError(f"{engine}: the file of settings must end in .yaml, .yml or .json, which {path} does not")
    content = _of_json(path, text) if path.suffix == ".json" else _of_yaml(path, text)
    found = content.get(engine) if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        has = ", ".join(map(repr, content)) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigurationError(f"{path} must hold settings by name under {engine!r}; it has {has or 'nothing'}")
    return found


def _of_json(path: Path, text: str) -> object:
    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_distinct(path, [name for name, _ in pairs])
        return dict(pairs)

    try:
        return parse_json(text, mapping)
    except NotJsonError as error:
        raise ConfigurationError(f"{path} is no JSON: line {error.line}: {error.why}") from error


def _of_yaml(path: Path, text: str) -> object:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise ConfigurationError(f"{path} needs pyyaml (pip install pyyaml); JSON needs nothing") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        mappings = [root, *(value for _, value in root.value)] if isinstance(root, yaml.MappingNode) else []
        for node in mappings:
            if isinstance(node, yaml.MappingNode):
                _check_distinct(path, [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)])
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # of dates that are none, and deep lists
        raise ConfigurationError(f"{path} is no YAML: {error}") from error


def _check_distinct(path: Path, names: Iterable[str]) -> None:
    """YAML and JSON would keep the last of those that stand twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"{path} has {name!r} twice in one mapping")
        seen.add(name)
