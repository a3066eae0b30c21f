"""Full and sliding-window layers mixed: GPT-OSS, Gemma 3, MiMo-V2-Flash."""

from __future__ import annotations

from collections.abc import Sequence

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import (
    FULL,
    SLIDING,
    deepseek_mlp,
    every_nth_full,
    grouped_query,
    grouped_query_layer,
    past_window,
)
from unified_tree.components.layers import compose
from unified_tree.components.serving import Serving
from unified_tree.components.weights import GroupedQueryAttention, gated_mlp, routed_mlp


def read_gpt_oss(fields: ConfigFields, serving: Serving) -> Composition:
    """GPT-OSS: windows and full attention in turn, routed experts of width `intermediate_size`."""
    layers = fields.count("num_hidden_layers")
    kinds = fields.kinds("layer_types", layers, (FULL, SLIDING), every_nth_full(layers, 2, SLIDING))
    routed = routed_mlp(
        hidden=fields.count("hidden_size"),
        inner=fields.count("intermediate_size"),
        experts=fields.count("num_local_experts", "num_experts"),
        active=fields.count("num_experts_per_tok", "experts_per_token"),
    )
    return _same_shape(fields, serving, kinds, routed)


def read_gemma3(fields: ConfigFields, serving: Serving) -> Composition:
    """Gemma 3 text: five windows to one full layer unless `sliding_window_pattern` says otherwise."""
    if fields.flag("use_bidirectional_attention"):
        raise fields.error("use_bidirectional_attention", "is true: such a model has no causal prefix to cache")
    layers = fields.count("num_hidden_layers")
    pattern = every_nth_full(layers, fields.count("sliding_window_pattern", default=6), SLIDING)
    kinds = fields.kinds("layer_types", layers, (FULL, SLIDING), pattern)
    return _same_shape(fields, serving, kinds, gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size")))


def read_mimo_v2_flash(fields: ConfigFields, serving: Serving) -> Composition:
    """MiMo-V2-Flash: keys wider than values, and twice the KV heads in window layers.

    The published file counts past tokens only (`sliding_window_size`), where `sliding_window` in `transformers` counts
    the query too.
    """
    layers = fields.count("num_hidden_layers")
    kinds = _mimo_kinds(fields, layers)
    published_window = fields.optional_count("sliding_window_size")
    window_tokens = past_window(fields) if published_window is None else published_window
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads")
    key_dim, value_dim = fields.count("head_dim"), fields.count("v_head_dim")
    whole = GroupedQueryAttention(hidden=hidden, heads=heads, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim)
    window = GroupedQueryAttention(
        hidden=hidden,
        heads=fields.count("swa_num_attention_heads", default=heads),
        kv_heads=fields.count("swa_num_key_value_heads", default=2 * kv_heads),
        key_dim=fields.count("swa_head_dim", default=key_dim),
        value_dim=fields.count("swa_v_head_dim", default=value_dim),
    )
    return compose(
        fields.model_type,
        [
            [
                grouped_query_layer(
                    fields, serving, window, weights, window_tokens=window_tokens, kv_field="swa_num_key_value_heads"
                )
                if kind == SLIDING
                else grouped_query_layer(fields, serving, whole, weights)
            ]
            for kind, weights in zip(kinds, deepseek_mlp(_mimo_mlp_kinds(fields, layers), layers), strict=True)
        ],
        serving,
    )


def _mimo_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`layer_types`, or the published `hybrid_layer_pattern` (1 for a window), or the first and every sixth layer full."""
    pattern = fields.list_of(int, "hybrid_layer_pattern")
    if pattern is None:
        default = [FULL, *every_nth_full(layers, 6, SLIDING)[1:]]
    elif len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise fields.error("hybrid_layer_pattern", f"must be {layers} zeros and ones, not {pattern!r}")
    else:
        default = [SLIDING if entry else FULL for entry in pattern]
    return fields.kinds("layer_types", layers, (FULL, SLIDING), default)


def _mimo_mlp_kinds(fields: ConfigFields, layers: int) -> ConfigFields:
    """The fields with `mlp_layer_types`: the published `moe_layer_freq` (1 for experts), or the first layer dense."""
    if fields.get("mlp_layer_types") is not None:
        return fields
    pattern = fields.list_of(int, "moe_layer_freq") or [0] + [1] * (layers - 1)
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise fields.error("moe_layer_freq", f"must be {layers} zeros and ones, not {pattern!r}")
    return fields.overlaid({"mlp_layer_types": ["sparse" if entry else "dense" for entry in pattern]})


def _same_shape(fields: ConfigFields, serving: Serving, kinds: Sequence[str], mlp_weights: int) -> Composition:
    shape = grouped_query(fields)
    window_tokens = past_window(fields) if SLIDING in kinds else None
    return compose(
        fields.model_type,
        [
            [grouped_query_layer(fields, serving, shape, mlp_weights, window_tokens=window_tokens if kind == SLIDING else None)]
            for kind in kinds
        ],
        serving,
    )
