"""How families spell their fields: names that files use, rules of their classes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families import schedules as s
from unified_tree.components.families.attention_fields import past_window
from unified_tree.components.families.schedules import FULL, INDEXED
from unified_tree.components.layers import IndexerLayer
from unified_tree.components.serving import Serving


def causal(fields: ConfigFields) -> None:
    """Attention that looks ahead has no prefix to cache. `vision` is about the tokens of images, which come in one chunk."""
    value = fields.get("use_bidirectional_attention")
    if value not in (None, False, "vision"):
        raise fields.error("use_bidirectional_attention", "is true: such a model has no causal prefix to cache")


def no_windows(fields: ConfigFields) -> None:
    """Kinds of layers that some engines follow and others do not."""
    for name in s.LIST_FIELDS:
        kinds = fields.get(name)
        if isinstance(kinds, list) and any(kind not in (FULL, "attention") for kind in kinds):
            raise fields.error(
                name,
                "names layers that are not full attention: vLLM follows it for this type, SGLang and transformers do not. "
                f"Ignore {name!r} to read full attention in every layer, as SGLang does, or describe the layers in a file",
            )


def mllama(fields: ConfigFields) -> ConfigFields:
    """Llama 3.2 with images, whose tokens stand in front of the prompt."""
    if fields.list_of(int, "cross_attention_layers"):  # of layers that there are not, some files have numbers, too
        fields.notes.append(
            "cross-attention layers keep an image's KV in the pages of its tokens, which stand in front of the prompt, as in "
            "SGLang: make their ids from the image, and if a hit ends among them, write the rest of its KV; vLLM has no class "
            "for it"
        )
    return fields


def mistral(fields: ConfigFields) -> None:
    """A window in every layer, which SGLang does not keep; beside a list of full layers it is refused."""
    no_windows(fields)
    if fields.get("sliding_window") is None:
        return
    fields.notes.append("SGLang keeps full attention where this file names a sliding_window; ignore it for that reading")
    for name in s.LIST_FIELDS:
        if fields.get(name) is not None:
            raise fields.error(
                name,
                "names full attention alone, and transformers and vLLM keep the sliding_window in every layer of this type; "
                f"ignore {name!r} or 'sliding_window'",
            )


def short_window(fields: ConfigFields) -> None:
    """As of `mistral`, if the window is below the context."""
    (mistral if s.has_short_window(fields) else no_windows)(fields)


def qwen(fields: ConfigFields) -> None:
    """Windows in the list of kinds that the file does not use."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and s.SLIDING in kinds and not fields.flag("use_sliding_window"):
        raise fields.error(
            "layer_types",
            "names layers with a window, and use_sliding_window is not true; ignore layer_types to read full attention in "
            "every layer, or add use_sliding_window",
        )


def zaya(fields: ConfigFields) -> ConfigFields:
    """Published files count blocks of experts as layers: those of `zaya_layers`, or every second. `transformers` does not."""
    listed = fields.get("zaya_layers")
    if fields.get("layer_types") is not None:
        return fields
    layers = fields.count("num_hidden_layers")
    if isinstance(listed, list) and listed:
        if not all(entry == "a" or type(entry) is int for entry in listed):
            raise fields.error("zaya_layers", "must have 'a' for attention and a number of experts for the rest")
        kinds = [s.HYBRID if entry == "a" else s.EXPERTS for entry in listed]
        layers = len(listed)
    elif fields.get("ffn_hidden_size") is not None and fields.get("moe_intermediate_size") is None:
        kinds = [s.EXPERTS if layer % 2 else s.HYBRID for layer in range(layers)]
    elif fields.get("moe_intermediate_size") is not None and fields.get("ffn_hidden_size") is None:
        kinds = [s.HYBRID] * layers
    else:
        raise fields.error(
            "layer_types",
            "is missing, and whether num_hidden_layers counts blocks of experts is said by ffn_hidden_size (it does) or "
            "moe_intermediate_size (it does not), of which the file has both or neither",
        )
    given = {name: _one_of(fields, name) for name in ("cca_num_q_heads", "num_query_groups_list")}
    own = {"num_attention_heads": given["cca_num_q_heads"], "num_key_value_heads": given["num_query_groups_list"]}
    own |= {"head_dim": fields.get("head_dim", "kv_channels")}
    own = {name: value for name, value in own.items() if value is not None}
    return fields.overlaid({**own, "layer_types": kinds, "num_hidden_layers": layers})


