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

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, StorageError

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
            f"an engine's name must be lower-case letters, digits and single underscores between them, not {repr_of(engine)}"
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
                wrong.append(f"{where} has an unknown setting {repr_of(name)}")
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
            wrong.append(f"{field.name} must be {bounds[field.name]}, not {repr_of(value)}")
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
        raise ConfigurationError(f"{name} must be {of.__name__}, {bounds}, not {repr_of(value)}")


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
        raise ConfigurationError(f"{engine}: {name} must be host:port, as in 10.0.0.7:30001, not {repr_of(address)}") from error


def kinds(of: Any) -> tuple[type, ...]:
    """The types that a field may have; of a mapping or a sequence not those of its items."""
    return tuple(get_origin(kind) or kind for kind in (get_args(of) if isinstance(of, UnionType) else (of,)))


def named(of: Any) -> str:
    """The same in words."""
    return " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds(of))


def shown(field: Field[Any], value: object) -> str:
    """A value in a message; not one that the dataclass keeps out of its representation."""
    return repr_of(value) if field.repr else "what it is (a secret)"


def fits(value: object, of: Any) -> bool:
    """Whether a value is of just this type; a whole number is a float, too."""
    return any(type(value) is kind or (kind is float and type(value) is int) for kind in kinds(of))


MAX_FILE_BYTES = 1 << 20


def section(path: Path, engine: str) -> Mapping[str, Any]:
    """The settings of an engine by name. Raises ConfigurationError for a file that is not such a one, or gives a name twice."""
    try:
        text = read_given(path, max_bytes=MAX_FILE_BYTES).decode("utf-8")
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


_HOST = re.compile(r"[^\s/\\@?#%,:\[\]]+")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+)\]")
_PORT = re.compile(r"[0-9]{1,5}")


def host_and_port(text: str) -> tuple[str, int]:
    """The two of "host:port", "[::1]:port" included. Raises ValueError for what can be no such address: a URL, a user's name
    before the host, white space, an IPv6 address without its brackets.

    >>> host_and_port("[::1]:6379")
    ('::1', 6379)
    """
    host, _, port = text.rpartition(":")
    bracketed = _IPV6.fullmatch(host)
    if bracketed:
        host = str(ipaddress.IPv6Address(bracketed[1]))
    elif not _HOST.fullmatch(host) or not host.isprintable():
        raise ValueError(f"{text!r} is not host:port")
    host.encode("idna")  # what cannot be a name would otherwise be an error of another kind, and later
    if not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def check_listens(engine: str, server: str, address: str, timeout_s: float, advice: str = "check its address") -> None:
    """Raise StorageError if nothing listens, before creating a client that would hang or abort the process."""
    try:
        socket.create_connection(host_and_port(address), timeout=timeout_s).close()
    except OSError as error:
        raise StorageError(f"{engine}: no {server} at {address} ({error}): {advice}") from error


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and nobody else can reach it: `localhost`, or an address of the loopback. No name is
    looked up.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "")]
    [True, True, True, False, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
