"""Recurrent states between pages and the cache layers of `transformers`: Mamba, Mamba2, delta nets.

A convolution's state is kept there as `kernel` columns, of which the oldest is never read; a page holds the others.
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


class Recurrent:
    """The convolution's and the recurrence's state of one layer, at one position."""

    can_cut = False

    def __init__(self, component: str, layer_id: int) -> None:
        self.component = component
        self.layer_id = layer_id

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """See LayerState."""
        convolutions = tuple(part_of(f"conv{i}", state[..., 1:]) for i, state in _present(layer.conv_states))
        return {
            self.component: convolutions + tuple(part_of(f"ssm{i}", state) for i, state in _present(layer.recurrent_states))
        }

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:
        """See LayerState."""
        if start:
            for part in rows.pools[self.component].format.parts:
                index = int(part.name.removeprefix("conv").removeprefix("ssm"))
                state = rows.read_state(self.component, self.layer_id, part.name).unsqueeze(0)
                if part.name.startswith("conv"):
                    self._fill_convolution(layer, index, torch.nn.functional.pad(state, (1, 0)))
                else:
                    layer.recurrent_states[index] = state
                    layer.is_recurrent_states_initialized[index] = True

        def save(saved_end: int) -> None:
            assert saved_end == end, "a recurrent state is that of all tokens that ran"
            for index, state in _present(layer.conv_states):
                rows.write_state(self.component, self.layer_id, f"conv{index}", state[0, ..., 1:])
            for index, state in _present(layer.recurrent_states):
                rows.write_state(self.component, self.layer_id, f"ssm{index}", state[0])

        return save

    def _fill_convolution(self, layer: Any, index: int, state: torch.Tensor) -> None:
        layer.conv_states[index] = state
        layer.dtype, layer.device = state.dtype, state.device
        layer.conv_kernel_size[index] = state.shape[-1]
        layer.is_conv_states_initialized[index] = True
        layer.has_previous_state[index] = True


def _present(states: Mapping[int, torch.Tensor | None]) -> list[tuple[int, torch.Tensor]]:
    return [(index, state) for index, state in states.items() if state is not None]
