"""The dtypes that a model's file asks its cache to be in, as serving engines follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unified_tree.components.config_fields import ConfigFields
from unified_tree.inputs.given_files import shown

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
