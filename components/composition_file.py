"""A model that is described in a file: its layers by kind, and what each kind keeps of a token or of a prefix.

A description is YAML or JSON. Each component says which layers it serves, which tokens a prefix needs of them, and the tensors
that one token, or one state, takes in one layer. Sizes are those of one tensor-parallel rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path as FilePath
from typing import Any

from unified_tree.components.composition import Composition
from unified_tree.components.kinds import token_path
from unified_tree.components.serving import dtype_name
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Chunked, Coverage, Path, Point, Trailing
from unified_tree.declare.page_format import WHOLE, PageFormat, Part
from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given, shown
from unified_tree.terms.errors import ConfigurationError

SUFFIXES = (".yaml", ".yml", ".json")
TOP = ("name", "page_size", "components", "tensor_parallel")
FIELDS = (
    "name",
    "coverage",
    "layers",
    "parts",
    "shares",
    "required",
    "tokens_per_slot",
    "save_grid_tokens",
    "flops_per_token",
    "rebuild_tokens",
)
MAX_LAYERS = 1 << 14


def read_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The object that a file of YAML or JSON holds; of a folder, its `config.json`.

    Raises ConfigurationError, in one line, for a file that cannot be read or holds something else.
    """
    file = FilePath(path)
    if os.path.isdir(file):
        file = file / "config.json"
    text = read_given(file)
    if file.suffix in (".yaml", ".yml"):
        values = _yaml(file, text)
    else:
        try:
            values = parse_json(text)
        except NotJsonError as error:
            raise ConfigurationError(f"{file}: is not JSON: line {error.line}: {error.why}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: must hold a JSON object, not {type(values).__name__}")
    return values


def _yaml(file: FilePath, text: bytes) -> Any:
    try:
        yaml = import_module("yaml")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{file} needs pyyaml (pip install pyyaml); JSON needs nothing") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: is not YAML: {' '.join(str(error).split())}") from error


def is_description(values: Mapping[str, Any]) -> bool:
    """Whether an object describes a composition, and is no `config.json`."""
    return "components" in values and "model_type" not in values


def described(
    values: Mapping[str, Any],
    *,
    origin: str = "model",
    page_size: int | None = None,
    tensor_parallel: int = 1,
    rank: int | None = None,
    kv_dtype: str | None = None,
    conv_dtype: str | None = None,
    state_dtype: str | None = None,
) -> Composition:
    """The composition that an object describes.

    Args:
        values: `name`, `page_size` and `components`. A component has a `name`, a `coverage`, `layers` and `parts`. The coverage
            is `path`, `state`, `{window: past tokens}` or `{chunk: tokens}`. Layers are `0-31`, `3-47:4` or a list. A part is a
            dtype and a shape; the dtypes `kv`, `model` and `state` stand for the options below. Other fields of `Component`
            are optional.
        origin: what to call it in errors.
        page_size: tokens a page, instead of the file's.
        tensor_parallel: must be the file's, which is 1 where it does not say.
        rank: see `from_hf_config`.
        kv_dtype: what `kv` stands for; None for bf16.
        conv_dtype: what `model` stands for; None for bf16.
        state_dtype: what `state` stands for; None for fp32.

    Raises ConfigurationError for anything else.

    >>> mine = {"name": "mine", "page_size": 16, "components": [
    ...     {"name": "full", "coverage": "path", "layers": "0-11:4", "parts": {"k": ["kv", 8, 128], "v": ["kv", 8, 128]}},
    ...     {"name": "swa", "coverage": {"window": 511}, "layers": [1, 2], "parts": {"k": ["kv", 8, 96]}},
    ... ]}
    >>> described(mine).bytes_per_token()
    {'full': 12288.0, 'swa': 3072.0}
    """
    for name in values:
        if name not in TOP:
            raise ConfigurationError(f"{origin}: {shown(name)} is none of {', '.join(TOP)}")
    ranks = values.get("tensor_parallel", 1)
    if ranks != tensor_parallel:
        raise ConfigurationError(f"{origin}: describes one rank of {shown(ranks)}, not of {tensor_parallel} (tensor_parallel)")
    dtypes = {
        "kv": dtype_name(kv_dtype or "bfloat16", "kv_dtype"),
        "model": dtype_name(conv_dtype or "bfloat16", "conv_dtype"),
        "state": dtype_name(state_dtype or "float32", "state_dtype"),
    }
    size = values.get("page_size", 64) if page_size is None else page_size
    if type(size) is not int or size <= 0:
        raise ConfigurationError(f"{origin}: page_size must be a positive integer, not {shown(size)}")
    given = values.get("components")
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigurationError(f"{origin}: components must be a list of at least one, not {shown(given)}")
    name = values.get("name", "model")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{origin}: name must be a string, not {shown(name)}")
    components = [_component(each, f"{origin}: component {i + 1}", size, dtypes, ranks) for i, each in enumerate(given)]
    if not any(c.coverage.is_path and c.required and c.shares is None for c in components):
        components.insert(0, token_path())
    return Composition(name=name, page_size=size, components=tuple(components), tensor_parallel=ranks, rank=rank)


