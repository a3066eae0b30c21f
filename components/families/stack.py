"""The reader of models that are a stack of attention and recurrent layers: each layer's kind, and what a layer of it keeps.

A family is a `Rules` in `table.py`: the schedule that its class fills in for a missing list, the shape of its attention, its
recurrent state. Fields that hold for some layers only (`per_layer_config`, `swa_head_dim`, lists with one entry a layer) are
read for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from unified_tree.components.class_defaults import STATED
from unified_tree.components.composition import Composition
from unified_tree.components.config_fields import LAYERS, ConfigFields
from unified_tree.components.families.attention_fields import (
    any_mlp,
    grouped_query,
    grouped_query_layer,
    latent,
    latent_layer,
    past_window,
)
from unified_tree.components.families.schedules import (
    ATTENDING,
    CHUNKED,
    FULL,
    INDEXED,
    LIST_FIELDS,
    RECURRENT,
    WINDOWED,
    Schedule,
    everywhere,
    indexer_kinds,
    listed,
)
from unified_tree.components.layers import AttentionLayer, IndexerLayer, Layer, StateLayer, compose
from unified_tree.components.serving import FP8_SCALED, Serving
from unified_tree.components.weights import GroupedQueryAttention, LatentAttention
from unified_tree.terms.errors import ConfigurationError

Weights: TypeAlias = Callable[[ConfigFields, int], list[int] | None]
"""Active MLP weights of so many layers; None where the file does not say."""

GROUPED = "grouped"
LATENT = "latent"


def nothing(fields: ConfigFields) -> None:
    """No check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a family is read.

    Attributes:
        kinds: the kinds its layers may have.
        otherwise: the schedule for a file without a list of kinds; None where it must have the list.
        attention: `GROUPED` for keys and values of KV heads, `LATENT` for MLA.
        state: what a recurrent layer keeps; `conv` where layers of that kind keep something else.
        mlp: active MLP weights.
        gated: whether the query projection has a gate besides.
        wide: whether `v_head_dim` may differ from `head_dim`.
        window: past tokens of a window layer.
        check: raises for what the family cannot be read with.
        adapt: the fields under the names that are read here.
        defaults: fields that published files of the family leave out, and what that means.
        index_keys: the key of a sparse layer's indexer; None for one key of `index_head_dim` a token.
        beside: the state that one layer keeps besides what its kind says, by its number.
        understood: fields of published files that change nothing of what is read here.
        known: False for a type that is not known, whose fields mean nothing but what the layers make use of.
    """

    kinds: tuple[str, ...] = (FULL,)
    otherwise: Schedule | None = field(default=everywhere(FULL))
    attention: str = GROUPED
    state: Callable[[ConfigFields, Serving], StateLayer] | None = None
    conv: Callable[[ConfigFields, Serving], StateLayer] | None = None
    mlp: Weights = any_mlp
    gated: bool = False
    wide: bool = False
    window: Callable[[ConfigFields], int] = past_window
    check: Callable[[ConfigFields], None] = nothing
    adapt: Callable[[ConfigFields], ConfigFields] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    index_keys: Callable[[ConfigFields, Serving], IndexerLayer] | None = None
    beside: Callable[[ConfigFields, Serving, int], StateLayer | None] | None = None
    understood: tuple[str, ...] = ()
    known: bool = True


def read_stack(fields: ConfigFields, serving: Serving, rules: Rules) -> Composition:
    """The composition of a model that `rules` describe."""
    missing = {name: value for name, value in rules.defaults.items() if fields.get(name) is None}
    fields = fields.overlaid(missing)
    if rules.adapt is not None:
        fields = rules.adapt(fields)
    fields.understood(*rules.understood)
    layers = fields.count(LAYERS)
    rules.check(fields)
    kinds = listed(fields, layers, rules.kinds, rules.otherwise)
    if any(kind in ATTENDING for kind in kinds):
        for name, types in STATED.items():
            if fields.model_type in types and fields.get(name) is None:
                raise fields.error(name, "is missing, and has no value that follows from the others")
    mlp = rules.mlp(fields, layers)
    if rules.known or any(fields.get(name) is not None for name in LIST_FIELDS):
        _read_other_kinds(fields, serving, rules, kinds)
    indexers = indexer_kinds(fields, layers) if INDEXED in kinds else []
    sources = _kv_sources(fields, kinds)
    stack: list[list[Layer]] = []
    for number, kind in enumerate(kinds):
        own = fields.at_layer(number, windowed=kind in WINDOWED)
        weights = 0 if mlp is None else mlp[number]
        kept: list[Layer] = []
        if kind in ATTENDING:
            attention = _attention(own, serving, rules, kind, weights)
            kept.append(attention if sources[number] == number else replace(attention, parts=()))
        if kind == INDEXED and indexers[number] == "full":
            kept.append((rules.index_keys or index_keys)(own, serving))
        if kind in RECURRENT:
            state = _state(own, serving, rules, kind)
            kept.append(state if kind in ATTENDING else replace(state, weights=state.weights + weights))
        besides = None if rules.beside is None else rules.beside(own, serving, number)
        if besides is not None:
            kept.append(besides)
        stack.append(kept)
    if mlp is None:
        fields.notes.append("the file does not say how wide its MLPs are, so FLOPs are not stated")
    return compose(fields.model_type, stack, serving, states_flops=mlp is not None)


def _read_other_kinds(fields: ConfigFields, serving: Serving, rules: Rules, kinds: list[str]) -> None:
    """Ask for the fields of kinds of which this model has no layers, so that they are not taken for unknown."""
    for kind in sorted({*rules.kinds, FULL} - set(kinds)):
        with suppress(ConfigurationError):
            _attention(fields, serving, rules, kind, 0)
        with suppress(ConfigurationError):
            if kind == INDEXED:
                (rules.index_keys or index_keys)(fields, serving)
        with suppress(ConfigurationError):
            if kind == INDEXED:
                indexer_kinds(fields, len(kinds))
        with suppress(ConfigurationError):
            if kind in RECURRENT:
                _state(fields, serving, rules, kind)


def _attention(fields: ConfigFields, serving: Serving, rules: Rules, kind: str, mlp_weights: int) -> AttentionLayer:
    window = rules.window(fields) if kind in WINDOWED else None
    chunk = fields.count("attention_chunk_size", minimum=2) if kind == CHUNKED else None
    most = _most_entries(fields) if kind == INDEXED else None
    if rules.attention == LATENT:
        shape: LatentAttention = latent(fields)
        if kind == INDEXED and shape.query_rank is None and fields.get("kv_source_layers") is None:
            raise fields.error("q_lora_rank", "is missing")
        layer = latent_layer(fields, serving, shape, mlp_weights, max_entries=most)
    else:
        heads: GroupedQueryAttention = grouped_query(fields, gated=rules.gated, wide=rules.wide)
        layer = replace(grouped_query_layer(fields, serving, heads, mlp_weights), max_entries=most)
    return replace(layer, window_tokens=window, chunk_tokens=chunk)


def _most_entries(fields: ConfigFields) -> int | None:
    """How many tokens a sparse layer picks."""
    if fields.get("index_topk_blocks") is not None:
        local = fields.count("index_local_blocks", default=0, minimum=0)
        return (fields.count("index_topk_blocks") + local) * fields.count("index_block_size")
    return fields.count("index_topk", "indexer_budget")


def _state(fields: ConfigFields, serving: Serving, rules: Rules, kind: str) -> StateLayer:
    read = rules.conv if kind == "conv" and rules.conv is not None else rules.state
    if read is None:
        raise fields.error("layer_types", f"names {kind!r} layers, whose state is not known for this model type")
    return read(fields, serving)


def index_keys(fields: ConfigFields, serving: Serving) -> IndexerLayer:
    """One key of `index_head_dim` a token, or every `index_kpool` tokens."""
    heads, dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    hidden = fields.count("hidden_size")
    rank = fields.optional_count("q_lora_rank") or hidden
    fields.understood("index_kpool_always_select_tail", "index_share_for_mtp_iteration")
    return IndexerLayer(
        parts=serving.index_parts(fields, dim, usual=FP8_SCALED if fields.get("kv_lora_rank") is not None else None),
        weights=rank * heads * dim + hidden * (dim + heads),
        flops_per_entry=2 * heads * dim,
        tokens_per_slot=fields.count("index_kpool", "indexer_compress_ratio", default=1),
    )


def _kv_sources(fields: ConfigFields, kinds: list[str]) -> list[int]:
    """The layer whose KV each layer reads, mostly its own.

    By `kv_source_layers`, or by `num_kv_shared_layers`: that many last layers read the KV of the last layer before them of
    their kind.
    """
    layers = len(kinds)
    given = fields.list_of(int, "kv_source_layers")
    if given is not None:
        if len(given) != layers or any(not 0 <= source <= layer for layer, source in enumerate(given)):
            raise fields.error("kv_source_layers", f"must name an earlier layer, or itself, for each of {layers} layers")
        if any(given[source] != source or kinds[source] != kinds[layer] for layer, source in enumerate(given)):
            raise fields.error("kv_source_layers", "names a layer that has no KV of its own, or is of another kind")
        return given
    shared = fields.count("num_kv_shared_layers", default=0, minimum=0)
    if shared >= layers:
        raise fields.error("num_kv_shared_layers", f"must be below the number of layers ({layers}), not {shared}")
    first = layers - shared
    sources = list(range(layers))
    for layer in range(first, layers):
        earlier = [source for source in range(first) if kinds[source] == kinds[layer]]
        if not earlier:
            raise fields.error("num_kv_shared_layers", f"makes layer {layer} share the KV of a {kinds[layer]} layer before it")
        sources[layer] = earlier[-1]
    return sources
