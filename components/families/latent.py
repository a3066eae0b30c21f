"""Multi-head latent attention, plain or behind an indexer: DeepSeek-V3, DeepSeek-V3.2, GLM-MoE-DSA."""

from __future__ import annotations

from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.families.attention_fields import deepseek_mlp, latent, latent_layer
from unified_tree.components.layers import IndexerLayer, Layer, compose
from unified_tree.components.serving import Serving
from unified_tree.declare.page_format import Part

INDEXED = "indexed_attention"


def read_deepseek_v3(fields: ConfigFields, serving: Serving) -> Composition:
    """MLA over the whole prefix in every layer."""
    layers = fields.count("num_hidden_layers")
    shape = latent(fields)
    return compose(
        fields.model_type,
        [[latent_layer(fields, serving, shape, mlp)] for mlp in deepseek_mlp(fields, layers)],
        serving,
    )


def read_deepseek_v32(fields: ConfigFields, serving: Serving) -> Composition:
    """MLA on the `index_topk` tokens that each layer's own indexer picks."""
    return _indexed(fields, serving, ["full"] * fields.count("num_hidden_layers"))


def read_glm_moe_dsa(fields: ConfigFields, serving: Serving) -> Composition:
    """As DeepSeek-V3.2, but a layer whose `indexer_types` entry is `shared` reuses the tokens picked before it and has
    no index keys."""
    return _indexed(fields, serving, _indexer_kinds(fields, fields.count("num_hidden_layers")))


def _indexed(fields: ConfigFields, serving: Serving, indexer_kinds: list[str]) -> Composition:
    layers = len(indexer_kinds)
    fields.kinds("layer_types", layers, (INDEXED,), [INDEXED] * layers)
    shape = latent(fields)
    if shape.query_rank is None:
        raise fields.error("q_lora_rank", "is missing")
    index_heads, index_dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    own = IndexerLayer(
        parts=(Part("key", serving.kv_dtype, (index_dim,)),),
        weights=shape.query_rank * index_heads * index_dim + shape.hidden * (index_dim + index_heads),
        flops_per_entry=2 * index_heads * index_dim,
    )
    stack: list[list[Layer]] = []
    for kind, mlp in zip(indexer_kinds, deepseek_mlp(fields, layers), strict=True):
        attention = latent_layer(fields, serving, shape, mlp, max_entries=fields.count("index_topk"))
        stack.append([attention, own] if kind == "full" else [attention])
    return compose(fields.model_type, stack, serving)


def _indexer_kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`indexer_types`, or `index_topk_pattern` (`F` and `S`), or every `index_topk_freq`-th layer after an offset."""
    pattern = fields.get("index_topk_pattern")
    if fields.get("indexer_types") is not None:
        kinds = fields.kinds("indexer_types", layers, ("full", "shared"), ())
    elif isinstance(pattern, str):
        if set(pattern) - {"F", "S"} or len(pattern) != layers:
            raise fields.error("index_topk_pattern", f"must be {layers} letters F or S, not {pattern!r}")
        kinds = ["full" if letter == "F" else "shared" for letter in pattern]
    elif pattern is not None:
        kinds = fields.kinds("index_topk_pattern", layers, ("full", "shared"), ())
    else:
        period = max(fields.count("index_topk_freq", default=1, minimum=0), 1)
        offset = fields.count("index_skip_topk_offset", default=2, minimum=0)
        kinds = ["shared" if max(layer - offset + 1, 0) % period else "full" for layer in range(layers)]
    if kinds[0] == "shared":
        raise fields.error("indexer_types", "makes the first layer share an indexer that no layer before it runs")
    return kinds