def _one_of(fields: ConfigFields, name: str) -> int | None:
    """The one number that the layers with attention have in a list; None without the list."""
    given = fields.get(name)
    if not isinstance(given, list):
        return None
    found = {entry for entry in given if entry}
    if len(found) != 1:
        raise fields.error(name, "has layers of different numbers of heads, which are not known for this type")
    return int(found.pop())


def past_tokens_only(fields: ConfigFields) -> int:
    """Cohere's field counts past tokens only, as SGLang and vLLM read it; `transformers` counts the query, too."""
    return fields.count("sliding_window")


def glm5(fields: ConfigFields) -> ConfigFields:
    """The class pools 16 tokens where a file does not say it, and SGLang one."""
    fields.count("index_kpool")
    return sparse_for_full(fields)


def all_softmax(fields: ConfigFields) -> None:
    """`attn_type_list` of MiniMax-M2 names softmax attention only."""
    no_windows(fields)
    kinds = fields.list_of(int, "attn_type_list")
    if kinds is not None and set(kinds) != {1}:
        raise fields.error("attn_type_list", "names layers that are not softmax attention (1)")


def uncompressed(fields: ConfigFields) -> None:
    """ERNIE 4.5."""
    no_windows(fields)
    if fields.get("compression_ratio") not in (None, 1, 1.0):
        raise fields.error("compression_ratio", "is not 1, and what it compresses is not known")


def hunyuan(fields: ConfigFields) -> None:
    """Files name the sizes of latents and of KV shared across layers that the model does not use."""
    no_windows(fields)
    for name in ("use_mla", "use_cla"):
        if fields.get(name) not in (None, False):
            raise fields.error(name, "is true: how such layers keep their KV is not known for this type")
    fields.understood("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "cla_share_factor")


def latents(fields: ConfigFields) -> None:
    """Longcat and DeepSeek-V2 say in words what their sizes say."""
    no_windows(fields)
    if fields.get("attention_method") not in (None, "MLA") or fields.get("use_mla") is False:
        raise fields.error("attention_method" if fields.get("attention_method") else "use_mla", "says that this is not MLA")


def dense_indexer(fields: ConfigFields) -> ConfigFields:
    """Files of sparse attention that turn it off are refused."""
    if fields.get("use_dsa") is False:
        raise fields.error("use_dsa", "is false: how the file's layers are read then is not known")
    return fields


def named(names: Mapping[str, tuple[str, ...]]) -> Callable[[ConfigFields], ConfigFields]:
    """The fields, with other spellings for missing ones."""

    def adapt(fields: ConfigFields) -> ConfigFields:
        found = {name: fields.get(name, *spellings) for name, spellings in names.items()}
        return fields.overlaid({name: value for name, value in found.items() if value is not None})

    return adapt


GPT_NAMES = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
}
"""Spellings of older files."""


def gpt_bigcode(fields: ConfigFields) -> ConfigFields:
    """One KV head with `multi_query`, which is the default."""
    fields = named(GPT_NAMES)(fields)
    return fields if fields.get("multi_query") is False else fields.overlaid({"num_key_value_heads": 1})


def falcon(fields: ConfigFields) -> ConfigFields:
    """`num_kv_heads` in newer files; one head with `multi_query` in older ones."""
    fields = named(GPT_NAMES)(fields)
    if fields.flag("new_decoder_architecture"):
        fields.understood("multi_query")
        return fields.overlaid({"num_key_value_heads": fields.count("num_kv_heads")})
    fields.understood("num_kv_heads")
    return fields if fields.get("multi_query") is False else fields.overlaid({"num_key_value_heads": 1})


