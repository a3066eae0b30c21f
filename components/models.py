"""Models by name: the built-in ones, those of installed packages, and any other as `module:factory`.

A built-in model is its published `config.json`, cut down to what decides the cache: numbers and layer schedules. Where the
defaults of a `transformers` 5.23 class are those of the checkpoint, the numbers were checked against them: GPT-OSS-120b,
Qwen3-Next, Kimi-Linear, DeepSeek-V3.2, GLM-5, MiMo-V2-Flash, DeepSeek-V4-Flash. The layer schedules of DeepSeek-V4-Flash and
Kimi-Linear and the KV heads of MiMo-V2-Flash were checked against public discussions that quote the released files. The rest
(Llama-3.1, Qwen3-32B, GPT-OSS-20b, Gemma-3-27b, Nemotron-H-8B) was written down from knowledge of the released files, which
could not be fetched; their weights add up to the published sizes, and Nemotron-H's pattern to its paper's 24 Mamba2, 24 MLP and
4 attention layers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unified_tree.components.composition import Composition
from unified_tree.components.composition_file import SUFFIXES, described, is_description, read_file
from unified_tree.components.hf_config import ConfigSource, from_hf_config
from unified_tree.inputs.extensions import find_extension, known_names
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, UnifiedTreeError

ENTRY_POINT_GROUP = "unified_tree.models"
"""An installed package offers `name = "module:factory"` here."""

ModelFactory = Callable[..., Composition]
"""Makes a composition from the options of `composition_for`, all of them by keyword."""

MODEL_FACTS: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("model_facts.json").read_text(encoding="utf-8")
)
"""The fields of each built-in model, by name."""

BUILT_IN: Mapping[str, ModelFactory] = {
    name: partial(from_hf_config, MODEL_FACTS[name], name=name) for name in sorted(MODEL_FACTS)
}
"""The factory of each built-in model."""


def model_names() -> tuple[str, ...]:
    """The names that `composition_for` knows: of the built-in models, then of those of installed packages."""
    return known_names(ENTRY_POINT_GROUP, BUILT_IN)


def composition_for(
    name: str,
    *,
    page_size: int | None = None,
    tensor_parallel: int = 1,
    rank: int | None = None,
    kv_dtype: str | None = None,
    conv_dtype: str | None = None,
    state_dtype: str | None = None,
    index_dtype: str | None = None,
    draft: int | ConfigSource | None = None,
    ignore: Sequence[str] = (),
) -> Composition:
    """The composition of a model by its name, or by a file; the options are those of `from_hf_config`.

    Args:
        name: a file that ends in `.yaml`, `.yml` or `.json`, or a folder with a `config.json`: a model's configuration, or a
            description of its layers (docs/models.md). Otherwise a built-in model's name, or of an entry point in the group
            `unified_tree.models`, or `module:factory`. A custom factory is called with the options by keyword, and may refuse
            those it does not support.

    Raises ConfigurationError for an unknown name, and for a factory that does not return a composition.

    >>> composition_for("llama-3.1-8b").bytes_per_token()
    {'full': 131072.0}
    """
    if name.endswith(SUFFIXES) or os.path.isdir(name):
        values = read_file(name)
        if not is_description(values):
            return from_hf_config(
                values,
                page_size=page_size,
                tensor_parallel=tensor_parallel,
                rank=rank,
                kv_dtype=kv_dtype,
                conv_dtype=conv_dtype,
                state_dtype=state_dtype,
                index_dtype=index_dtype,
                draft=draft,
                ignore=ignore,
            )
        if draft not in (None, 0) or ignore or index_dtype is not None:
            raise ConfigurationError(f"{name}: describes all that is kept; draft, ignore and index_dtype are for a config.json")
        return described(
            values,
            origin=name,
            page_size=page_size,
            tensor_parallel=tensor_parallel,
            rank=rank,
            kv_dtype=kv_dtype,
            conv_dtype=conv_dtype,
            state_dtype=state_dtype,
        )
    if ignore:
        raise ConfigurationError(f"ignore: is for a model's config.json, and {name!r} is not a file")
    factory = find_extension("model", name, ENTRY_POINT_GROUP, BUILT_IN)
    choices: dict[str, Any] = {
        "page_size": page_size,
        "tensor_parallel": tensor_parallel,
        "rank": rank,
        "kv_dtype": kv_dtype or "bfloat16",
        "conv_dtype": conv_dtype or "bfloat16",
        "state_dtype": state_dtype,
        "draft": draft,
    }
    if name in BUILT_IN:
        return factory(**choices, index_dtype=index_dtype)
    try:
        made: object = factory(**choices)
    except UnifiedTreeError:
        raise
    except (Exception, SystemExit) as error:  # anybody's function
        raise ConfigurationError(f"the factory of model {name!r} cannot make it: {type(error).__name__}: {error}") from error
    if not isinstance(made, Composition):
        raise ConfigurationError(f"the factory of model {name!r} must return a Composition, not {repr_of(made)}")
    return made
