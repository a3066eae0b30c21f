"""A composition from a Hugging Face `config.json`.

What a layer keeps was read from the configuration, modeling and cache code of `transformers` 5.23. A missing or invalid field,
an unknown kind of layer and an unknown `model_type` each raise an error that names them; nothing is guessed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel
from unified_tree.components.families.deepseek_v4 import read_deepseek_v4
from unified_tree.components.families.delta_net import read_kimi_linear, read_qwen3_5, read_qwen3_next
from unified_tree.components.families.dense import read_llama, read_mistral, read_mixtral, read_qwen, read_qwen3_moe
from unified_tree.components.families.latent import read_deepseek_v3, read_deepseek_v32, read_glm_moe_dsa
from unified_tree.components.families.mamba_hybrids import read_bamba, read_falcon_h1, read_jamba, read_mamba
from unified_tree.components.families.nemotron_h import read_nemotron_h
from unified_tree.components.families.windowed import read_gemma3, read_gpt_oss, read_mimo_v2_flash
from unified_tree.components.serving import Serving, dtype_name
from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given, shown
from unified_tree.terms.errors import ConfigurationError

ConfigSource: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""A `config.json` as a dictionary, as a path to the file, or as a path to the directory that holds it."""

READERS: Mapping[str, Callable[[ConfigFields, Serving], Composition]] = {
    "bamba": read_bamba,
    "deepseek_v3": read_deepseek_v3,
    "deepseek_v32": read_deepseek_v32,
    "deepseek_v4": read_deepseek_v4,
    "falcon_h1": read_falcon_h1,
    "falcon_mamba": read_mamba,
    "gemma3_text": read_gemma3,
    "glm_moe_dsa": read_glm_moe_dsa,
    "gpt_oss": read_gpt_oss,
    "jamba": read_jamba,
    "kimi_linear": read_kimi_linear,
    "llama": read_llama,
    "mamba": read_mamba,
    "mimo_v2_flash": read_mimo_v2_flash,
    "mistral": read_mistral,
    "mixtral": read_mixtral,
    "nemotron_h": read_nemotron_h,
    "qwen2": read_qwen,
    "qwen3": read_qwen,
    "qwen3_5_moe_text": read_qwen3_next,
    "qwen3_5_text": read_qwen3_5,
    "qwen3_moe": read_qwen3_moe,
    "qwen3_next": read_qwen3_next,
}
"""The reader of each known `model_type`."""

WRAPPED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": (
        "gemma3_text",
        {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
        },
    ),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
        },
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 8,
            "num_experts": 256,
        },
    ),
}
"""Multimodal wrappers: the model in their `text_config`, and its defaults. A file leaves out of a nested configuration what
equals its class's default, so there (and only there) a missing field has a defined meaning."""


def from_hf_config(
    config: ConfigSource,
    *,
    name: str | None = None,
    page_size: int | None = None,
    tensor_parallel: int = 1,
    rank: int | None = None,
    kv_dtype: str = "bfloat16",
    conv_dtype: str = "bfloat16",
    state_dtype: str | None = None,
    draft: int | ConfigSource | None = None,
) -> Composition:
    """The composition of the model that `config` describes.

    Args:
        config: a dictionary as from `to_dict()`, or a path to a `config.json` or to its directory.
        name: the model's name; None for its `model_type`.
        page_size: tokens a page; None for 64, or for 128 where a model's compressed KV asks for a multiple of it.
        tensor_parallel: ranks; all bytes are those of one rank. KV heads divide over ranks, or are replicated where ranks
            are a multiple of them; latents and index keys are replicated; heads of recurrent layers divide.
        rank: which of those this is, counted from 0. Needed to store or link state that the ranks divide; None otherwise.
        kv_dtype: of keys, values, latents and index keys, a name such as `bfloat16` or `float8_e4m3fn`.
        conv_dtype: of the convolutions' states.
        state_dtype: of recurrent and overlap states; None for what the model's own code keeps, which is fp32.
        draft: MTP or EAGLE layers shaped like the model's own full layers, as a number; or the `config.json` of a draft
            model with full attention throughout; None for no draft.

    Raises ConfigurationError, in one line that names the field, for a configuration that cannot be read with certainty.
    """
    values, origin = _load(config)
    for parameter, value in (("page_size", page_size), ("tensor_parallel", tensor_parallel)):
        if value is not None and (type(value) is not int or value <= 0):
            raise ConfigurationError(f"{parameter} must be a positive integer, not {value!r}")
    if rank is not None and (type(rank) is not int or not 0 <= rank < tensor_parallel):
        raise ConfigurationError(f"rank must be one of 0 … {tensor_parallel - 1}, not {rank!r}")
    fields = _fields(values, origin)
    serving = Serving(
        name=name or fields.model_type,
        page_size=page_size,
        ranks=tensor_parallel,
        rank=0 if tensor_parallel == 1 else rank,
        kv_dtype=dtype_name(kv_dtype, "kv_dtype"),
        conv_dtype=dtype_name(conv_dtype, "conv_dtype"),
        state_dtype=None if state_dtype is None else dtype_name(state_dtype, "state_dtype"),
        draft=_draft(draft, tensor_parallel, rank, kv_dtype),
    )
    return replace(READERS[fields.model_type](fields, serving), config_digest=_digest(values))


