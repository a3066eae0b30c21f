"""What a model's layers keep and cost, and how such layers become a composition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TypeAlias

from unified_tree.component import Component
from unified_tree.components.attention_cost import AttentionCost
from unified_tree.components.composition import Composition
from unified_tree.components.draft import DraftModel, draft
from unified_tree.components.full import full
from unified_tree.components.indexer import indexer
from unified_tree.components.mamba import mamba
from unified_tree.components.serving import Serving
from unified_tree.components.swa import swa
from unified_tree.errors import ConfigurationError

DEFAULT_PAGE_SIZE = 64
"""Tokens a page where neither the caller nor the model asks for another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """An attention layer with the MLP that follows it.

    Attributes:
        bytes_per_token: bytes of one token's KV on one rank.
        weights: active weights, over all ranks.
        flops_per_entry: score FLOPs of one query on one token.
        window_tokens: past tokens it sees; None for all.
        most_entries: how many tokens a sparse layer picks; None for all.
    """

    bytes_per_token: int
    weights: int
    flops_per_entry: int
    window_tokens: int | None = None
    most_entries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerLayer:
    """The indexer of a sparse attention layer: bytes a token on one rank, weights, score FLOPs on one token."""

    bytes_per_token: int
    weights: int
    flops_per_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayer:
    """A recurrent layer with the MLP that follows it: bytes of a state on one rank, weights, a scan kernel's chunk."""

    state_bytes: int
    weights: int
    chunk_tokens: int = 1


Layer: TypeAlias = AttentionLayer | IndexerLayer | StateLayer


def compose(model_type: str, layers: Iterable[Layer], serving: Serving) -> Composition:
    """A composition of `full`, one `swa` a window, `indexer`, `mamba` and `draft`, as far as `layers` have them.

    Raises ConfigurationError for a model without a layer that attends to its whole prefix.
    """
    page_size = DEFAULT_PAGE_SIZE if serving.page_size is None else serving.page_size
    layers = tuple(layers)
    attention = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    whole = [layer for layer in attention if layer.window_tokens is None]
    if not whole:
        raise ConfigurationError(
            f"{model_type}: no layer attends to the whole prefix (all are windows or recurrent states), "
            "and a tree needs at least one such layer to hold its path"
        )
    components = [full(page_size=page_size, bytes_per_token=_bytes(whole), flops_per_token=_flops(whole))]
    costs = [AttentionCost(component="full", flops_per_entry=_scores(whole), most_entries=whole[0].most_entries)]

    windows = sorted({layer.window_tokens for layer in attention if layer.window_tokens is not None})
    for window_tokens in windows:
        name = "swa" if len(windows) == 1 else f"swa{window_tokens}"
        group = [layer for layer in attention if layer.window_tokens == window_tokens]
        components.append(
            swa(
                page_size=page_size,
                window_tokens=window_tokens,
                layers=len(group),
                bytes_per_token=_bytes(group),
                flops_per_token=_flops(group),
                name=name,
            )
        )
        costs.append(AttentionCost(component=name, flops_per_entry=_scores(group), most_entries=window_tokens + 1))

    indexers = [layer for layer in layers if isinstance(layer, IndexerLayer)]
    if indexers:
        components.append(indexer(page_size=page_size, bytes_per_slot=_bytes(indexers), flops_per_token=_flops(indexers)))
        costs.append(AttentionCost(component="indexer", flops_per_entry=_scores(indexers)))
    states = [layer for layer in layers if isinstance(layer, StateLayer)]
    if states:
        components.append(_mamba(states, page_size))
    one_draft_layer: list[AttentionLayer | IndexerLayer] = [whole[0], *indexers[:1]]
    drafted = _draft_model(serving, one_draft_layer)
    if drafted is not None:
        components.append(
            draft(page_size=page_size, bytes_per_token=drafted.bytes_per_token, flops_per_token=drafted.flops_per_token)
        )
        costs.append(AttentionCost(component="draft", flops_per_entry=drafted.flops_per_entry))
    return Composition(name=serving.name, page_size=page_size, components=tuple(components), attention_costs=tuple(costs))


def _mamba(states: Sequence[StateLayer], page_size: int) -> Component:
    return mamba(
        state_bytes=sum(layer.state_bytes for layer in states),
        save_grid_tokens=lcm(page_size, *(layer.chunk_tokens for layer in states)),
        flops_per_token=_flops(states),
    )


def _draft_model(serving: Serving, one_layer: Sequence[AttentionLayer | IndexerLayer]) -> DraftModel | None:
    """The draft asked for; a number of layers means layers like the model's own whole-prefix ones."""
    if isinstance(serving.draft, DraftModel):
        return serving.draft
    if serving.draft == 0:
        return None
    return DraftModel(
        bytes_per_token=serving.draft * _bytes(one_layer),
        flops_per_token=serving.draft * _flops(one_layer),
        flops_per_entry=serving.draft * _scores(one_layer),
    )


def _bytes(layers: Iterable[AttentionLayer | IndexerLayer]) -> int:
    return sum(layer.bytes_per_token for layer in layers)


def _flops(layers: Iterable[Layer]) -> float:
    return 2.0 * sum(layer.weights for layer in layers)


def _scores(layers: Iterable[AttentionLayer | IndexerLayer]) -> float:
    return float(sum(layer.flops_per_entry for layer in layers))
