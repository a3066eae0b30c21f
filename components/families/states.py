"""The states of recurrent layers, from the fields in which families state them.

Recurrent states are fp32 unless the file or the caller says otherwise: that is what the scan kernels return. The columns of a
convolution are the past inputs that the next token needs, one fewer than its kernel.
"""

from __future__ import annotations

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.kinds import StateShape, delta_net_state, mamba1_state, mamba2_state
from unified_tree.components.layers import StateLayer
from unified_tree.components.serving import Serving, dtype_name
from unified_tree.declare.page_format import Part

RECURRENT_DTYPE = "float32"
DELTA_CHUNK_TOKENS = 64
"""The chunk of the delta-rule kernels (`chunk_size=64` in `transformers` and in `fla`)."""

SSM_DTYPE = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")
HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
STATE = ("mamba_d_state", "ssm_state_size", "state_size")
KERNEL = ("mamba_d_conv", "conv_kernel")
EXPAND = ("mamba_expand", "expand")
CHUNK = ("mamba_chunk_size", "chunk_size")
"""The spellings of Mamba's fields."""


DTYPE_NOTE = (
    "recurrent states are fp32, as SGLang keeps them; vLLM keeps them in the model's dtype unless it is told another "
    "mamba_ssm_cache_dtype: give state_dtype for that"
)


def recurrent_dtype(fields: ConfigFields, serving: Serving, *, differs: bool = True) -> str:
    """The caller's choice, the file's, or fp32. `differs` says that engines have defaults of their own."""
    named = fields.get(*SSM_DTYPE)
    if serving.state_dtype is not None:
        return serving.state_dtype
    if named is not None:
        return dtype_name(named, SSM_DTYPE[0])
    if differs and DTYPE_NOTE not in fields.notes:
        fields.notes.append(DTYPE_NOTE)
    return RECURRENT_DTYPE


