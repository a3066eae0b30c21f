"""A composition from a Hugging Face `config.json`.

The source is the configuration, modeling and cache code of `transformers` 5.23. Errors name a field that is
missing or invalid, an unknown kind of layer, and a field that may change what is cached and is not understood.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias

from unified_tree.components.class_defaults import CLASS_DEFAULTS, WRAPPED
from unified_tree.components.composition import Composition
from unified_tree.components.composition_file import read_file
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel
from unified_tree.components.families.block_drafts import WINDOW_NOTE, block_draft, drafts_of
from unified_tree.components.families.deepseek_v4 import read_deepseek_v4
from unified_tree.components.families.nemotron_h import read_nemotron_h
from unified_tree.components.families.stack import read_stack
from unified_tree.components.families.table import RULES
from unified_tree.components.families.unknown import read_unknown, way_out
from unified_tree.components.serving import Serving, dtype_name, index_dtype_name, kv_dtype_name
from unified_tree.inputs.given_files import shown
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

ConfigSource: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""A `config.json` as a dictionary, as a path to the file, or as a path to the directory that holds it."""

READERS: Mapping[str, Callable[[ConfigFields, Serving], Composition]] = {
    **{name: partial(read_stack, rules=rules) for name, rules in RULES.items()},
    **dict.fromkeys(("deepseek_v4", "deepseek_v41", "deepseek_v41_text"), read_deepseek_v4),
    "nemotron_h": read_nemotron_h,
}
"""The reader of each known `model_type`."""

ALIASES: Mapping[str, str] = {
    "gemma4_unified_assistant": "gemma4_unified_text",
    "glm_dsa": "glm_moe_dsa",
    "kimi_k2": "deepseek_v3",
    "mimo_v2": "mimo_v2_flash",
    "mimo_v2_5": "mimo_v2_flash",
    "minimax_text_01": "minimax",
    "minimax_m3_text": "minimax_m3_vl_text",
    "minimax_m3": "minimax_m3_vl_text",
    "nemotron_h_v3": "nemotron_h",
    "step3p7_text": "step3p5",
}
"""Published names of types that are known by another one."""

NOT_READ: Mapping[str, str] = {
    "diffusion_gemma_text": "a diffusion model writes its tokens out of order, so that it has no causal prefix to cache",
    "modernbert-decoder": "its window is half of local_attention, and which half is not known of the engines",
    "rwkv": "its state is that of RWKV-4, which no engine keeps for a prefix",
    "unlimited_ocr_text": "its windows see all of the prompt besides, and what a prefix needs depends on where that ended",
}
"""Types that are refused, and why."""

TEXT_FIELDS = ("text_config", "language_config", "llm_config", "thinker_config")
"""Where wrappers of vision and audio models hold the language model."""


