"""DeepSeek-V4: a window in every layer, and in most of them compressed KV of the whole prefix besides.

A layer has one of three kinds: the window alone; 4:1 compressed KV behind an indexer, with an overlap carried from entry to
entry; or 128:1 compressed KV, all of which is read. One vector per token or entry is key and value of all heads, so
tensor-parallel ranks do not divide it. The layers' MLPs and query and output projections are counted with the compressed KV, or
with the window where there is none; the window's own projection always with the window. Rebuild is not declared: it was not
tried with compressors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.compressed import compressed, overlap
from unified_tree.components.config_fields import ConfigFields
from unified_tree.components.draft import DraftModel, draft
from unified_tree.components.families.attention_fields import past_window
from unified_tree.components.families.schedules import SLIDING
from unified_tree.components.indexer import indexer
from unified_tree.components.layers import DEFAULT_PAGE_SIZE
from unified_tree.components.serving import Serving
from unified_tree.components.swa import swa
from unified_tree.components.weights import routed_mlp
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Trailing
from unified_tree.declare.page_format import WHOLE, PageFormat, Part
from unified_tree.terms.errors import ConfigurationError

SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
RATIO_KINDS = {0: SLIDING, 1: SLIDING, 4: SPARSE, 128: HEAVY}
"""The entries of `compress_ratios` in published files."""
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
    kv_dtype: str


def read_deepseek_v4(fields: ConfigFields, serving: Serving) -> Composition:
    """Components `c4` (or another ratio), `c128`, `indexer`, `swa`, `overlap` and `draft`, as far as the layers have them.

    The page size must be a multiple of every ratio; the default is the first such multiple from 64 on.
    """
    kinds = _kinds(fields, fields.count("num_hidden_layers"))
    if fields.count("num_key_value_heads", default=1) != 1:
        raise fields.error(
            "num_key_value_heads", f"must be 1: one vector is key and value, not {fields.get('num_key_value_heads')}"
        )
    for name in ("qk_rope_head_dim", "index_topk", "index_n_heads", "index_head_dim"):
        fields.understood(name)
    rates = _rates(fields)
    shape = _shape(fields, serving)
    ratios = sorted({rates[kind] for kind in kinds if kind != SLIDING})
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
        group = {layer: kind for layer, kind in enumerate(kinds) if kind != SLIDING and rates[kind] == ratio}
        components.append(_compressed(fields, shape, group, ratio=ratio, page_size=page_size, owner=owner))
        costs += _compressed_costs(fields, shape, list(group.values()), ratio)
    sparse_layers = [layer for layer, kind in enumerate(kinds) if kind == SPARSE]
    if sparse_layers:
        components.append(_indexer(fields, serving, sparse_layers, ratio=rates[SPARSE], page_size=page_size, owner=owner))
        costs.append(_indexer_cost(fields, len(sparse_layers), rates[SPARSE]))
    window_only = kinds.count(SLIDING)
    components.append(
        swa(
            page_size=page_size,
            window_tokens=shape.window_tokens,
            layers=len(kinds),
            page_format=_window_format("swa", shape, range(len(kinds)), page_size),
            flops_per_token=2.0 * (len(kinds) * shape.window_weights + window_only * shape.body_weights),
            exact_rebuild=False,
        )
    )
    costs.append(_window_cost("swa", shape, len(kinds)))
    if sparse_layers:
        components.append(_overlap(fields, serving, sparse_layers, rates[SPARSE]))
    if isinstance(serving.draft, DraftModel) or serving.draft:
        drafted, cost = _draft(serving.draft, shape, page_size, owner, len(kinds))
        components.append(drafted)
        costs.append(cost)
    return Composition(
        name=serving.name,
        page_size=page_size,
        components=tuple(components),
        attention_costs=tuple(costs),
        tensor_parallel=serving.ranks,
        rank=serving.rank,
    )


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
        window_tokens=past_window(fields),
        kv_dtype=serving.kv_dtype,
    )


def _compressed(
    fields: ConfigFields, shape: _Shape, group: Mapping[int, str], *, ratio: int, page_size: int, owner: str
) -> Component:
    """An overlapping compressor projects twice: a token counts for its own entry and for the next."""
    widths = sum(2 if kind == SPARSE else 1 for kind in group.values())
    projections = 2 * widths * fields.count("hidden_size") * shape.head_dim
    return compressed(
        page_size=page_size,
        tokens_per_slot=ratio,
        page_format=_format(f"c{ratio}", group, [Part("entry", shape.kv_dtype, (shape.head_dim,))], slots=page_size // ratio),
        shares=None if owner == f"c{ratio}" else owner,
        flops_per_token=2.0 * (len(group) * shape.body_weights + projections),
    )


def _compressed_costs(fields: ConfigFields, shape: _Shape, group: Sequence[str], ratio: int) -> list[AttentionCost]:
    costs = []
    for kind, max_entries in ((SPARSE, fields.optional_count("index_topk")), (HEAVY, None)):
        layers = group.count(kind)
        if layers:
            flops = float(layers * shape.score_flops)
            costs.append(
                AttentionCost(component=f"c{ratio}", flops_per_entry=flops, tokens_per_entry=ratio, max_entries=max_entries)
            )
    return costs


def _indexer(
    fields: ConfigFields, serving: Serving, layers: Sequence[int], *, ratio: int, page_size: int, owner: str
) -> Component:
    hidden, heads, dim = fields.count("hidden_size"), fields.count("index_n_heads"), fields.count("index_head_dim")
    fields.count("index_topk")
    weights = 4 * hidden * dim + fields.count("q_lora_rank") * heads * dim + hidden * heads
    return indexer(
        page_size=page_size,
        page_format=_format("indexer", layers, [Part("key", serving.kv_dtype, (dim,))], slots=page_size // ratio),
        tokens_per_slot=ratio,
        shares=owner,
        flops_per_token=2.0 * len(layers) * weights,
    )


def _indexer_cost(fields: ConfigFields, layers: int, ratio: int) -> AttentionCost:
    flops = 2.0 * layers * fields.count("index_n_heads") * fields.count("index_head_dim")
    return AttentionCost(component="indexer", flops_per_entry=flops, tokens_per_entry=ratio)


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
    return _format(component, layers, [Part("kv", shape.kv_dtype, (shape.head_dim,))], slots=page_size)


def _draft(
    asked: DraftModel | int, shape: _Shape, page_size: int, owner: str, layer_count: int
) -> tuple[Component, AttentionCost]:
    """MTP layers have the window alone and follow it; a draft model of its own follows the compressed KV."""
    if isinstance(asked, DraftModel):
        component = draft(
            page_size=page_size,
            page_format=asked.page_format(page_size),
            shares=owner,
            flops_per_token=asked.flops_per_token,
        )
        return component, AttentionCost(component="draft", flops_per_entry=asked.flops_per_entry)
    component = draft(
        page_size=page_size,
        page_format=_window_format("draft", shape, range(layer_count, layer_count + asked), page_size),
        shares="swa",
        coverage=Trailing(shape.window_tokens),
        flops_per_token=2.0 * asked * (shape.window_weights + shape.body_weights),
    )
    return component, _window_cost("draft", shape, asked)
