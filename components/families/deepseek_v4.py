"""DeepSeek-V4 and V4.1: a window in every layer, and in most of them compressed KV of the whole prefix besides.

A layer of V4 has one of three kinds: the window alone; 4:1 compressed KV behind an indexer, with an overlap carried from entry
to entry; or 128:1 compressed KV, all of which is read. V4.1 has 2:1 and 1:1 compressed KV behind indexers instead. A few source
layers write it, index keys included, and the layers behind a source read it; two tokens that no entry before them sees make one
entry, so that nothing is carried at a page's end. One vector per token or entry is key and value of all heads, so
tensor-parallel ranks do not divide it. The layers' MLPs and query and output projections are counted with the compressed KV, or
with the window where there is none; the window's own projection always with the window. Rebuild is not declared: it was not
tried with compressors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import draft
from unified_tree.components.families.schedules import NGRAM_NOTE, SLIDING
from unified_tree.components.kinds import compressed, indexer, overlap, swa
from unified_tree.components.layers import DEFAULT_PAGE_SIZE
from unified_tree.components.serving import FP8_DS_MLA, FP8_SCALED, Serving
from unified_tree.components.weights import routed_mlp
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Trailing
from unified_tree.declare.page_format import WHOLE, PageFormat, Part
from unified_tree.terms.errors import ConfigurationError

SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
SHARED = "shared_sparse_attention"
RATIO_KINDS = {0: SLIDING, 1: SLIDING, 4: SPARSE, 128: HEAVY}
"""The entries of `compress_ratios` in published files of V4."""
SHARED_RATIOS = (1, 2)
"""Those of V4.1 besides 0 for the window alone."""
DEFAULT_RATES = {SPARSE: 4, HEAVY: 128}
OVERLAP_DTYPE = "float32"
"""The overlap is fp32, as in DeepSeek's own inference code and the default of SGLang."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sizes of one model that more than one part needs."""

    head_dim: int
    score_flops: int
    body_weights: int
    window_weights: int
    window_tokens: int
    vector: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressor:
    """Layers of one kind and ratio: all of them, and those that keep the entries (all of them in V4)."""

    kind: str
    ratio: int
    layers: tuple[int, ...]
    keepers: tuple[int, ...]


