"""Full attention and Mamba: Bamba, Falcon-H1 (both Mamba2) and Jamba (Mamba1); Mamba and Falcon-Mamba, which have that alone.

Recurrent states are fp32 unless the config or the caller says otherwise: the chunked scans return them so.
"""

from __future__ import annotations

from collections.abc import Sequence

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import FULL, LINEAR, grouped_query, grouped_query_layer
from unified_tree.components.layers import Layer, StateLayer, compose
from unified_tree.components.mamba import StateShape, mamba1_state, mamba2_state
from unified_tree.components.serving import Serving, dtype_name
from unified_tree.components.weights import gated_mlp, routed_mlp

RECURRENT_DTYPE = "float32"
JAMBA_FIELDS = ("mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand")
MAMBA_FIELDS = ("conv_kernel", "state_size", "time_step_rank", "intermediate_size")


def read_bamba(fields: ConfigFields, serving: Serving) -> Composition:
    """Bamba: Mamba2 layers, full attention at `attn_layer_indices`, a gated MLP after each."""
    layers = fields.count("num_hidden_layers")
    indices = fields.layer_indices("attn_layer_indices", layers)
    kinds = [FULL if layer in indices else LINEAR for layer in range(layers)]
    kinds = fields.kinds("layers_block_type", layers, (FULL, LINEAR), kinds)
    shape = grouped_query(fields)
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    mlp = gated_mlp(fields.count("hidden_size"), fields.count("intermediate_size"))
    return compose(
        fields.model_type,
        [
            [grouped_query_layer(fields, serving, shape, mlp) if kind == FULL else _mamba2(fields, serving, inner, mlp)]
            for kind in kinds
        ],
        serving,
    )


def read_falcon_h1(fields: ConfigFields, serving: Serving) -> Composition:
    """Falcon-H1: every layer runs full attention and Mamba2 side by side; the MLP is counted with the attention."""
    hidden = fields.count("hidden_size")
    inner = fields.optional_count("mamba_d_ssm") or fields.count("mamba_expand") * hidden
    mlp = gated_mlp(hidden, fields.count("intermediate_size"))
    layer: list[Layer] = [
        grouped_query_layer(fields, serving, grouped_query(fields), mlp),
        _mamba2(fields, serving, inner, 0),
    ]
    return compose(fields.model_type, [layer] * fields.count("num_hidden_layers"), serving)


def _mamba2(fields: ConfigFields, serving: Serving, inner: int, mlp_weights: int) -> StateLayer:
    """A Mamba2 layer of `inner` channels in the field names that Bamba and Falcon-H1 share."""
    heads = fields.count("mamba_n_heads")
    head_dim = fields.quotient("mamba_n_heads", inner, heads)
    if fields.get("mamba_d_head") not in (None, "auto") and fields.count("mamba_d_head") != head_dim:
        raise fields.error("mamba_d_head", f"must be {inner} / {heads} = {head_dim}, not {fields.get('mamba_d_head')!r}")
    return mamba2_layer(
        fields,
        serving,
        heads=("mamba_n_heads", heads),
        head_dim=head_dim,
        groups=("mamba_n_groups", fields.count("mamba_n_groups")),
        state_dim=fields.count("mamba_d_state"),
        conv_kernel=fields.count("mamba_d_conv", minimum=2),
        chunk_tokens=fields.count("mamba_chunk_size"),
        mlp_weights=mlp_weights,
    )


def mamba2_layer(
    fields: ConfigFields,
    serving: Serving,
    *,
    heads: tuple[str, int],
    head_dim: int,
    groups: tuple[str, int],
    state_dim: int,
    conv_kernel: int,
    chunk_tokens: int,
    mlp_weights: int = 0,
) -> StateLayer:
    """A Mamba2 layer; heads and groups come with the names of their fields. Groups are replicated where ranks outnumber
    them, as the B and C they hold are then read by heads of several ranks."""
    fields.quotient(groups[0], heads[1], groups[1])
    state = mamba2_state(
        heads=serving.divided(fields, *heads),
        head_dim=head_dim,
        groups=serving.divided_or_replicated(fields, *groups),
        state_dim=state_dim,
        conv_kernel=conv_kernel,
    )
    hidden, inner = fields.count("hidden_size"), heads[1] * head_dim
    channels = inner + 2 * groups[1] * state_dim
    mixer = hidden * (inner + channels + heads[1]) + channels * conv_kernel + inner * hidden
    return _state_layer(fields, serving, state, mixer + mlp_weights, chunk_tokens)


