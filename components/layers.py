"""What a model's layers keep and cost, and how such layers become a composition.

Layers declare what they keep as parts, with dtypes and shapes. A component's page format consists of these and of the layers'
numbers; its bytes follow from it. A number of bytes alone could not distinguish two models, dtypes or shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TypeAlias

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.draft import DraftModel, draft
from unified_tree.components.full import full
from unified_tree.components.indexer import indexer
from unified_tree.components.mamba import mamba
from unified_tree.components.serving import Serving
from unified_tree.components.swa import swa
from unified_tree.components.token_path import token_path
from unified_tree.declare.component import Component
from unified_tree.declare.page_format import PageFormat, Part
from unified_tree.terms.errors import ConfigurationError

DEFAULT_PAGE_SIZE = 64
"""Tokens a page where neither the caller nor the model asks for another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """An attention layer with the MLP that follows it.

    Attributes:
        parts: one token's KV on one rank.
        weights: active weights, over all ranks.
        flops_per_entry: score FLOPs of one query on one token.
        window_tokens: past tokens it sees; None for all.
        max_entries: how many tokens a sparse layer picks; None for all.
        shards: into how many different parts the ranks divide the KV; 1 where all keep the same.
    """

    parts: tuple[Part, ...]
    weights: int
    flops_per_entry: int
    window_tokens: int | None = None
    max_entries: int | None = None
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerLayer:
    """The indexer of a sparse attention layer: a token's key, weights, score FLOPs on one token. All ranks keep the same."""

    parts: tuple[Part, ...]
    weights: int
    flops_per_entry: int
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayer:
    """A recurrent layer with the MLP that follows it: a state on one rank, weights, a scan kernel's chunk, parts over ranks."""

    parts: tuple[Part, ...]
    weights: int
    chunk_tokens: int = 1
    shards: int = 1


Layer: TypeAlias = AttentionLayer | IndexerLayer | StateLayer
Numbered: TypeAlias = tuple[int, AttentionLayer | IndexerLayer]
"""A layer that scores, with the model's number of it."""


def compose(model_type: str, stack: Iterable[Sequence[Layer]], serving: Serving) -> Composition:
    """A composition of `full`, one `swa` a window, `indexer`, `mamba` and `draft`, as far as the layers have them.

    If no layer attends to the whole prefix, a `token_path` replaces `full`.

    Args:
        model_type: for errors.
        stack: what each of the model's layers keeps, in their order; an empty sequence for a layer that keeps nothing.
        serving: the deployment's choices.

    Raises ConfigurationError for a draft of a model without a layer that attends to its whole prefix.
    """
    page_size = DEFAULT_PAGE_SIZE if serving.page_size is None else serving.page_size
    stack = tuple(stack)
    numbered = [(layer_id, layer) for layer_id, layers in enumerate(stack) for layer in layers]
    attention = [(i, layer) for i, layer in numbered if isinstance(layer, AttentionLayer)]
    whole = [(i, layer) for i, layer in attention if layer.window_tokens is None]
    if whole:
        kept = _format("full", whole, page_size, serving)
        components = [full(page_size=page_size, page_format=kept, flops_per_token=_flops(whole))]
        costs = [AttentionCost(component="full", flops_per_entry=_scores(whole), max_entries=whole[0][1].max_entries)]
    else:
        components, costs = [token_path()], []

    windows = sorted({layer.window_tokens for _, layer in attention if layer.window_tokens is not None})
    for window_tokens in windows:
        name = "swa" if len(windows) == 1 else f"swa{window_tokens}"
        group = [(i, layer) for i, layer in attention if layer.window_tokens == window_tokens]
        components.append(
            swa(
                page_size=page_size,
                window_tokens=window_tokens,
                layers=len(group),
                page_format=_format(name, group, page_size, serving),
                flops_per_token=_flops(group),
                name=name,
            )
        )
        costs.append(AttentionCost(component=name, flops_per_entry=_scores(group), max_entries=window_tokens + 1))

    indexers = [(i, layer) for i, layer in numbered if isinstance(layer, IndexerLayer)]
    if indexers:
        kept = _format("indexer", indexers, page_size, serving)
        components.append(indexer(page_size=page_size, page_format=kept, flops_per_token=_flops(indexers)))
        costs.append(AttentionCost(component="indexer", flops_per_entry=_scores(indexers)))
    states = [(i, layer) for i, layer in numbered if isinstance(layer, StateLayer)]
    if states:
        components.append(_mamba(states, page_size, serving))
    if serving.draft and not whole:
        raise ConfigurationError(
            f"{model_type}: no layer attends to the whole prefix, so there are no pages that a draft's KV could share; "
            "leave `draft` out"
        )
    one_draft_layer: list[Numbered] = [*whole[:1], *indexers[:1]]
    drafted = _draft_model(serving, one_draft_layer, len(stack))
    if drafted is not None:
        kept = drafted.page_format(page_size)
        components.append(draft(page_size=page_size, page_format=kept, flops_per_token=drafted.flops_per_token))
        costs.append(AttentionCost(component="draft", flops_per_entry=drafted.flops_per_entry))
    return Composition(
        name=serving.name,
        page_size=page_size,
        components=tuple(components),
        attention_costs=tuple(costs),
        tensor_parallel=serving.ranks,
        rank=serving.rank,
    )


def _mamba(states: Sequence[tuple[int, StateLayer]], page_size: int, serving: Serving) -> Component:
    return mamba(
        page_format=_format("mamba", states, 1, serving),
        save_grid_tokens=lcm(page_size, *(layer.chunk_tokens for _, layer in states)),
        flops_per_token=_flops(states),
    )


def _draft_model(serving: Serving, one_layer: Sequence[Numbered], layer_count: int) -> DraftModel | None:
    """The draft asked for; a number of layers means layers like the model's own whole-prefix ones, numbered behind them."""
    if isinstance(serving.draft, DraftModel):
        return serving.draft
    if serving.draft == 0:
        return None
    return DraftModel(
        layer_ids=tuple(range(layer_count, layer_count + serving.draft)),
        parts=tuple(part for _, layer in one_layer for part in layer.parts),
        shard=serving.shard(one_layer[0][1].shards),
        flops_per_token=serving.draft * _flops(one_layer),
        flops_per_entry=serving.draft * _scores(one_layer),
    )


def _format(component: str, layers: Sequence[tuple[int, Layer]], slots: int, serving: Serving) -> PageFormat:
    """What a page of these layers holds; all of them keep the same."""
    parts, shards = layers[0][1].parts, layers[0][1].shards
    for layer_id, layer in layers:
        if (layer.parts, layer.shards) != (parts, shards):
            raise ConfigurationError(f"{component}: layer {layer_id} keeps {layer.parts}, layer {layers[0][0]} {parts}")
    ids = tuple(layer_id for layer_id, _ in layers)
    return PageFormat(component=component, layer_ids=ids, parts=parts, slots_per_page=slots, shard=serving.shard(shards))


def _flops(layers: Iterable[tuple[int, Layer]]) -> float:
    return 2.0 * sum(layer.weights for _, layer in layers)


def _scores(layers: Iterable[Numbered]) -> float:
    return float(sum(layer.flops_per_entry for _, layer in layers))
