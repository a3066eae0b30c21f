"""What a model's layers keep and cost, and how such layers become a composition.

Layers declare what they keep as parts, with dtypes and shapes. A component's page format consists of these and of the layers'
numbers; its bytes follow from it. A number of bytes alone could not distinguish two models, dtypes or shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TypeAlias

from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.draft import DraftModel
from unified_tree.components.kinds import full, indexer, mamba, swa, token_path
from unified_tree.components.serving import Serving
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Chunked
from unified_tree.declare.page_format import PageFormat, Part
from unified_tree.terms.errors import ConfigurationError

DEFAULT_PAGE_SIZE = 64
"""Tokens a page where neither the caller nor the model asks for another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """An attention layer with the MLP that follows it.

    Attributes:
        parts: one token's KV on one rank; empty for a layer that reads the KV of another one.
        weights: active weights, over all ranks.
        flops_per_entry: score FLOPs of one query on one token.
        window_tokens: past tokens it sees; None for all.
        chunk_tokens: it sees the tokens since the last multiple of this; None for no such limit.
        max_entries: how many tokens a sparse layer picks; None for all.
        shards: into how many different parts the ranks divide the KV; 1 where all keep the same.
    """

    parts: tuple[Part, ...]
    weights: int
    flops_per_entry: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    max_entries: int | None = None
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerLayer:
    """The indexer of a sparse attention layer: a token's key, weights, score FLOPs on one key, and how many tokens one key
    stands for. All ranks keep the same."""

    parts: tuple[Part, ...]
    weights: int
    flops_per_entry: int
    tokens_per_slot: int = 1
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayer:
    """A recurrent layer with the MLP that follows it.

    It has a state on one rank, weights, a scan kernel's chunk, parts over ranks, and the name of the component that keeps it.
    """

    parts: tuple[Part, ...]
    weights: int
    chunk_tokens: int = 1
    shards: int = 1
    name: str = "mamba"


Layer: TypeAlias = AttentionLayer | IndexerLayer | StateLayer
Numbered: TypeAlias = tuple[int, AttentionLayer | IndexerLayer]
"""A layer that scores, with the model's number of it."""


def compose(model_type: str, stack: Iterable[Sequence[Layer]], serving: Serving, *, states_flops: bool = True) -> Composition:
    """A composition of `full`, a `swa` for each window, a `chunked` for each chunk size, `indexer`, `mamba` and `draft`.

    Layers of one kind whose KV differs in shape are components of their own (`full`, `full_2`), which share the device pages of
    the first; so are states of different shapes. If no layer attends to the whole prefix, a `token_path` replaces `full`.

    Args:
        model_type: for errors.
        stack: what each of the model's layers keeps, in their order; an empty sequence for a layer that keeps nothing.
        serving: the deployment's choices.
        states_flops: False where the weights are not known.

    Raises ConfigurationError for a draft of a model without a layer that attends to its whole prefix.
    """
    page_size = DEFAULT_PAGE_SIZE if serving.page_size is None else serving.page_size
    stack = tuple(stack)
    numbered = [(layer_id, layer) for layer_id, layers in enumerate(stack) for layer in layers]
    attention = [(i, layer) for i, layer in numbered if isinstance(layer, AttentionLayer)]
    indexers = [(i, layer) for i, layer in numbered if isinstance(layer, IndexerLayer)]
    reach = {(layer.window_tokens, layer.chunk_tokens) for _, layer in attention}
    windows = sorted(window for window, _ in reach if window is not None)
    chunks = sorted(chunk for _, chunk in reach if chunk is not None)
    whole = [(i, layer) for i, layer in attention if layer.window_tokens is None and layer.chunk_tokens is None]
    costs: list[AttentionCost] = []
    components: list[Component] = []
    for name, group in _groups(model_type, "full", whole).items():
        kept = _format(name, group, page_size, serving)
        path = full(page_size=page_size, page_format=kept, flops_per_token=_flops(group), name=name)
        components.append(path if name == "full" else replace(path, shares="full"))
        costs += _attention_costs(name, group)
    if not components:
        components.append(token_path())
    for window_tokens in windows:
        base = "swa" if len(windows) == 1 else f"swa{window_tokens}"
        same = [(i, layer) for i, layer in attention if layer.window_tokens == window_tokens]
        for name, group in _groups(model_type, base, same).items():
            window = swa(
                page_size=page_size,
                window_tokens=window_tokens,
                layers=len(group),
                page_format=_format(name, group, page_size, serving),
                flops_per_token=_flops(group),
                exact_rebuild=not indexers,
                name=name,
            )
            components.append(window if name == base else replace(window, shares=base))
            costs += _attention_costs(name, group)
    for chunk_tokens in chunks:
        base = "chunked" if len(chunks) == 1 else f"chunked{chunk_tokens}"
        same = [(i, layer) for i, layer in attention if layer.chunk_tokens == chunk_tokens]
        for name, group in _groups(model_type, base, same).items():
            kept = _format(name, group, page_size, serving)
            shares = None if name == base else base
            coverage = Chunked(chunk_tokens)
            components.append(
                Component(name=name, coverage=coverage, flops_per_token=_flops(group), format=kept, shares=shares)
            )
            costs += _attention_costs(name, group)
    if indexers:
        components.append(_indexer(model_type, indexers, page_size, serving))
        slot = indexers[0][1].tokens_per_slot
        costs.append(AttentionCost(component="indexer", flops_per_entry=_scores(indexers), tokens_per_entry=slot))
    states = [(i, layer) for i, layer in numbered if isinstance(layer, StateLayer)]
    components += _states(states, page_size, serving)
    drafts = _drafts(serving, whole, indexers, len(stack))
    if not whole and any(each.window_tokens is None for each in drafts):
        raise ConfigurationError(
            f"{model_type}: no layer attends to the whole prefix, so there are no pages that a draft's KV could share; "
            "leave `draft` out"
        )
    components += [each.component(page_size, "full") for each in drafts]
    costs += [each.attention_cost() for each in drafts]
    if not states_flops:
        components, costs = [replace(component, flops_per_token=0.0) for component in components], []
    return Composition(
        name=serving.name,
        page_size=page_size,
        components=tuple(components),
        attention_costs=tuple(costs),
        tensor_parallel=serving.ranks,
        rank=serving.rank,
    )