def from_hf_config(
    config: ConfigSource,
    *,
    name: str | None = None,
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
    """The composition of the model that `config` describes.

    A field that could change what is cached, by its name, and that no reader asked for is an error. A type that is not known is
    read by its standard fields, which the composition's `notes` tell.

    Args:
        config: a dictionary as from `to_dict()`, or a path to a `config.json` or to its directory.
        name: the model's name; None for its `model_type`.
        page_size: tokens a page; None for 64, or for 128 where a model's compressed KV asks for a multiple of it.
        tensor_parallel: ranks; all bytes are those of one rank. KV heads divide over ranks, or are replicated where ranks
            are a multiple of them; latents and index keys are replicated; heads of recurrent layers divide.
        rank: which of those this is, counted from 0. Needed to store or link state that the ranks divide; None otherwise.
        kv_dtype: of keys, values and latents, a name such as `bfloat16` or `float8_e4m3fn`; `fp8_ds_mla` for the
            latents of sparse MLA as engines keep them in fp8. None for what the file says, which is fp8 for a quantized cache
            (`kv_cache_scheme`, `kv_cache_quant_algo`) and the model's dtype otherwise.
        conv_dtype: of the convolutions' states; None for the model's dtype.
        state_dtype: of recurrent and overlap states; None for what the file or else the model's own code says, which is fp32.
        index_dtype: of index keys, `fp8_scaled` for fp8 with a scale; None for that beside latents, as engines keep them, and
            for the dtype of keys and values elsewhere.
        draft: MTP or EAGLE layers shaped like the model's own full layers, as a number; or the `config.json` of a draft
            model of attention, whose windows have pages of their own; None for no draft.
        ignore: fields to read the file without, by the name that an error gave them.

    Raises ConfigurationError, in one line that names the field, for a configuration that cannot be read with certainty.
    """
    values, origin = _load(config)
    for parameter, value in (("page_size", page_size), ("tensor_parallel", tensor_parallel)):
        if value is not None and (type(value) is not int or value <= 0):
            raise ConfigurationError(f"{parameter} must be a positive integer, not {repr_of(value)}")
    if rank is not None and (type(rank) is not int or not 0 <= rank < tensor_parallel):
        raise ConfigurationError(f"rank must be one of 0 … {tensor_parallel - 1}, not {repr_of(rank)}")
    fields = _fields(_without(values, ignore), origin)
    found = serving_dtypes(values, fields, kv_dtype)
    serving = Serving(
        name=name or fields.model_type,
        page_size=page_size,
        ranks=tensor_parallel,
        rank=0 if tensor_parallel == 1 else rank,
        kv_dtype=kv_dtype_name(found.kv),
        conv_dtype=dtype_name(found.model if conv_dtype is None else conv_dtype, "conv_dtype"),
        state_dtype=None if state_dtype is None else dtype_name(state_dtype, "state_dtype"),
        index_dtype=None if index_dtype is None else index_dtype_name(index_dtype),
        draft=_draft(draft, tensor_parallel, rank, kv_dtype),
    )
    read = READERS.get(fields.model_type, read_unknown)
    try:
        composition = read(fields, serving)
        unread = sorted(set(fields.unread()))
    except ConfigurationError as error:
        if fields.model_type in READERS:
            raise
        raise ConfigurationError(f"{error}; {way_out(fields)}") from error
    if unread:
        raise ConfigurationError(
            f"{fields.model_type}: {_listed(unread)} may change what is cached and {'is' if len(unread) == 1 else 'are'} not "
            f"understood here. If not, ignore {'it' if len(unread) == 1 else 'them'}: ignore={unread!r}, or "
            f"{' '.join(f'--ignore {name}' for name in unread)}; if so, {way_out(fields)}"
        )
    windows = not isinstance(serving.draft, int) and any(each.window_tokens is not None for each in serving.draft)
    notes = (*found.notes, *fields.notes, *((WINDOW_NOTE,) if windows else ()))
    return replace(composition, config_digest=_digest(values), notes=notes)


def _listed(names: Sequence[str]) -> str:
    fields = "config field " if len(names) == 1 else "config fields "
    return fields + ", ".join(repr(name) for name in names)


def _without(values: Mapping[str, Any], ignore: Sequence[str]) -> Mapping[str, Any]:
    """The config without the fields to ignore, nested ones by dotted names. Raises ConfigurationError for a missing one."""
    if isinstance(ignore, str):
        raise ConfigurationError(f"ignore must be a list of fields, not {repr_of(ignore)}")
    for name in ignore:
        kept, found = _dropped(values, str(name))
        if not found:
            raise ConfigurationError(f"ignore: the file has no field {name!r}")
        values = kept
    return values


def _dropped(values: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], bool]:
    if name in values:
        return {key: value for key, value in values.items() if key != name}, True
    head, _, rest = name.partition(".")
    inner = [head] if rest else [key for key in TEXT_FIELDS if key in values]
    for key in inner:
        if isinstance(values.get(key), Mapping):
            kept, found = _dropped(values[key], rest or name)
            if found:
                return {**values, key: kept}, True
    return values, False


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
    return read_file(config), str(config)