def read_jamba(fields: ConfigFields, serving: Serving) -> Composition:
    """Jamba: Mamba1 layers, full attention every `attn_layer_period`, experts every `expert_layer_period`.

    A selective scan hands out its last state only, so a state can be saved wherever a prefill chunk ends.
    """
    layers = fields.count("num_hidden_layers")
    attention = _periodic(fields, "attn_layer", layers)
    experts = _periodic(fields, "expert_layer", layers)
    hidden, mlp_inner = fields.count("hidden_size"), fields.count("intermediate_size")
    dense, routed = gated_mlp(hidden, mlp_inner), gated_mlp(hidden, mlp_inner)
    if fields.count("num_experts") > 1:
        routed = routed_mlp(
            hidden=hidden, inner=mlp_inner, experts=fields.count("num_experts"), active=fields.count("num_experts_per_tok")
        )
    shape = grouped_query(fields)
    stack: list[list[Layer]] = []
    for layer in range(layers):
        mlp = routed if layer in experts else dense
        if layer in attention:
            stack.append([grouped_query_layer(fields, serving, shape, mlp)])
        else:
            inner = fields.count("mamba_expand") * hidden
            stack.append([_mamba1(fields, serving, inner, mlp, JAMBA_FIELDS)])
    return compose(fields.model_type, stack, serving)


def read_mamba(fields: ConfigFields, serving: Serving) -> Composition:
    """Mamba and Falcon-Mamba: a selective scan in every layer, and nothing else. States can be saved as those of Jamba."""
    inner = fields.optional_count("intermediate_size") or fields.count("expand") * fields.count("hidden_size")
    layer = _mamba1(fields, serving, inner, 0, MAMBA_FIELDS)
    return compose(fields.model_type, [[layer]] * fields.count("num_hidden_layers"), serving)


def _mamba1(fields: ConfigFields, serving: Serving, inner: int, mlp_weights: int, names: Sequence[str]) -> StateLayer:
    """A Mamba layer of `inner` channels; `names`: the fields of the kernel, the state, the time steps' rank, the channels."""
    hidden, kernel, state_dim = fields.count("hidden_size"), fields.count(names[0], minimum=2), fields.count(names[1])
    rank = -(-hidden // 16) if fields.get(names[2]) in (None, "auto") else fields.count(names[2])
    state = mamba1_state(channels=serving.divided(fields, names[3], inner), state_dim=state_dim, conv_kernel=kernel)
    mixer = inner * (3 * hidden + kernel + 2 * rank + 2 * state_dim)
    return _state_layer(fields, serving, state, mixer + mlp_weights, chunk_tokens=1)


def _state_layer(fields: ConfigFields, serving: Serving, state: StateShape, weights: int, chunk_tokens: int) -> StateLayer:
    recurrent = serving.state_dtype
    if recurrent is None:
        named = fields.get("mamba_ssm_cache_dtype")
        recurrent = RECURRENT_DTYPE if named is None else dtype_name(named, "mamba_ssm_cache_dtype")
    parts = state.parts(conv_dtype=serving.conv_dtype, recurrent_dtype=recurrent)
    return StateLayer(parts=parts, shards=serving.ranks, weights=weights, chunk_tokens=chunk_tokens)


def _periodic(fields: ConfigFields, prefix: str, layers: int) -> set[int]:
    """The layers that are `{prefix}_offset` modulo `{prefix}_period`."""
    period, offset = fields.count(f"{prefix}_period"), fields.count(f"{prefix}_offset", minimum=0)
    if offset >= period:
        raise fields.error(f"{prefix}_offset", f"must be below {prefix}_period ({period}), not {offset}")
    return set(range(offset, layers, period))
