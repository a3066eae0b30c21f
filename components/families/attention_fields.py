"""Attention geometry and layer schedules as most families spell them."""

from __future__ import annotations

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.layers import AttentionLayer
from unified_tree.components.serving import Serving
from unified_tree.components.weights import GroupedQueryAttention, LatentAttention, gated_mlp, routed_mlp
from unified_tree.declare.page_format import Part

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


def grouped_query(fields: ConfigFields, *, gated: bool = False) -> GroupedQueryAttention:
    """Equal key and value dims; `head_dim` is `hidden_size / num_attention_heads` where it is not given."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.optional_count("head_dim", "attention_head_dim")
    if head_dim is None:
        head_dim = fields.quotient("num_attention_heads", hidden, heads)
    kv_heads = fields.count("num_key_value_heads", default=heads)
    fields.quotient("num_key_value_heads", heads, kv_heads)
    return GroupedQueryAttention(
        hidden=hidden, heads=heads, kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim, gated=gated
    )


def grouped_query_layer(
    fields: ConfigFields,
    serving: Serving,
    shape: GroupedQueryAttention,
    mlp_weights: int,
    *,
    window_tokens: int | None = None,
    kv_field: str = "num_key_value_heads",
) -> AttentionLayer:
    """Keys and values of `shape` on one rank: KV heads divide over the ranks, or are replicated where there are fewer."""
    serving.divided(fields, "num_attention_heads", shape.heads)
    kv_heads = serving.divided_or_replicated(fields, kv_field, shape.kv_heads)
    return AttentionLayer(
        parts=(
            Part("k", serving.kv_dtype, (kv_heads, shape.key_dim)),
            Part("v", serving.kv_dtype, (kv_heads, shape.value_dim)),
        ),
        shards=shape.kv_heads // kv_heads,
        weights=shape.weights + mlp_weights,
        flops_per_entry=shape.flops_per_entry,
        window_tokens=window_tokens,
    )


def latent(fields: ConfigFields) -> LatentAttention:
    """MLA as DeepSeek spells it; without `q_lora_rank` the query projection is direct."""
    return LatentAttention(
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        query_rank=fields.optional_count("q_lora_rank"),
        latent_dim=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )


def latent_layer(
    fields: ConfigFields, serving: Serving, shape: LatentAttention, mlp_weights: int, *, max_entries: int | None = None
) -> AttentionLayer:
    """One latent and one rope key a token, the same on every rank."""
    serving.divided(fields, "num_attention_heads", shape.heads)
    return AttentionLayer(
        parts=(Part("latent", serving.kv_dtype, (shape.latent_dim + shape.rope_dim,)),),
        weights=shape.weights + mlp_weights,
        flops_per_entry=shape.flops_per_entry,
        max_entries=max_entries,
    )


def past_window(fields: ConfigFields, name: str = "sliding_window") -> int:
    """Past tokens of a window whose field counts the query itself."""
    return fields.count(name, minimum=2) - 1


def every_nth_full(layers: int, period: int, other: str) -> list[str]:
    """The common schedule: every `period`-th layer is full attention, the rest are `other`."""
    return [other if (layer + 1) % period else FULL for layer in range(layers)]


def deepseek_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """Active MLP weights by layer: dense ones first (`first_k_dense_replace`), then experts; or by `mlp_layer_types`."""
    kinds = fields.kinds("mlp_layer_types", layers, ("dense", "sparse"), ())
    if not kinds:
        dense_layers = fields.count("first_k_dense_replace", minimum=0)
        kinds = ["dense" if layer < dense_layers else "sparse" for layer in range(layers)]
    hidden = fields.count("hidden_size")
    weights = {"dense": 0, "sparse": 0}
    if "dense" in kinds:
        weights["dense"] = gated_mlp(hidden, fields.count("intermediate_size"))
    if "sparse" in kinds:
        inner = fields.count("moe_intermediate_size")
        weights["sparse"] = routed_mlp(
            hidden=hidden,
            inner=inner,
            experts=fields.count("n_routed_experts", "num_experts", "num_local_experts"),
            active=fields.count("num_experts_per_tok", "num_experts_per_token"),
            shared_inner=inner * fields.count("n_shared_experts", "num_shared_experts", default=0, minimum=0),
        )
    return [weights[kind] for kind in kinds]


def qwen_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """Active MLP weights by layer of the Qwen MoE models: `mlp_only_layers` and every other `decoder_sparse_step` dense."""
    hidden = fields.count("hidden_size")
    step = fields.count("decoder_sparse_step", default=1)
    dense = fields.layer_indices("mlp_only_layers", layers) | {layer for layer in range(layers) if (layer + 1) % step}
    dense_weights = gated_mlp(hidden, fields.count("intermediate_size")) if dense else 0
    routed = routed_mlp(
        hidden=hidden,
        inner=fields.count("moe_intermediate_size"),
        experts=fields.count("num_experts", "num_local_experts"),
        active=fields.count("num_experts_per_tok"),
    )
    shared_inner = fields.optional_count("shared_expert_intermediate_size")
    if shared_inner is not None:
        routed += gated_mlp(hidden, shared_inner) + hidden
    return [dense_weights if layer in dense else routed for layer in range(layers)]
