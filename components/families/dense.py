"""Plain decoders: Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Sequence

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import (
    FULL,
    SLIDING,
    grouped_query,
    grouped_query_layer,
    past_window,
    qwen_mlp,
)
from unified_tree.components.layers import compose
from unified_tree.components.serving import Serving
from unified_tree.components.weights import gated_mlp, routed_mlp


def read_llama(fields: ConfigFields, serving: Serving) -> Composition:
    """Full attention in every layer."""
    layers = fields.count("num_hidden_layers")
    return _composition(fields, serving, [FULL] * layers, _dense_mlp(fields, layers))


def read_mistral(fields: ConfigFields, serving: Serving) -> Composition:
    """Full attention, or, in files that still name a `sliding_window`, a window in every layer."""
    layers = fields.count("num_hidden_layers")
    kind = FULL if fields.get("sliding_window") is None else SLIDING
    return _composition(fields, serving, [kind] * layers, _dense_mlp(fields, layers))


def read_mixtral(fields: ConfigFields, serving: Serving) -> Composition:
    """Mistral with routed experts of width `intermediate_size`."""
    layers = fields.count("num_hidden_layers")
    kind = FULL if fields.get("sliding_window") is None else SLIDING
    routed = routed_mlp(
        hidden=fields.count("hidden_size"),
        inner=fields.count("intermediate_size"),
        experts=fields.count("num_local_experts", "num_experts"),
        active=fields.count("num_experts_per_tok"),
    )
    return _composition(fields, serving, [kind] * layers, [routed] * layers)


def read_qwen(fields: ConfigFields, serving: Serving) -> Composition:
    """Qwen2 and Qwen3: full attention; with `use_sliding_window`, windows from layer `max_window_layers` on."""
    layers = fields.count("num_hidden_layers")
    first_window = layers
    if fields.flag("use_sliding_window") and fields.get("sliding_window") is not None:
        first_window = fields.count("max_window_layers", minimum=0)
    default = [FULL if layer < first_window else SLIDING for layer in range(layers)]
    kinds = fields.kinds("layer_types", layers, (FULL, SLIDING), default)
    return _composition(fields, serving, kinds, _dense_mlp(fields, layers))


def read_qwen3_moe(fields: ConfigFields, serving: Serving) -> Composition:
    """Qwen3-MoE: full attention; with `use_sliding_window` every layer has the window."""
    layers = fields.count("num_hidden_layers")
    windowed = fields.flag("use_sliding_window") and fields.get("sliding_window") is not None
    return _composition(fields, serving, [SLIDING if windowed else FULL] * layers, qwen_mlp(fields, layers))


def _dense_mlp(fields: ConfigFields, layers: int) -> list[int]:
    return [gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size"))] * layers


def _composition(fields: ConfigFields, serving: Serving, kinds: Sequence[str], mlp_weights: Sequence[int]) -> Composition:
    shape = grouped_query(fields)
    window_tokens = past_window(fields) if SLIDING in kinds else None
    layers = [
        [grouped_query_layer(fields, serving, shape, weights, window_tokens=window_tokens if kind == SLIDING else None)]
        for kind, weights in zip(kinds, mlp_weights, strict=True)
    ]
    return compose(fields.model_type, layers, serving)