def _fields(values: Mapping[str, Any], origin: str) -> ConfigFields:
    """The fields of the language model, a multimodal wrapper taken off."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigurationError(f"{origin}: config field 'model_type' must be a string, not {shown(model_type)}")
    model_type = ALIASES.get(model_type, model_type)
    holder = next((name for name in TEXT_FIELDS if values.get(name) is not None), None)
    if model_type in READERS and holder is None:
        return ConfigFields(values, model_type)
    if model_type in NOT_READ:
        raise ConfigurationError(
            f"{origin}: config field 'model_type' is {model_type!r}, which is not read: {NOT_READ[model_type]}"
        )
    if holder is None and model_type in WRAPPED:
        if "hidden_size" not in values:
            raise ConfigurationError(f"{model_type}: config field 'text_config' must be an object, not null")
        return _fields({**values, "model_type": WRAPPED[model_type]}, origin)  # published flat, its language model alone
    if holder is None:
        return ConfigFields(values, model_type)
    text = values[holder]
    if not isinstance(text, Mapping):
        raise ConfigurationError(f"{model_type}: config field {holder!r} must be an object, not {shown(text)}")
    given = {str(key): value for key, value in text.items() if value is not None}
    text_type = given.get("model_type") or WRAPPED.get(model_type)
    if text_type is not None and not isinstance(text_type, str):
        raise ConfigurationError(f"{model_type}: config field '{holder}.model_type' must be a string, not {shown(text_type)}")
    if text_type == model_type or (text_type in WRAPPED and not any(name in given for name in TEXT_FIELDS)):
        text_type = WRAPPED.get(model_type, text_type)
    if not isinstance(text_type, str):
        raise ConfigurationError(
            f"{model_type}: config field {holder!r} does not say its model_type, which must be added to it"
        )
    text_type = ALIASES.get(text_type, text_type)
    inner = _fields({**CLASS_DEFAULTS.get(text_type, {}), **given, "model_type": text_type}, origin)
    outer = ConfigFields(values, model_type)
    outer.understood(*TEXT_FIELDS, *(name for name in values if name in given or name.endswith("_config")))
    inner.enclose(outer)
    return inner


def _draft(
    draft: int | ConfigSource | None, tensor_parallel: int, rank: int | None, kv_dtype: str | None
) -> tuple[DraftModel, ...] | int:
    if draft is None:
        return 0
    if isinstance(draft, int):
        if isinstance(draft, bool) or draft < 0:
            raise ConfigurationError(f"draft must be a number of layers or a draft model's config, not {repr_of(draft)}")
        return draft
    values = block_draft(_load(draft)[0])
    model = from_hf_config(values, page_size=1, tensor_parallel=tensor_parallel, rank=rank, kv_dtype=kv_dtype)
    return drafts_of(model)


MODEL_DTYPES = ("bfloat16", "float16")
FP8 = "float8_e4m3fn"
BY_ALGORITHM = {"FP8": FP8, "FP8_E4M3": FP8}
"""Names of `kv_cache_quant_algo` (ModelOpt)."""

NOT_SAID = ("NONE", "AUTO", "")


@dataclass(frozen=True, slots=True)
class FileDtypes:
    """The dtypes that a file states.

    Attributes:
        model: of the model; bf16 where the file does not say or says fp32, which engines cast down.
        kv: of keys and values.
        notes: what a reader should know about it.
    """

    model: str
    kv: str
    notes: tuple[str, ...] = ()


def serving_dtypes(values: Mapping[str, Any], fields: ConfigFields, kv_dtype: str | None) -> FileDtypes:
    """The dtypes of a file; those of the language model where a wrapper holds it. A `kv_dtype` that the caller gave goes first.

    Raises ConfigurationError for a quantized cache of a kind that is not known.
    """
    named = fields.get("dtype") or fields.get("torch_dtype") or values.get("dtype") or values.get("torch_dtype")
    model = str(named).removeprefix("torch.")
    model = model if model in MODEL_DTYPES else MODEL_DTYPES[0]
    if kv_dtype is not None:
        return FileDtypes(model, kv_dtype)
    given = fields.get("quantization_config") or values.get("quantization_config")
    if not isinstance(given, Mapping):
        return FileDtypes(model, model)
    quantized = ConfigFields(given, fields.model_type, inside="quantization_config.")
    inner = quantized.get("quantization")
    for holder in (quantized, quantized.nested("quantization") if isinstance(inner, Mapping) else None):
        if holder is None:
            continue
        found = _of_scheme(holder) or _of_algorithm(holder)
        if found is not None:
            note = (
                "keys and values are fp8, as quantization_config says; SGLang and vLLM follow it unless told a kv-cache dtype"
            )
            return FileDtypes(model, found, (note,))
    return FileDtypes(model, model)


def _of_scheme(quantized: ConfigFields) -> str | None:
    """`kv_cache_scheme` of compressed-tensors: floats of 8 bits; one scale a tensor, which belongs to the weights."""
    scheme = quantized.nested("kv_cache_scheme")
    if scheme is None:
        return None
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if bits != 8 or kind not in ("float", None):
        raise quantized.error(
            "kv_cache_scheme",
            f"is of {shown(bits)} bits and type {shown(kind)}, which is not known; give kv_dtype and ignore it",
        )
    if scheme.get("strategy") not in (None, "tensor", "attn_head", "channel"):
        raise quantized.error(
            "kv_cache_scheme",
            f"has scales by {shown(scheme.get('strategy'))}, whose bytes are not known; give formats of your own",
        )
    return FP8


def _of_algorithm(quantized: ConfigFields) -> str | None:
    """`kv_cache_quant_algo` of ModelOpt."""
    name = quantized.get("kv_cache_quant_algo")
    if name is None or (isinstance(name, str) and name.upper() in NOT_SAID):
        return None
    if not isinstance(name, str) or name.upper() not in BY_ALGORITHM:
        raise quantized.error("kv_cache_quant_algo", f"is {shown(name)}, which is not known; give kv_dtype and ignore it")
    return BY_ALGORITHM[name.upper()]