def read_deepseek_v4(fields: ConfigFields, serving: Serving) -> Composition:
    """Components `c4` (or another ratio), `c128`, `indexer`, `swa`, `overlap` and `draft`, as far as the layers have them.

    V4.1 has `c1` and `c2` with an indexer each, and no overlap. The page size must be a multiple of every ratio; the default is
    the first such multiple from 64 on.
    """
    layer_count = fields.count("num_hidden_layers")
    is_shared = fields.get("kv_source_layer_ids") is not None
    compressors = _sources(fields, layer_count) if is_shared else _compressors(fields, layer_count)
    if fields.count("num_key_value_heads", default=1) != 1:
        raise fields.error(
            "num_key_value_heads", f"must be 1: one vector is key and value, not {fields.get('num_key_value_heads')}"
        )
    for name in ("qk_rope_head_dim", "index_topk", "index_n_heads", "index_head_dim", "kv_lora_rank", "v_head_dim"):
        fields.understood(name)
    fields.understood("qk_nope_head_dim", "index_source_layer_ids", "candidate_source_layer_id")
    shape = _shape(fields, serving)
    ratios = sorted({each.ratio for each in compressors})
    if not ratios:
        raise fields.error("layer_types", "has windows only, and a tree needs a kind that keeps the whole prefix")
    page_size = serving.page_size
    if page_size is None:
        page_size = -(-DEFAULT_PAGE_SIZE // lcm(*ratios)) * lcm(*ratios)

    for ratio in ratios:
        if page_size % ratio:
            raise ConfigurationError(f"c{ratio}: page_size {page_size} is not a multiple of tokens_per_slot {ratio}")
    components: list[Component] = []
    costs: list[AttentionCost] = []
    owner = f"c{ratios[0]}"
    for ratio in ratios:
        group = [each for each in compressors if each.ratio == ratio]
        components.append(_compressed(fields, shape, group, page_size=page_size, owner=owner))
        costs += _compressed_costs(fields, shape, group)
    for each in compressors:
        if each.kind != HEAVY:
            name = f"indexer_{each.ratio}" if is_shared else "indexer"
            components.append(_indexer(fields, serving, each, name=name, page_size=page_size, owner=owner))
            costs.append(_indexer_cost(fields, name, len(each.keepers), each.ratio))
    window_only = layer_count - sum(len(each.layers) for each in compressors)
    components.append(
        swa(
            page_size=page_size,
            window_tokens=shape.window_tokens,
            layers=layer_count,
            page_format=_window_format("swa", shape, range(layer_count), page_size),
            flops_per_token=2.0 * (layer_count * shape.window_weights + window_only * shape.body_weights),
            exact_rebuild=False,
        )
    )
    costs.append(_window_cost("swa", shape, layer_count))
    components += [_overlap(fields, serving, each.keepers, each.ratio) for each in compressors if each.kind == SPARSE]
    if not isinstance(serving.draft, int):
        components += [each.component(page_size, owner) for each in serving.draft]
        costs += [each.attention_cost() for each in serving.draft]
    elif serving.draft:
        components.append(_mtp(serving.draft, shape, page_size, layer_count))
        costs.append(_window_cost("draft", shape, serving.draft))
    return Composition(
        name=serving.name,
        page_size=page_size,
        components=tuple(components),
        attention_costs=tuple(costs),
        tensor_parallel=serving.ranks,
        rank=serving.rank,
    )


def _compressors(fields: ConfigFields, layer_count: int) -> list[_Compressor]:
    """Those of V4, in which every layer keeps its own entries."""
    kinds, rates = _kinds(fields, layer_count), _rates(fields)
    found = []
    for kind in (SPARSE, HEAVY):
        layers = tuple(layer for layer, each in enumerate(kinds) if each == kind)
        if layers:
            found.append(_Compressor(kind=kind, ratio=rates[kind], layers=layers, keepers=layers))
    return found


def _sources(fields: ConfigFields, layer_count: int) -> list[_Compressor]:
    """Those of V4.1: `kv_source_layer_ids` names the layers that keep entries, `compress_ratios` the ratio of each layer."""
    ratios = fields.list_of(int, "compress_ratios")
    if ratios is None or len(ratios) < layer_count or set(ratios) - {0, *SHARED_RATIOS}:
        raise fields.error("compress_ratios", f"must name one of {[0, *SHARED_RATIOS]} for each of {layer_count} layers")
    keepers = fields.layer_indices("kv_source_layer_ids", layer_count)
    pickers = fields.layer_indices("index_source_layer_ids", layer_count)
    for layer, ratio in enumerate(ratios[:layer_count]):
        source = max((each for each in keepers if each <= layer), default=None)
        if ratio and (source is None or ratios[source] != ratio or not any(each <= layer for each in pickers)):
            raise fields.error("kv_source_layer_ids", f"gives layer {layer} no source with its ratio of {ratio}, or no indexer")
    for name in ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"):
        fields.understood(name)
    if fields.get("engram_layer_ids"):
        fields.notes.append(NGRAM_NOTE)
    for name in (
        "num_embeddings",
        "max_ngram_size",
        "vocab_size",
        "n_heads",
        "head_dim",
        "pad_token_id",
        "compressed_vocab_size",
    ):
        fields.understood(f"engram_{name}")
    found = []
    for ratio in SHARED_RATIOS:
        layers = tuple(layer for layer in range(layer_count) if ratios[layer] == ratio)
        kept = tuple(layer for layer in layers if layer in keepers)
        if layers:
            found.append(_Compressor(kind=SHARED, ratio=ratio, layers=layers, keepers=kept))
    return found


def _kinds(fields: ConfigFields, layers: int) -> list[str]:
    """`layer_types`, or `compress_ratios` (whose entries past the last layer are the MTP layers'), or two 128:1 layers and
    then 128:1 and 4:1 in turn, as `transformers` has it."""
    default = [SPARSE if layer >= 2 and layer % 2 else HEAVY for layer in range(layers)]
    ratios = fields.list_of(int, "compress_ratios")
    if ratios is not None:
        unknown = set(ratios) - set(RATIO_KINDS)
        if unknown or len(ratios) < layers:
            raise fields.error("compress_ratios", f"must name one of {sorted(RATIO_KINDS)} for each of {layers} layers")
        default = [RATIO_KINDS[ratio] for ratio in ratios[:layers]]
    return fields.kinds("layer_types", layers, (SLIDING, SPARSE, HEAVY), default)


def _rates(fields: ConfigFields) -> dict[str, int]:
    """Tokens an entry, by kind of layer."""
    rates = fields.get("compress_rates") or DEFAULT_RATES
    if not isinstance(rates, dict) or any(type(rates.get(kind)) is not int or rates[kind] < 1 for kind in DEFAULT_RATES):
        raise fields.error("compress_rates", f"must give a positive integer for {SPARSE} and {HEAVY}, not {rates!r}")
    return {
        SPARSE: fields.count("compress_rate_csa", default=rates[SPARSE]),
        HEAVY: fields.count("compress_rate_hca", default=rates[HEAVY]),
    }


def _shape(fields: ConfigFields, serving: Serving) -> _Shape:
    hidden, heads, head_dim = fields.count("hidden_size"), fields.count("num_attention_heads"), fields.count("head_dim")
    serving.divided(fields, "num_attention_heads", heads)
    query_rank, output_rank, groups = fields.count("q_lora_rank"), fields.count("o_lora_rank"), fields.count("o_groups")
    streams, inner = fields.count("hc_mult"), fields.count("moe_intermediate_size")
    queries = query_rank * (hidden + heads * head_dim)
    output = output_rank * (heads * head_dim + groups * hidden)
    hyper_connections = 2 * (2 + streams) * streams * streams * hidden
    experts = routed_mlp(
        hidden=hidden,
        inner=inner,
        experts=fields.count("n_routed_experts", "num_local_experts"),
        active=fields.count("num_experts_per_tok"),
        shared_inner=inner,
    )
    return _Shape(
        head_dim=head_dim,
        score_flops=2 * heads * 2 * head_dim,
        body_weights=queries + output + hyper_connections + experts,
        window_weights=hidden * head_dim,
        window_tokens=fields.count("sliding_window", "window_size", minimum=2) - 1,
        vector=_vector(fields, serving, head_dim),
    )


def _vector(fields: ConfigFields, serving: Serving, head_dim: int) -> tuple[Part, ...]:
    """One token's or entry's key and value. With the dtype `fp8_ds_mla` as engines keep it for V4: the rope dims in bf16, the
    others in fp8, and 8 bytes of scales, one of them unused."""
    if serving.kv_dtype != FP8_DS_MLA:
        return (Part("entry", serving.kv_dtype, (head_dim,)),)
    rope = fields.count("qk_rope_head_dim")
    if fields.get("kv_source_layer_ids") is not None or (head_dim, rope) != (512, 64):
        raise fields.error("head_dim", f"must be 512, 64 of it rope, in a model of type deepseek_v4 for kv_dtype {FP8_DS_MLA}")
    return (
        Part("nope", "float8_e4m3fn", (head_dim - rope,)),
        Part("rope", "bfloat16", (rope,)),
        Part("scale", "uint8", (8,)),
    )


def _compressed(fields: ConfigFields, shape: _Shape, group: Sequence[_Compressor], *, page_size: int, owner: str) -> Component:
    """An overlapping compressor projects twice: a token counts for its own entry and for the next. A compressor of one token
    has no gate."""
    ratio = group[0].ratio
    layers = sum(len(each.layers) for each in group)
    widths = sum(len(each.keepers) * (2 if each.kind == SPARSE else 1) for each in group)
    projections = (1 if ratio == 1 else 2) * widths * fields.count("hidden_size") * shape.head_dim
    keepers = sorted(layer for each in group for layer in each.keepers)
    return compressed(
        page_size=page_size,
        tokens_per_slot=ratio,
        page_format=_format(f"c{ratio}", keepers, shape.vector, slots=page_size // ratio),
        shares=None if owner == f"c{ratio}" else owner,
        flops_per_token=2.0 * (layers * shape.body_weights + projections),
    )


def _compressed_costs(fields: ConfigFields, shape: _Shape, group: Sequence[_Compressor]) -> list[AttentionCost]:
    return [
        AttentionCost(
            component=f"c{each.ratio}",
            flops_per_entry=float(len(each.layers) * shape.score_flops),
            tokens_per_entry=each.ratio,
            max_entries=None if each.kind == HEAVY else fields.optional_count("index_topk"),
        )
        for each in group
    ]


def _indexer(fields: ConfigFields, serving: Serving, each: _Compressor, *, name: str, page_size: int, owner: str) -> Component:
    hidden, heads, dim = fields.count("hidden_size"), fields.count("index_n_heads"), fields.count("index_head_dim")
    fields.count("index_topk")
    weights = 4 * hidden * dim + fields.count("q_lora_rank") * heads * dim + hidden * heads
    usual = FP8_SCALED if serving.kv_dtype == FP8_DS_MLA else None
    return indexer(
        page_size=page_size,
        page_format=_format(name, each.keepers, serving.index_parts(fields, dim, usual=usual), slots=page_size // each.ratio),
        tokens_per_slot=each.ratio,
        shares=owner,
        flops_per_token=2.0 * len(each.keepers) * weights,
        name=name,
    )


def _indexer_cost(fields: ConfigFields, name: str, layers: int, ratio: int) -> AttentionCost:
    flops = 2.0 * layers * fields.count("index_n_heads") * fields.count("index_head_dim")
    return AttentionCost(component=name, flops_per_entry=flops, tokens_per_entry=ratio)


def _window_cost(component: str, shape: _Shape, layers: int) -> AttentionCost:
    flops = float(layers * shape.score_flops)
    return AttentionCost(component=component, flops_per_entry=flops, max_entries=shape.window_tokens + 1)


def _overlap(fields: ConfigFields, serving: Serving, layers: Sequence[int], ratio: int) -> Component:
    """kv and gate of the last entry's tokens, of the compressor and of the indexer; one state a page."""
    dtype = OVERLAP_DTYPE if serving.state_dtype is None else serving.state_dtype
    widths = {"": fields.count("head_dim"), "index ": fields.count("index_head_dim")}
    parts = [Part(f"{of}{name}", dtype, (ratio, width)) for of, width in widths.items() for name in ("kv", "gate")]
    return overlap(window_tokens=ratio, page_format=_format("overlap", layers, parts, slots=1))


def _format(component: str, layers: Iterable[int], parts: Sequence[Part], *, slots: int) -> PageFormat:
    """Nothing of this model divides over ranks."""
    return PageFormat(component=component, layer_ids=tuple(layers), parts=tuple(parts), slots_per_page=slots, shard=WHOLE)


def _window_format(component: str, shape: _Shape, layers: Iterable[int], page_size: int) -> PageFormat:
    parts = (replace(shape.vector[0], name="kv"),) if len(shape.vector) == 1 else shape.vector
    return _format(component, layers, parts, slots=page_size)


def _mtp(asked: int, shape: _Shape, page_size: int, layer_count: int) -> Component:
    """MTP layers have the window alone and follow it."""
    return draft(
        page_size=page_size,
        page_format=_window_format("draft", shape, range(layer_count, layer_count + asked), page_size),
        shares="swa",
        coverage=Trailing(shape.window_tokens),
        flops_per_token=2.0 * asked * (shape.window_weights + shape.body_weights),
    )