Group: TypeAlias = list[tuple[int, AttentionLayer]]


def _groups(model_type: str, base: str, layers: Group) -> dict[str, Group]:
    """Layers of one coverage, grouped by their pages' format; the first group has the name `base`. A layer that reads the KV
    of another layer counts with the first group."""
    found: dict[tuple[object, int], Group] = {}
    for layer_id, layer in layers:
        if layer.parts:
            found.setdefault((layer.parts, layer.shards), []).append((layer_id, layer))
    readers = [(i, layer) for i, layer in layers if not layer.parts]
    if readers and not found:
        raise ConfigurationError(f"{model_type}: layer {readers[0][0]} shares the KV of a layer of its kind, and there is none")
    groups = {base if not number else f"{base}_{number + 1}": group for number, group in enumerate(found.values())}
    if readers:
        groups[base] = sorted([*groups[base], *readers], key=lambda each: each[0])
    return groups


def _attention_costs(component: str, group: Group) -> list[AttentionCost]:
    """The FLOPs of a group's scores, by how many entries a query sees."""
    found: dict[int | None, float] = {}
    for _, layer in group:
        limit = layer.max_entries
        if layer.window_tokens is not None:
            limit = layer.window_tokens + 1
        elif layer.chunk_tokens is not None:
            limit = max(1, layer.chunk_tokens // 2)  # on average over a chunk
        found[limit] = found.get(limit, 0.0) + layer.flops_per_entry
    return [AttentionCost(component=component, flops_per_entry=cost, max_entries=limit) for limit, cost in found.items()]


def _indexer(model_type: str, indexers: Sequence[tuple[int, IndexerLayer]], page_size: int, serving: Serving) -> Component:
    slot = indexers[0][1].tokens_per_slot
    if any(layer.tokens_per_slot != slot for _, layer in indexers):
        raise ConfigurationError(f"{model_type}: index keys of different layers stand for different numbers of tokens")
    if page_size % slot:
        raise ConfigurationError(f"indexer: page_size {page_size} is not a multiple of tokens_per_slot {slot}")
    return indexer(
        page_size=page_size,
        page_format=_format("indexer", indexers, page_size // slot, serving),
        tokens_per_slot=slot,
        flops_per_token=_flops(indexers),
    )


def _states(states: Sequence[tuple[int, StateLayer]], page_size: int, serving: Serving) -> list[Component]:
    """One component a shape of state. One page holds all states of a boundary: the later ones share those of the first."""
    found: dict[tuple[object, ...], list[tuple[int, StateLayer]]] = {}
    for layer_id, layer in states:
        found.setdefault((layer.name, layer.parts, layer.shards), []).append((layer_id, layer))
    grid = lcm(page_size, *(layer.chunk_tokens for _, layer in states))
    components: list[Component] = []
    for (name, *_), group in found.items():
        taken = sum(component.name.partition("_")[0] == name for component in components)
        own = str(name) if not taken else f"{name}_{taken + 1}"
        state = mamba(
            page_format=_format(own, group, 1, serving), save_grid_tokens=grid, flops_per_token=_flops(group), name=own
        )
        components.append(replace(state, shares=components[0].name) if components else state)
    return components


def _drafts(
    serving: Serving, whole: Sequence[Numbered], indexers: Sequence[Numbered], layer_count: int
) -> tuple[DraftModel, ...]:
    """The draft asked for; a number of layers means layers like the model's own whole-prefix ones, numbered behind them."""
    if not isinstance(serving.draft, int):
        return serving.draft
    if serving.draft == 0:
        return ()
    one_layer = [*whole[:1], *indexers[:1]]
    drafted = DraftModel(
        layer_ids=tuple(range(layer_count, layer_count + serving.draft)),
        parts=tuple(part for _, layer in one_layer for part in layer.parts),
        shard=serving.shard(one_layer[0][1].shards) if one_layer else None,
        flops_per_token=serving.draft * _flops(one_layer),
        flops_per_entry=serving.draft * _scores(one_layer),
    )
    return (drafted,)


def _format(component: str, layers: Sequence[tuple[int, Layer]], slots: int, serving: Serving) -> PageFormat:
    """The parts of a page of these layers; all layers that keep anything keep the same."""
    keeping = [(layer_id, layer) for layer_id, layer in layers if layer.parts]
    parts, shards = keeping[0][1].parts, keeping[0][1].shards
    for layer_id, layer in keeping:
        if (layer.parts, layer.shards) != (parts, shards):
            raise ConfigurationError(f"{component}: layer {layer_id} keeps {layer.parts}, layer {keeping[0][0]} {parts}")
    ids = tuple(layer_id for layer_id, _ in keeping)
    return PageFormat(component=component, layer_ids=ids, parts=parts, slots_per_page=slots, shard=serving.shard(shards))


def _flops(layers: Iterable[tuple[int, Layer]]) -> float:
    return 2.0 * sum(layer.weights for _, layer in layers)


def _scores(layers: Iterable[Numbered]) -> float:
    return float(sum(layer.flops_per_entry for _, layer in layers))