def _component(given: object, where: str, page_size: int, dtypes: Mapping[str, str], ranks: object) -> Component:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where}: must be an object, not {shown(given)}")
    for field in given:
        if field not in FIELDS:
            raise ConfigurationError(f"{where}: {shown(field)} is none of {', '.join(FIELDS)}")
    for field in FIELDS[:4]:
        if given.get(field) is None:
            raise ConfigurationError(f"{where}: {field} is missing")
    coverage = _coverage(given["coverage"], where)
    slot = given.get("tokens_per_slot", 1)
    if type(slot) is not int or slot <= 0 or page_size % slot:
        raise ConfigurationError(f"{where}: tokens_per_slot must divide the page size, {page_size}, not {shown(slot)}")
    kept = PageFormat(
        component=given["name"],
        layer_ids=_layers(given["layers"], where),
        parts=_parts(given["parts"], where, dtypes),
        slots_per_page=1 if coverage.is_exact else page_size // slot,
        shard=WHOLE if ranks == 1 else None,
    )
    optional = {name: given[name] for name in FIELDS[4:] if given.get(name) is not None}
    if coverage.is_exact:
        optional.setdefault("save_grid_tokens", page_size)
    return Component(name=given["name"], coverage=coverage, format=kept, **optional)


def _coverage(given: object, where: str) -> Coverage:
    if given == "path":
        return Path()
    if given == "state":
        return Point()
    if isinstance(given, Mapping) and len(given) == 1:
        [(kind, tokens)] = given.items()
        if kind == "window":
            return Trailing(tokens)
        if kind == "chunk":
            return Chunked(tokens)
    raise ConfigurationError(
        f"{where}: coverage must be path, state, {{window: tokens}} or {{chunk: tokens}}, not {shown(given)}"
    )


def _layers(given: object, where: str) -> tuple[int, ...]:
    """Layer numbers: `7`, a list, `0-31`, or `3-47:4` for every fourth from 3 on."""
    if type(given) is int:
        return (given,)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(given)
    found: list[int] = []
    for piece in given.split(",") if isinstance(given, str) else [""]:
        span, colon, step = piece.strip().partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, *([last] if dash else []), *([step] if colon else [])]
        if not all(number.isascii() and number.isdecimal() and int(number[:9]) < MAX_LAYERS for number in numbers):
            raise ConfigurationError(f"{where}: layers must be such as 0-31, 3-47:4 or [1, 2, 5], not {shown(given)}")
        found += range(int(first), int(last if dash else first) + 1, max(1, int(step) if colon else 1))
    return tuple(found)


def _parts(given: object, where: str, dtypes: Mapping[str, str]) -> tuple[Part, ...]:
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"{where}: parts must name tensors, such as {{k: [kv, 8, 128]}}, not {shown(given)}")
    parts = []
    for name, shape in given.items():
        if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) < 2 or not isinstance(shape[0], str):
            raise ConfigurationError(f"{where}: part {shown(name)} must be a dtype and a shape, not {shown(shape)}")
        parts.append(Part(name, dtypes.get(shape[0]) or dtype_name(shape[0], f"{where}: part {name}"), tuple(shape[1:])))
    return tuple(parts)