def mimo(fields: ConfigFields) -> ConfigFields:
    """The class's rules: twice the KV heads in windows; the first layer's MLP dense."""
    kv_heads, layers = fields.count("num_key_value_heads"), fields.count("num_hidden_layers")
    fields.count("v_head_dim")
    own: dict[str, Any] = {}
    if fields.get("swa_num_key_value_heads") is None:
        own["swa_num_key_value_heads"] = 2 * kv_heads
    if fields.get("mlp_layer_types") is None and fields.get("moe_layer_freq") is None:
        own["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
    fields.understood("hybrid_block_size", "attention_chunk_size", "partial_rotary_factor")  # published, read by no engine
    return fields.overlaid(own)


def mimo_window(fields: ConfigFields) -> int:
    """The published field counts past tokens only; `sliding_window` in `transformers` counts the query, too."""
    published = fields.optional_count("sliding_window_size")
    fields.understood("sliding_window")
    return past_window(fields) if published is None else published


def gemma4(fields: ConfigFields) -> ConfigFields:
    """Wider heads in full layers (`global_head_dim`), fewer KV heads there if keys are values; the last layer is full."""
    own: dict[str, Any] = {}
    if fields.get("per_layer_config") is None:
        if fields.get("global_head_dim") is None:
            own["global_head_dim"] = 512
        if fields.get("num_global_key_value_heads") is not None and not fields.flag("attention_k_eq_v"):
            own["num_global_key_value_heads"] = None
    fields.understood("attention_k_eq_v")  # engines keep keys and values all the same
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and kinds:
        own["layer_types"] = [*kinds[:-1], FULL]
    return fields.overlaid(own)


def gemma3n(fields: ConfigFields) -> ConfigFields:
    """The number of layers that share KV must be stated."""
    fields.count("num_kv_shared_layers", minimum=0)
    return fields


def dots3(fields: ConfigFields) -> ConfigFields:
    """Latents of other sizes in window layers; published files call the sparse layers full attention."""
    fields = dense_indexer(fields)
    own: dict[str, Any] = {}
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        own["layer_types"] = [INDEXED if kind == FULL else kind for kind in kinds]
    if fields.get("per_layer_config") is None:
        sizes = {"num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192}
        own |= {f"swa_{name}": value for name, value in sizes.items() if fields.get(f"swa_{name}") is None}
        if fields.get("swa_qk_rope_head_dim") is None:
            nope = fields.count("swa_qk_nope_head_dim", default=192)
            own["swa_qk_rope_head_dim"] = fields.count("swa_head_dim", default=256) - nope
    if fields.get("sliding_window") is None:
        own["sliding_window"] = fields.count("sliding_window_size", default=512)
    return fields.overlaid(own)


def dots3_window(fields: ConfigFields) -> int:
    """As `transformers` reads it; the published `sliding_window_size` is one more in some files."""
    fields.understood("sliding_window_size")
    return past_window(fields)


def sparse_for_full(fields: ConfigFields) -> ConfigFields:
    """Published files call sparse layers full attention."""
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list):
        return fields
    return fields.overlaid({"layer_types": [INDEXED if kind in (FULL, "attention") else kind for kind in kinds]})


def qwen4(fields: ConfigFields) -> ConfigFields:
    """Qwen4-Exp, with the keys of its indexer, and embeddings of n-grams."""
    if fields.get("indexer_head_dim") is None:
        raise fields.error("indexer_head_dim", "is missing: the layers pick tokens by the keys of an indexer")
    if fields.layer_indices("ple_layer_ids", fields.count("num_hidden_layers"), first=1):
        fields.notes.append(s.NGRAM_NOTE)
    return sparse_for_full(fields)


def pooled_index(fields: ConfigFields, serving: Serving) -> IndexerLayer:
    """Qwen4-Exp: the mean key of `indexer_compress_ratio` tokens, of each KV head of the indexer."""
    kv_heads = fields.count("indexer_kv_heads", default=1)
    heads, dim, hidden = fields.count("indexer_n_heads"), fields.count("indexer_head_dim"), fields.count("hidden_size")
    return IndexerLayer(
        parts=serving.index_parts(fields, kv_heads * dim),
        weights=hidden * dim * (heads + kv_heads),
        flops_per_entry=2 * heads * dim,
        tokens_per_slot=fields.count("indexer_compress_ratio"),
    )


def minimax_m3(fields: ConfigFields) -> ConfigFields:
    """MiniMax-M3: the published names of the indexer's sizes."""
    nested = fields.nested("sparse_attention_config")
    if nested is None:
        return fields
    names = {
        "index_n_heads": "sparse_num_index_heads",
        "index_head_dim": "sparse_index_dim",
        "index_block_size": "sparse_block_size",
        "index_topk_blocks": "sparse_topk_blocks",
        "index_local_blocks": "sparse_local_block",
    }
    found = {name: nested.get(published) for name, published in names.items()}
    nested.understood("use_sparse_attention", "sparse_init_block", "sparse_score_type", "sparse_disable_index_value")
    return fields.overlaid({name: value for name, value in found.items() if value is not None})


def mistral_large4(fields: ConfigFields) -> ConfigFields:
    """Every fourth layer has no rotary embedding, and so no rope key."""
    layers, rope = fields.count("num_hidden_layers"), fields.count("qk_rope_head_dim")
    nope = fields.count("qk_nope_head_dim")
    given = s.rope_layers(fields, layers)
    own: dict[str, Any] = {"qk_rope_head_dim": [rope if each else 0 for each in given]}
    own["qk_nope_head_dim"] = [nope if each else nope + rope for each in given]
    return fields.overlaid(own)


def step(fields: ConfigFields) -> ConfigFields:
    """Step-3.5 and 3.7: `num_attention_groups`, and other heads in window layers."""
    fields = named({"num_key_value_heads": ("num_attention_groups",)})(fields)
    own: dict[str, Any] = {}
    nested = fields.nested("attention_other_setting")
    if nested is not None:
        nested.understood("attention_type", "true_head_dim")
        for name, spelled in (
            ("num_attention_heads", "num_attention_heads"),
            ("num_key_value_heads", "num_attention_groups"),
            ("head_dim", "head_dim"),
        ):
            if nested.get(spelled) is not None:
                own[f"swa_{name}"] = nested.get(spelled)
    elif fields.get("num_sliding_attention_heads") is not None:
        own["swa_num_attention_heads"] = fields.get("num_sliding_attention_heads")
    fields.understood("attention_pattern", "yarn_only_types", "use_head_wise_attn_gate")
    if fields.nested("sparse_attention_config") is not None:
        fields = minimax_m3(fields)
    return fields.overlaid(own)


def bailing(fields: ConfigFields) -> ConfigFields:
    """Ling and Ring 3: KDA of `head_dim`. Those of 2.5 have no `short_conv_kernel_size`, and lightning attention."""
    if fields.get("full_attention_type") not in (None, "mla"):
        raise fields.error("full_attention_type", "must be mla; other layers are not known of this type")
    fields.understood("linear_num_heads")
    if fields.get("short_conv_kernel_size") is None:
        if fields.get("linear_conv_kernel_dim", "kda_lower_bound", "kda_safe_gate") is not None:
            raise fields.error("short_conv_kernel_size", "is missing, and other fields of KDA are there")
        return fields
    own = {
        "linear_num_heads": fields.count("num_attention_heads"),
        "linear_head_dim": fields.optional_count("linear_head_dim") or fields.count("head_dim"),
        "linear_conv_kernel_dim": fields.count("short_conv_kernel_size", "linear_conv_kernel_dim"),
    }
    return fields.overlaid(own)


def laguna(fields: ConfigFields) -> ConfigFields:
    """Laguna: query heads by layer."""
    heads = fields.get("num_attention_heads_per_layer")
    return fields if heads is None else fields.overlaid({"num_attention_heads": heads})


def inkling(fields: ConfigFields) -> ConfigFields:
    """Inkling: the sizes of its window layers must be stated."""
    fields.understood("local_layer_ids", "d_rel", "rel_extent", "n_layers_per_attn_res_block")
    fields.count("swa_num_key_value_heads")
    fields.count("swa_head_dim")
    return named({"sliding_window": ("sliding_window_size",)})(fields)


def longcat(fields: ConfigFields) -> ConfigFields:
    """Two attention blocks in each of `num_layers` layers."""
    layers = fields.count("num_layers")
    if fields.get("num_hidden_layers") not in (None, layers, 2 * layers):
        raise fields.error("num_hidden_layers", f"must be {layers} or {2 * layers} for num_layers {layers}")
    return fields.overlaid({"num_hidden_layers": 2 * layers})


def zamba(fields: ConfigFields) -> ConfigFields:
    """Attention over twice the hidden size."""
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    fields.understood(
        "attention_hidden_size", "kv_channels", "num_query_groups", "hybrid_layer_ids", "num_mem_blocks", "n_mamba_heads"
    )
    fields.understood("attn_layer_period", "attn_layer_offset", "num_key_value_heads")
    if fields.get("mamba_expand", "expand") is None:
        raise fields.error("mamba_expand", "is missing, and has no value that follows from the others")
    return fields.overlaid({"head_dim": fields.count("attention_head_dim", default=2 * hidden // heads)})


def granite_hybrid(fields: ConfigFields) -> None:
    """Granite 4: with rotary embeddings or none."""
    if fields.get("position_embedding_type") not in (None, "rope", "nope"):
        raise fields.error("position_embedding_type", "must be rope or nope")


def recurrent_gemma(fields: ConfigFields) -> ConfigFields:
    """RecurrentGemma: the window's published name."""
    return fields.overlaid({"sliding_window": fields.count("attention_window_size", "sliding_window", minimum=2)})


def falcon_h1(fields: ConfigFields) -> ConfigFields:
    """Falcon-H1: fields of layers that its class does not use."""
    fields.understood("mamba_expand", "attn_layer_indices")
    return fields