def kda(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Kimi delta attention, by the fields of `transformers` or the published `linear_attn_config`."""
    nested = fields.nested("linear_attn_config")
    if nested is not None:
        names = {
            "linear_head_dim": "head_dim",
            "linear_num_heads": "num_heads",
            "linear_conv_kernel_dim": "short_conv_kernel_size",
        }
        fields = fields.overlaid({name: nested.get(key) for name, key in names.items() if nested.get(key) is not None})
        for harmless in ("gate_lower_bound", "safe_gate"):
            nested.understood(harmless)
    heads, head_dim = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    kernel, hidden = fields.count("linear_conv_kernel_dim", minimum=2), fields.count("hidden_size")
    rank_heads = serving.divided(fields, "linear_num_heads", heads)
    state = delta_net_state(
        key_heads=rank_heads, key_dim=head_dim, value_heads=rank_heads, value_dim=head_dim, conv_kernel=kernel
    )
    width = heads * head_dim
    gates = 2 * (hidden * head_dim + head_dim * width) + hidden * heads
    return _layer(fields, serving, state, 4 * hidden * width + 3 * width * kernel + gates, DELTA_CHUNK_TOKENS, differs=False)


def gated_delta_net(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Gated delta nets as Qwen spells them."""
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
    return _layer(fields, serving, state, mixer, DELTA_CHUNK_TOKENS)


def mamba2(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Mamba2. Groups are replicated where ranks outnumber them, as the B and C they hold are then read by heads of several
    ranks."""
    hidden, heads = fields.count("hidden_size"), fields.count(*HEADS)
    inner = fields.optional_count("mamba_d_ssm")
    named = None if fields.get(*HEAD_DIM) in (None, "auto") else fields.count(*HEAD_DIM)
    if inner is None and fields.get(*EXPAND) is not None and fields.model_type != "nemotron_h":
        inner = _expanded(fields, hidden)
    if inner is None:
        if named is None:
            raise fields.error(EXPAND[0], "is missing")
        inner = heads * named
    head_dim = fields.quotient(_spelled(fields, HEADS), inner, heads)
    if named is not None and named != head_dim:
        raise fields.error(_spelled(fields, HEAD_DIM), f"must be {inner} / {heads} = {head_dim}, not {named}")
    return _mamba2(fields, serving, heads, head_dim)


def pure_mamba2(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Mamba2 alone, whose `head_dim` is not that of attention."""
    return _mamba2(fields, serving, fields.count("num_heads"), fields.count("head_dim"))


def _mamba2(fields: ConfigFields, serving: Serving, heads: int, head_dim: int) -> StateLayer:
    groups, state_dim = fields.count(*GROUPS), fields.count(*STATE)
    kernel, hidden = fields.count(*KERNEL, minimum=2), fields.count("hidden_size")
    group_field = _spelled(fields, GROUPS)
    fields.quotient(group_field, heads, groups)
    fields.understood(*EXPAND)
    state = mamba2_state(
        heads=serving.divided(fields, _spelled(fields, HEADS), heads),
        head_dim=head_dim,
        groups=serving.divided_or_replicated(fields, group_field, groups),
        state_dim=state_dim,
        conv_kernel=kernel,
    )
    inner = heads * head_dim
    channels = inner + 2 * groups * state_dim
    mixer = hidden * (inner + channels + heads) + channels * kernel + inner * hidden
    return _layer(fields, serving, state, mixer, fields.count(*CHUNK))


def mamba1(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Mamba, as Jamba and Zamba spell it. A selective scan hands out its last state only, so a state can be saved wherever a
    prefill chunk ends."""
    return _mamba1(fields, serving, _expanded(fields, fields.count("hidden_size")), "mamba_dt_rank")


def pure_mamba1(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Mamba and Falcon-Mamba."""
    inner = fields.optional_count("intermediate_size") or _expanded(fields, fields.count("hidden_size"))
    fields.understood(*EXPAND)
    return _mamba1(fields, serving, inner, "time_step_rank")


def zamba_mamba1(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Mamba in several heads, each a scan of its own."""
    inner = _expanded(fields, fields.count("hidden_size"))
    fields.quotient("n_mamba_heads", inner, fields.count("n_mamba_heads"))
    return _mamba1(fields, serving, inner, "mamba_dt_rank")


def _mamba1(fields: ConfigFields, serving: Serving, inner: int, rank_field: str) -> StateLayer:
    hidden, kernel, state_dim = fields.count("hidden_size"), fields.count(*KERNEL, minimum=2), fields.count(*STATE)
    rank = -(-hidden // 16) if fields.get(rank_field) in (None, "auto") else fields.count(rank_field)
    channels = serving.divided(fields, _spelled(fields, EXPAND), inner)
    state = mamba1_state(channels=channels, state_dim=state_dim, conv_kernel=kernel)
    return _layer(fields, serving, state, inner * (3 * hidden + kernel + 2 * rank + 2 * state_dim), 1)


def short_conv(fields: ConfigFields, serving: Serving) -> StateLayer:
    """LFM's gated short convolution, over the hidden size unless the file says `conv_dim`."""
    hidden, kernel = fields.count("hidden_size"), fields.count("conv_L_cache", minimum=2)
    channels = fields.count("conv_dim", default=hidden)
    part = Part("conv", serving.conv_dtype, (serving.divided(fields, "conv_dim", channels), kernel - 1))
    return StateLayer(parts=(part,), shards=serving.ranks, weights=4 * hidden * hidden + hidden * kernel, name="conv")


def lightning(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Lightning attention (MiniMax-Text-01): one `head_dim x head_dim` state a head, fp32."""
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    head_dim = fields.optional_count("head_dim") or fields.quotient("num_attention_heads", hidden, heads)
    shape = (serving.divided(fields, "num_attention_heads", heads), head_dim, head_dim)
    part = Part("ssm", recurrent_dtype(fields, serving), shape)
    width = heads * head_dim
    chunk = fields.count("block_size", default=256)
    return StateLayer(parts=(part,), shards=serving.ranks, weights=5 * hidden * width, chunk_tokens=chunk)


def bailing(fields: ConfigFields, serving: Serving) -> StateLayer:
    """KDA in Ling and Ring 3, which have a short convolution; lightning attention in 2.5, as SGLang and vLLM read it."""
    if fields.get("linear_conv_kernel_dim") is not None:
        return kda(fields, serving)
    fields.count("head_dim")
    for name in ("group_norm_size", "linear_silu", "use_linear_silu", "num_key_value_heads", "linear_rope", "linear_backend"):
        fields.understood(name)
    return lightning(fields, serving)


def ngram_conv(fields: ConfigFields, serving: Serving, layer: int) -> StateLayer | None:
    """Qwen4-Exp: the dilated convolution over what the embeddings of n-grams add to a layer's hyper-connections."""
    layers = fields.list_of(int, "ple_layer_ids")
    for name in ("ple_embed_dim", "heads_per_ngram", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by"):
        fields.understood(name)
    fields.understood("split_ngram_parts", "ple_conv_kernel_size", "ngram_size", "number_of_conv_states")
    if not layers or layer + 1 not in layers:
        return None
    if serving.ranks > 1:
        raise fields.error(
            "ple_layer_ids", "names layers with convolutions whose division over ranks is not known; give one rank"
        )
    channels = fields.count("hidden_size") * fields.count("hc_count", "hc_mult")
    columns = (fields.count("ple_conv_kernel_size", minimum=2) - 1) * fields.count("ngram_size")
    return StateLayer(parts=(Part("conv", serving.conv_dtype, (channels, columns)),), weights=0, name="conv")


def inkling_convs(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Inkling's four short convolutions a layer: over keys, values, and what attention and MLP return."""
    hidden, kv_heads = fields.count("hidden_size"), fields.count("num_key_value_heads")
    head_dim = fields.count("head_dim")
    kernel = fields.count("conv_kernel_size", "sconv_kernel_size", minimum=2)
    fields.understood("number_of_conv_states")
    if serving.ranks > 1:
        raise fields.error("conv_kernel_size", "belongs to convolutions whose division over ranks is not known; give one rank")
    widths = {"k conv": kv_heads * head_dim, "v conv": kv_heads * head_dim, "attention conv": hidden, "mlp conv": hidden}
    parts = tuple(Part(name, serving.conv_dtype, (width, kernel - 1)) for name, width in widths.items())
    return StateLayer(parts=parts, weights=kernel * sum(widths.values()), name="conv")


def zaya_state(fields: ConfigFields, serving: Serving) -> StateLayer:
    """Zaya's compressed convolutional attention: past queries and keys, and the previous token's part of the values."""
    heads, kv_heads, head_dim = (fields.count(n) for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    columns = fields.count("cca_time0") - 1 + fields.count("cca_time1") - 1
    if serving.ranks > 1:
        raise fields.error("cca_time0", "belongs to convolutions whose division over ranks is not known; give one rank")
    if columns < 1:
        raise fields.error("cca_time0", "and cca_time1 leave no past inputs")
    parts = (
        Part("conv", serving.conv_dtype, ((heads + kv_heads) * head_dim, columns)),
        Part("delayed v", serving.conv_dtype, (kv_heads * head_dim // 2,)),
    )
    return StateLayer(parts=parts, weights=0, name="conv")


def rg_lru(fields: ConfigFields, serving: Serving) -> StateLayer:
    """RecurrentGemma's real-gated linear recurrence behind a short convolution."""
    hidden = fields.count("hidden_size")
    width, kernel = fields.count("lru_width", default=hidden), fields.count("conv1d_width", minimum=2)
    channels = serving.divided(fields, "lru_width", width)
    parts = (
        Part("conv", serving.conv_dtype, (channels, kernel - 1)),
        Part("ssm", recurrent_dtype(fields, serving), (channels,)),
    )
    return StateLayer(parts=parts, shards=serving.ranks, weights=3 * hidden * width)


def rwkv7(fields: ConfigFields, serving: Serving) -> StateLayer:
    """RWKV-7: a `head_dim x head_dim` state a head, and the last token's inputs of both blocks. Source: Peng et al., 2025."""
    hidden, head_dim = fields.count("hidden_size"), fields.count("head_dim", "head_size", default=64)
    heads = fields.count("num_heads", default=fields.quotient("hidden_size", hidden, head_dim))
    if serving.ranks > 1:
        raise fields.error("head_dim", "belongs to states whose division over ranks is not known; give one rank")
    parts = (
        Part("shift", serving.conv_dtype, (2, hidden)),
        Part("ssm", recurrent_dtype(fields, serving), (heads, head_dim, head_dim)),
    )
    return StateLayer(parts=parts, weights=4 * hidden * hidden)


def _layer(
    fields: ConfigFields, serving: Serving, state: StateShape, weights: int, chunk_tokens: int, *, differs: bool = True
) -> StateLayer:
    dtype = recurrent_dtype(fields, serving, differs=differs)
    parts = state.parts(conv_dtype=serving.conv_dtype, recurrent_dtype=dtype)
    return StateLayer(parts=parts, shards=serving.ranks, weights=weights, chunk_tokens=chunk_tokens)


def _expanded(fields: ConfigFields, hidden: int) -> int:
    """Channels of a Mamba layer; published files write a whole factor as 2.0, too."""
    factor = fields.get(*EXPAND)
    if isinstance(factor, float) and factor.is_integer():
        return int(factor) * hidden
    return fields.count(*EXPAND) * hidden


def _spelled(fields: ConfigFields, names: tuple[str, ...]) -> str:
    """The spelling that the file uses; the first if none."""
    return next((name for name in names if fields.get(name) is not None), names[0])
