"""Compressed KV between pages and the cache layers of `transformers` (DeepSeek-V4).

An entry stands for `compress_rate` tokens and lies in the slot of the page that they end in. An overlapping compressor carries
what the last full group of tokens contributes to the next entry: one state a page, of the page's last full group. Tokens that
have not filled an entry are kept aside with the sequence; at a page's end there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from reference_engine.attention_layers import part_of
from reference_engine.layer_pass import Save
from unified_tree.controllers.pools import Part

if TYPE_CHECKING:
    from reference_engine.sequence_rows import SequenceRows


class CompressedEntries:
    """The entries of one compressor, and the rows on their way to the next one.

    Args:
        component: of the entries.
        layer_id: model layer.
        compressor: the compressor's name in the cache layer.
    """

    can_cut = False

    def __init__(self, component: str, layer_id: int, compressor: str) -> None:
        self.component = component
        self.layer_id = layer_id
        self.compressor = compressor

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        return {self.component: (part_of("entry", layer.compressed_kv[self.compressor][0]),)}

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:
        """See LayerState."""
        name, rate = self.compressor, layer.compress_rate
        held = start // rate
        if held:
            entries = rows.read(self.component, self.layer_id, "entry", 0, held * rate)
            layer.compressed_kv[name] = entries.unsqueeze(0)
            layer.entry_count[name] = held
        waiting = {"kv": layer.buffer_kv, "gate": layer.buffer_gate}
        if start % rate:
            for kind, buffers in waiting.items():
                buffers[name] = rows.buffers[self.layer_id, name, kind].clone()

        def save(saved_end: int) -> None:
            assert saved_end == end, "a compressor's rows are those of all tokens that ran"
            entries = layer.compressed_kv[name][0, held:]
            rows.write(self.component, self.layer_id, "entry", held * rate, entries)
            for kind, buffers in waiting.items():
                rows.buffers[self.layer_id, name, kind] = buffers[name].clone()

        return save


class Overlap:
    """What the last full group of tokens contributes to the next entry, of one layer's compressors."""

    can_cut = False

    def __init__(self, component: str, layer_id: int, compressors: tuple[str, ...]) -> None:
        self.component = component
        self.layer_id = layer_id
        self.compressors = compressors

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        return {
            self.component: tuple(
                part_of(f"{name} {kind}", states[name])
                for name in self.compressors
                for kind, states in (("kv", layer.overlap_kv), ("gate", layer.overlap_gate))
            )
        }

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:
        """See LayerState. Every page that a run ends gets its own state, so that each page's end can be resumed from."""
        rate, size = layer.compress_rate, rows.page_size
        groups = start // rate
        if groups:
            page = (groups * rate - 1) // size
            for name in self.compressors:
                for kind, states in (("kv", layer.overlap_kv), ("gate", layer.overlap_gate)):
                    states[name] = rows.read_page(self.component, self.layer_id, f"{name} {kind}", page).unsqueeze(0)
        seen = _Groups(layer)

        def save(saved_end: int) -> None:
            assert saved_end == end, "a compressor's overlap is that of all tokens that ran"
            for (name, kind), states in seen.states.items():
                for group, state in enumerate(states, start=groups):
                    is_last = group == groups + len(states) - 1 or (group + 1) * rate % size == 0
                    if is_last:
                        page = ((group + 1) * rate - 1) // size
                        rows.write_page(self.component, self.layer_id, f"{name} {kind}", page, state)

        return save


class _Groups:
    """Takes the contributions of every full group of a run; a cache layer keeps those of the last one."""

    def __init__(self, layer: Any) -> None:
        self.states: dict[tuple[str, str], torch.Tensor] = {}
        self._update = layer.update_overlap_state
        layer.update_overlap_state = self

    def __call__(self, name: str, kv: torch.Tensor, gate: torch.Tensor, head_dim: int) -> Any:
        self.states[name, "kv"] = kv[0, ..., :head_dim].clone()
        self.states[name, "gate"] = gate[0, ..., :head_dim].clone()
        return self._update(name, kv, gate, head_dim)
