"""Attention geometry and MLPs as most families spell them."""

from __future__ import annotations

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.schedules import periodic
from unified_tree.components.layers import AttentionLayer
from unified_tree.components.serving import Serving
from unified_tree.components.weights import GroupedQueryAttention, LatentAttention, gated_mlp, routed_mlp
from unified_tree.declare.page_format import Part


def grouped_query(fields: ConfigFields, *, gated: bool = False, wide: bool = False) -> GroupedQueryAttention:
    """Equal key and value dims, unless `wide` and the file gives `v_head_dim`; `head_dim` is `hidden_size /
    num_attention_heads` where it is not given."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.optional_count("head_dim", "attention_head_dim")
    if head_dim is None:
        head_dim = fields.quotient("num_attention_heads", hidden, heads)
    kv_heads = fields.count("num_key_value_heads", default=heads)
    fields.quotient("num_key_value_heads", heads, kv_heads)
    value_dim = fields.count("v_head_dim", default=head_dim) if wide else head_dim
    return GroupedQueryAttention(
        hidden=hidden, heads=heads, kv_heads=kv_heads, key_dim=head_dim, value_dim=value_dim, gated=gated
    )


def grouped_query_layer(
    fields: ConfigFields,
    serving: Serving,
    shape: GroupedQueryAttention,
    mlp_weights: int,
) -> AttentionLayer:
    """Keys and values of `shape` on one rank: KV heads divide over the ranks, or are replicated where there are fewer."""
    serving.divided(fields, "num_attention_heads", shape.heads)
    kv_heads = serving.divided_or_replicated(fields, "num_key_value_heads", shape.kv_heads)
    return AttentionLayer(
        parts=(
            Part("k", serving.kv_dtype, (kv_heads, shape.key_dim)),
            Part("v", serving.kv_dtype, (kv_heads, shape.value_dim)),
        ),
        shards=shape.kv_heads // kv_heads,
        weights=shape.weights + mlp_weights,
        flops_per_entry=shape.flops_per_entry,
    )


def latent(fields: ConfigFields) -> LatentAttention:
    """MLA as DeepSeek spells it; without `q_lora_rank` the query projection is direct. The rope key may be of no dims."""
    fields.understood("num_key_value_heads", "head_dim")  # of the heads that the latent is expanded to
    return LatentAttention(
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        query_rank=fields.optional_count("q_lora_rank"),
        latent_dim=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim", minimum=0),
        value_dim=fields.count("v_head_dim"),
    )


def latent_layer(
    fields: ConfigFields, serving: Serving, shape: LatentAttention, mlp_weights: int, *, max_entries: int | None = None
) -> AttentionLayer:
    """One latent and one rope key a token, the same on every rank."""
    serving.divided(fields, "num_attention_heads", shape.heads)
    return AttentionLayer(
        parts=serving.latent_parts(fields, shape.latent_dim, shape.rope_dim),
        weights=shape.weights + mlp_weights,
        flops_per_entry=shape.flops_per_entry,
        max_entries=max_entries,
    )


def past_window(fields: ConfigFields) -> int:
    """Past tokens of a window whose field counts the query itself."""
    return fields.count("sliding_window", minimum=2) - 1


def any_mlp(fields: ConfigFields, layers: int) -> list[int] | None:
    """Active MLP weights by layer, gated and with experts where the file names them; None where it does not say."""
    hidden, inner = fields.count("hidden_size"), fields.get("intermediate_size")
    experts = fields.optional_count("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if any(isinstance(fields.get(name), list) for name in ("num_experts_per_tok", "moe_topk", *SHARED_EXPERTS)):
        return None  # experts that differ by layer
    active = fields.optional_count("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k")
    if isinstance(inner, list) and len(inner) == layers and all(type(width) is int for width in inner):
        return [gated_mlp(hidden, width) for width in inner]
    if experts is None or experts == 1:
        return None if inner is None else [gated_mlp(hidden, fields.count("intermediate_size"))] * layers
    if any(isinstance(fields.get(name), list) for name in ("moe_intermediate_size", "intermediate_size", *SHARED_WIDTHS)):
        return None
    width = fields.optional_count("moe_intermediate_size", "expert_ffn_hidden_size") or fields.optional_count(
        "intermediate_size"
    )
    if width is None or active is None:
        return None
    shared = max(fields.count(name, default=0, minimum=0) for name in SHARED_WIDTHS)
    if not shared:
        shared = width * fields.count(*SHARED_EXPERTS, default=0, minimum=0)
    routed = routed_mlp(hidden=hidden, inner=width, experts=experts, active=active, shared_inner=shared)
    dense = fields.optional_count("dense_intermediate_size", "intermediate_size_mlp") or fields.optional_count(
        "intermediate_size"
    )
    dense_weights = gated_mlp(hidden, dense or width)
    return [routed if sparse else dense_weights for sparse in _sparse(fields, layers)]


SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "shared_experts_intermediate_size",
    "share_expert_dim",
)
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


def _sparse(fields: ConfigFields, layers: int) -> list[bool]:
    """Whether each layer has experts."""
    if fields.get("mlp_layer_types") is not None:
        return [kind == "sparse" for kind in fields.kinds("mlp_layer_types", layers, ("dense", "sparse"), ())]
    pattern = fields.get("moe_layer_freq")
    if isinstance(pattern, list) and len(pattern) == layers:
        return [bool(entry) for entry in pattern]
    first = fields.count("first_k_dense_replace", "num_dense_layers", default=0, minimum=0)
    step = fields.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense = fields.layer_indices("mlp_only_layers", layers)
    return [layer >= first and layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def dense_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """A gated MLP after every layer."""
    return [gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size"))] * layers


def expert_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """Experts of width `intermediate_size` after every layer."""
    routed = routed_mlp(
        hidden=fields.count("hidden_size"),
        inner=fields.count("intermediate_size"),
        experts=fields.count("num_local_experts", "num_experts"),
        active=fields.count("num_experts_per_tok", "experts_per_token"),
    )
    return [routed] * layers


def jamba_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """Experts every `expert_layer_period` layers, dense MLPs of the same width between them."""
    experts = periodic(fields, "expert_layer", layers)
    hidden, inner = fields.count("hidden_size"), fields.count("intermediate_size")
    dense, routed = gated_mlp(hidden, inner), gated_mlp(hidden, inner)
    count = fields.count("num_experts", "num_local_experts")
    if count > 1:
        routed = routed_mlp(hidden=hidden, inner=inner, experts=count, active=fields.count("num_experts_per_tok"))
    return [routed if layer in experts else dense for layer in range(layers)]


def unknown_mlp(fields: ConfigFields, layers: int) -> None:  # noqa: ARG001
    """MLPs whose weights are not counted."""
    return


def no_mlp(fields: ConfigFields, layers: int) -> list[int]:  # noqa: ARG001
    """No MLP."""
    return [0] * layers


def deepseek_mlp(fields: ConfigFields, layers: int) -> list[int]:
    """Active MLP weights by layer: dense ones first (`first_k_dense_replace`), then experts; or by `mlp_layer_types`."""
    pattern = fields.get("moe_layer_freq")
    if fields.get("mlp_layer_types") is not None:
        kinds = fields.kinds("mlp_layer_types", layers, ("dense", "sparse"), ())
    elif isinstance(pattern, list):
        entries = fields.list_of(int, "moe_layer_freq") or []
        if len(entries) != layers or not set(entries) <= {0, 1}:
            raise fields.error("moe_layer_freq", f"must be {layers} zeros and ones, not {pattern!r}")
        kinds = ["sparse" if entry else "dense" for entry in entries]
    else:
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
