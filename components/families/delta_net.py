"""Full attention and delta-rule linear attention: Qwen3-Next, Qwen3.5, Kimi-Linear."""

from __future__ import annotations

from collections.abc import Sequence

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import (
    FULL,
    LINEAR,
    deepseek_mlp,
    every_nth_full,
    grouped_query,
    grouped_query_layer,
    latent,
    latent_layer,
    qwen_mlp,
)
from unified_tree.components.layers import StateLayer, compose
from unified_tree.components.mamba import StateShape, delta_net_state
from unified_tree.components.serving import Serving
from unified_tree.components.weights import gated_mlp

CHUNK_TOKENS = 64
"""The chunk of the delta-rule kernels (`chunk_size=64` in `transformers` and in `fla`)."""

RECURRENT_DTYPE = "float32"
"""The recurrent state is fp32: Kimi-Linear stores it so, and the chunked kernels return it so."""


def read_qwen3_next(fields: ConfigFields, serving: Serving) -> Composition:
    """Qwen3-Next and Qwen3.5-MoE: three gated delta nets to one gated full layer, experts with a shared one."""
    return _qwen(fields, serving, qwen_mlp(fields, fields.count("num_hidden_layers")))


def read_qwen3_5(fields: ConfigFields, serving: Serving) -> Composition:
    """Qwen3.5 text: as Qwen3-Next, with a dense MLP."""
    layers = fields.count("num_hidden_layers")
    return _qwen(fields, serving, [gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size"))] * layers)


def read_kimi_linear(fields: ConfigFields, serving: Serving) -> Composition:
    """Kimi-Linear: Kimi delta attention (KDA) and MLA, by `layer_types` or by the published `linear_attn_config`."""
    fields = _with_linear_attn_config(fields)
    layers = fields.count("num_hidden_layers")
    shape = latent(fields)
    heads, head_dim = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    kernel, hidden = fields.count("linear_conv_kernel_dim", minimum=2), fields.count("hidden_size")
    rank_heads = serving.divided(fields, "linear_num_heads", heads)
    state = delta_net_state(
        key_heads=rank_heads, key_dim=head_dim, value_heads=rank_heads, value_dim=head_dim, conv_kernel=kernel
    )
    width = heads * head_dim
    gates = 2 * (hidden * head_dim + head_dim * width) + hidden * heads
    mixer = 4 * hidden * width + 3 * width * kernel + gates
    return compose(
        fields.model_type,
        [
            [latent_layer(fields, serving, shape, mlp) if kind == FULL else _state_layer(serving, state, mixer + mlp)]
            for kind, mlp in zip(_kimi_kinds(fields, layers), deepseek_mlp(fields, layers), strict=True)
        ],
        serving,
    )


def _qwen(fields: ConfigFields, serving: Serving, mlp_weights: Sequence[int]) -> Composition:
    layers = fields.count("num_hidden_layers")
    schedule = every_nth_full(layers, fields.count("full_attention_interval", default=4), LINEAR)
    kinds = fields.kinds("layer_types", layers, (FULL, LINEAR), schedule)
    shape = grouped_query(fields, gated=True)
    hidden, kernel = fields.count("hidden_size"), fields.count("linear_conv_kernel_dim", minimum=2)
    key_heads, value_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    key_dim, value_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    fields.quotient("linear_num_key_heads", value_heads, key_heads)
    state = delta_net_state(
        key_heads=serving.divided(fields, "linear_num_key_heads", key_heads),
        key_dim=key_dim,
        value_heads=serving.divided(fields, "linear_num_value_heads", value_heads),
        value_dim=value_dim,
        conv_kernel=kernel,
    )
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixer = hidden * (2 * keys + 3 * values + 2 * value_heads) + kernel * (2 * keys + values)
    return compose(
        fields.model_type,
        [
            [grouped_query_layer(fields, serving, shape, mlp) if kind == FULL else _state_layer(serving, state, mixer + mlp)]
            for kind, mlp in zip(kinds, mlp_weights, strict=True)
        ],
        serving,
    )


def _state_layer(serving: Serving, state: StateShape, weights: int) -> StateLayer:
    recurrent = RECURRENT_DTYPE if serving.state_dtype is None else serving.state_dtype
    parts = state.parts(conv_dtype=serving.conv_dtype, recurrent_dtype=recurrent)
    return StateLayer(parts=parts, shards=serving.ranks, weights=weights, chunk_tokens=CHUNK_TOKENS)


def _with_linear_attn_config(fields: ConfigFields) -> ConfigFields:
    """The fields with those of the published file's `linear_attn_config` under the names `transformers` gives them."""
    nested = fields.get("linear_attn_config")
    if nested is None:
        return fields
    if not isinstance(nested, dict):
        raise fields.error("linear_attn_config", f"must be an object, not {nested!r}")
    names = {
        "linear_head_dim": "head_dim",
        "linear_num_heads": "num_heads",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
        "full_attn_layers": "full_attn_layers",
        "kda_layers": "kda_layers",
    }
    return fields.overlaid({name: nested[key] for name, key in names.items() if key in nested})


def _kimi_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`layer_types`, or the published lists, which count layers from 1 and must name each exactly once."""
    if fields.get("layer_types") is not None:
        return fields.kinds("layer_types", layers, (FULL, LINEAR), ())
    whole = fields.layer_indices("full_attn_layers", layers, first=1)
    linear = fields.layer_indices("kda_layers", layers, first=1)
    if not whole and not linear:
        raise fields.error("layer_types", "is missing, and linear_attn_config names no layers either")
    if whole & linear or len(whole) + len(linear) != layers:
        raise fields.error("linear_attn_config", f"must name each of {layers} layers once, as full attention or as KDA")
    return [FULL if layer in whole else LINEAR for layer in range(layers)]