def _digest(values: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of a config, fields that no computation depends on left out."""
    fields = {name: value for name, value in values.items() if name not in ("transformers_version", "_name_or_path")}
    try:
        return sha256(json.dumps(fields, sort_keys=True, default=repr).encode()).hexdigest()[:16]
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"config must hold what JSON can hold: {error}") from error


def _load(config: ConfigSource) -> tuple[Mapping[str, Any], str]:
    """The config as a dictionary, and what to call it in an error."""
    if isinstance(config, Mapping):
        return config, "config"
    if not isinstance(config, str | os.PathLike):
        raise ConfigurationError(f"config must be a dictionary or a path, not {type(config).__name__}")
    path = FilePath(config)
    if os.path.isdir(path):
        path = path / "config.json"
    try:
        values = parse_json(read_given(path))
    except NotJsonError as error:
        raise ConfigurationError(f"{path}: is not JSON: line {error.line}: {error.why}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: must hold a JSON object, not {type(values).__name__}")
    return values, str(path)


def _fields(values: Mapping[str, Any], origin: str) -> ConfigFields:
    """The fields of the language model, a multimodal wrapper taken off."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigurationError(f"{origin}: config field 'model_type' must be a string, not {shown(model_type)}")
    if model_type in WRAPPED:
        text_type, defaults = WRAPPED[model_type]
        text = values.get("text_config")
        if not isinstance(text, Mapping):
            raise ConfigurationError(f"{model_type}: config field 'text_config' must be an object, not {shown(text)}")
        given = {key: value for key, value in text.items() if value is not None}
        return _fields({"model_type": text_type, **defaults, **given}, origin)
    if model_type not in READERS:
        known = ", ".join(sorted({*READERS, *WRAPPED}))
        raise ConfigurationError(f"{origin}: config field 'model_type' is {shown(model_type)}; known are {known}")
    return ConfigFields(values, model_type)


def _draft(draft: int | ConfigSource | None, tensor_parallel: int, rank: int | None, kv_dtype: str) -> DraftModel | int:
    if draft is None:
        return 0
    if isinstance(draft, int):
        if isinstance(draft, bool) or draft < 0:
            raise ConfigurationError(f"draft must be a number of layers or a draft model's config, not {draft!r}")
        return draft
    model = from_hf_config(draft, page_size=1, tensor_parallel=tensor_parallel, rank=rank, kv_dtype=kv_dtype)
    if not all(component.coverage.is_path for component in model.components):
        raise ConfigurationError(f"draft {model.name}: has windows or states; only a draft of full attention can share pages")
    formats = [component.format for component in model.components if component.format is not None]
    layer_ids, shard = formats[0].layer_ids, formats[0].shard
    if any((each.layer_ids, each.shard) != (layer_ids, shard) for each in formats):
        raise ConfigurationError(f"draft {model.name}: keeps index keys in some of its layers only, which no draft does")
    return DraftModel(
        layer_ids=layer_ids,
        parts=tuple(part for each in formats for part in each.parts),
        shard=shard,
        flops_per_token=sum(component.flops_per_token for component in model.components),
        flops_per_entry=sum(cost.flops_per_entry for cost in model.attention_costs),
    )
