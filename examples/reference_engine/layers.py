"""Which components each layer of a `transformers` model keeps its state in, and what their pages hold.

Nothing here knows a model family: the cache that the model's own configuration makes says what each layer keeps, and a short
run says in which shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from reference_engine.attention_layers import FullAttention, IndexKeys, SlidingWindow
from reference_engine.compressed_layers import CompressedEntries, Overlap
from reference_engine.layer_pass import LayerState
from reference_engine.recurrent_layers import Recurrent
from unified_tree.controllers.pools import PageFormat, Part
from unified_tree.declare.coverage import Trailing
from unified_tree.declare.page_format import WHOLE
from unified_tree.declare.suffix import Suffix
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.declare.component import Component


def model_formats(model: Any, composition: Composition, *, full: str = "full") -> dict[str, PageFormat]:
    """What a page of each component holds, for `Composition.with_formats`; a single rank, so all of the state.

    Args:
        model: a causal language model of `transformers`.
        composition: of the model, at the dtypes it runs in.
        full: the component that full attention's state is kept in; `draft` for a draft model.

    Raises ConfigurationError where the model keeps other bytes than the composition says.
    """
    cache = _probe(model, composition.page_size)
    parts: dict[str, dict[int, tuple[Part, ...]]] = {}
    for layer_id, states in enumerate(_states(cache, composition, full)):
        for state in states:
            for component, of_layer in state.parts(cache.layers[layer_id]).items():
                parts.setdefault(component, {})[layer_id] = of_layer
    slots = {c.name: c.format.slots_per_page for c in composition.components if c.format is not None}
    formats = {name: _format(name, by_layer, slots[name]) for name, by_layer in parts.items()}
    for c in composition.components:
        kept = formats.get(c.name)
        if kept is not None and kept.page_bytes != c.page_bytes:
            raise ConfigurationError(
                f"{c.name}: the model's pages are {kept.page_bytes} bytes, the composition's {c.page_bytes}"
            )
    return formats


def layer_states(model: Any, composition: Composition, *, full: str = "full") -> list[list[LayerState]]:
    """What connects each layer of a model to the pools; a layer that keeps nothing has an empty list."""
    return _states(_probe(model, composition.page_size), composition, full)


def _format(component: str, parts: Mapping[int, tuple[Part, ...]], slots: int) -> PageFormat:
    first = next(iter(parts.values()))
    for layer_id, of_layer in parts.items():
        if of_layer != first:
            raise ConfigurationError(f"{component}: layer {layer_id} keeps {of_layer}, other layers {first}")
    return PageFormat(component=component, layer_ids=tuple(parts), parts=first, slots_per_page=slots, shard=WHOLE)


@torch.no_grad()
def _probe(model: Any, tokens: int) -> Any:
    """A cache that as many tokens have run through."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros(1, tokens, dtype=torch.long), past_key_values=cache, position_ids=torch.arange(tokens)[None])
    return cache


def _states(cache: Any, composition: Composition, full: str) -> list[list[LayerState]]:
    size = composition.page_size
    kept = _kept(composition, of_draft=full == "draft")
    states = {i: c.name for c, ids in kept for i in ids if c.coverage.is_exact}
    paths = {i: c.name for c, ids in kept for i in ids if c.coverage.is_path and c.tokens_per_slot == 1}
    windows = {i: c for c, ids in kept for i in ids if _is_window(c, size)}

    def of(layer_id: int, layer: Any) -> Sequence[LayerState]:
        found: list[LayerState] = []
        if isinstance(layer, LinearAttentionLayer):
            found.append(Recurrent(states[layer_id], layer_id))
        if isinstance(layer, DynamicSlidingWindowLayer):
            found.append(_window(layer_id, layer, windows.get(layer_id)))
        elif isinstance(layer, DynamicLayer):
            found.append(FullAttention(paths[layer_id], layer_id))
        if isinstance(layer, DynamicIndexedLayer) and layer.indexer_keys is not None:
            found.append(IndexKeys("indexer", layer_id))
        if hasattr(layer, "compressed_kv"):
            found += _compressed(layer_id, layer)
        return found

    return [list(of(layer_id, layer)) for layer_id, layer in enumerate(cache.layers)]


def _kept(composition: Composition, *, of_draft: bool) -> list[tuple[Component, tuple[int, ...]]]:
    """The components that keep the layers of the model or of its draft, and which."""
    own = [c for c in composition.components if c.name.startswith("draft") == of_draft and c.name != "indexer"]
    return [(c, c.format.layer_ids) for c in own if c.format is not None]


def _is_window(component: Component, page_size: int) -> bool:
    """A window of tokens; a state carried over with a window's page has one slot a page."""
    kept = component.format
    return component.coverage.suffix is not None and kept is not None and kept.slots_per_page == page_size


def _window(layer_id: int, layer: Any, component: Component | None) -> SlidingWindow:
    """What connects a window or a chunk, of which `transformers` keeps as many tokens as of a window."""
    past = layer.sliding_window - 1
    if component is None or (component.coverage.window_tokens or 0) < past:  # engines may keep one more
        raise ConfigurationError(f"layer {layer_id} needs {past} past tokens; the composition keeps {component}")
    assert layer.keys is not None and layer.values is not None
    shares_values = bool(torch.equal(layer.keys, layer.values))
    needed = Suffix(past) if isinstance(component.coverage, Trailing) else component.coverage.suffix
    assert needed is not None
    return SlidingWindow(component.name, layer_id, needed, shares_values=shares_values)


def _compressed(layer_id: int, layer: Any) -> list[LayerState]:
    entries = f"c{layer.compress_rate}"
    found: list[LayerState] = [
        CompressedEntries(entries if name == "compressor" else name, layer_id, name) for name in layer.compressed_kv
    ]
    if hasattr(layer, "overlap_kv"):
        found.append(Overlap("overlap", layer_id, tuple(layer.overlap_kv)))
    return found
