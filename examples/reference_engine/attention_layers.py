"""Keys and values between pages and the cache layers of `transformers`: full attention, windows, indexed attention.

A row of a part is `[heads, dim]`; the cache layers hold `[1, heads, tokens, dim]`. What a layer adds is taken where it comes
in, at `update`, because a window forgets all but its last tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from reference_engine.layer_pass import Save
from unified_tree.controllers.pools import Part

if TYPE_CHECKING:
    from reference_engine.sequence_rows import SequenceRows
    from unified_tree.declare.suffix import Suffix


def part_of(name: str, rows: torch.Tensor) -> Part:
    """The part whose rows, `[row, *shape]`, these are."""
    return Part(name, str(rows.dtype).removeprefix("torch."), tuple(rows.shape[1:]))


def as_heads(rows: torch.Tensor) -> torch.Tensor:
    """`[token, heads, dim]` as a cache layer holds it."""
    return rows.transpose(0, 1).unsqueeze(0).contiguous()


def as_rows(heads: torch.Tensor) -> torch.Tensor:
    """A cache layer's tensor as `[token, heads, dim]`."""
    return heads[0].transpose(0, 1)


class Added:
    """Takes what a model adds to a cache layer. Where rows are kept already, they take the place of those computed again."""

    def __init__(self, layer: Any, kept: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        self.keys = self.values = torch.empty(0)
        self._kept = kept
        self._update = layer.update
        layer.update = self

    def __call__(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **options: Any) -> Any:
        if self._kept is not None:
            kept_keys, kept_values = self._kept
            count = kept_keys.shape[-2]
            keys = torch.cat([kept_keys, keys[..., count:, :]], dim=-2)
            values = torch.cat([kept_values, values[..., count:, :]], dim=-2)
        self.keys, self.values = keys, values
        return self._update(keys, values, *args, **options)


class FullAttention:
    """Every token's key and value; of MLA, its latent and its rope key."""

    can_cut = True

    def __init__(self, component: str, layer_id: int) -> None:
        self.component = component
        self.layer_id = layer_id

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        return {self.component: (part_of("k", as_rows(layer.keys)), part_of("v", as_rows(layer.values)))}

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:
        """See LayerState. A rebuild reads the cached rows of the tokens that it runs again."""
        if start:
            keys, values = self._read(rows, 0, start)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        kept_until = min(end, rows.kept_until(self.component))
        added = Added(layer, self._read(rows, start, kept_until) if start < kept_until else None)

        def save(saved_end: int) -> None:
            for part, heads in (("k", added.keys), ("v", added.values)):
                rows.write(self.component, self.layer_id, part, start, as_rows(heads)[: saved_end - start])

        return save

    def _read(self, rows: SequenceRows, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys = rows.read(self.component, self.layer_id, "k", first, last)
        return as_heads(keys), as_heads(rows.read(self.component, self.layer_id, "v", first, last))


class SlidingWindow:
    """The last tokens' keys and values, of a window or a chunk; one vector for both where a model has but one.

    Args:
        component: that keeps them.
        layer_id: model layer.
        needed: of which past tokens the layer reads them.
        shares_values: keys are values.
    """

    can_cut = True

    def __init__(self, component: str, layer_id: int, needed: Suffix, *, shares_values: bool) -> None:
        self.component = component
        self.layer_id = layer_id
        self.needed = needed
        self.shares_values = shares_values

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        if self.shares_values:
            return {self.component: (part_of("kv", as_rows(layer.keys)),)}
        return {self.component: (part_of("k", as_rows(layer.keys)), part_of("v", as_rows(layer.values)))}

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:  # noqa: ARG002
        """See LayerState. A cache layer's own `sliding_window` counts the query: one less are past tokens."""
        if start:
            first = max(self.needed.start(start), rows.window_from)
            if first < start:
                tensors = [as_heads(rows.read(self.component, self.layer_id, part, first, start)) for part in self._names]
                layer.lazy_initialization(tensors[0], tensors[-1])
                layer.keys, layer.values = tensors[0], tensors[-1]
            layer.cumulative_length = start
            if first > max(0, start - (layer.sliding_window - 1)):  # a chunk begins, or a rebuild with its windows empty
                layer.get_mask_sizes = lambda queries: (start - first + queries, first)
        added = Added(layer)

        def save(saved_end: int) -> None:
            for part, heads in zip(self._names, (added.keys, added.values), strict=False):
                rows.write(self.component, self.layer_id, part, start, as_rows(heads)[: saved_end - start])

        return save

    @property
    def _names(self) -> tuple[str, ...]:
        return ("kv",) if self.shares_values else ("k", "v")


class IndexKeys:
    """The keys of a sparse attention's indexer."""

    can_cut = True

    def __init__(self, component: str, layer_id: int) -> None:
        self.component = component
        self.layer_id = layer_id

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        return {self.component: (part_of("key", layer.indexer_keys[0]),)}

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:  # noqa: ARG002
        """See LayerState."""
        if start:
            keys = rows.read(self.component, self.layer_id, "key", 0, start).unsqueeze(0)
            layer.lazy_initialization_indexer(keys)
            layer.indexer_keys = keys

        def save(saved_end: int) -> None:
            rows.write(self.component, self.layer_id, "key", start, layer.indexer_keys[0, start:saved_end])

        return save
