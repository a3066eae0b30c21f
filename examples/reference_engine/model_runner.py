"""Runs a `transformers` model on one sequence whose state lies in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from reference_engine.layers import layer_states

if TYPE_CHECKING:
    from reference_engine.layer_pass import LayerState, Save
    from reference_engine.sequence_rows import SequenceRows
    from unified_tree.components import Composition


@dataclass(frozen=True, slots=True)
class Pass:
    """A completed run whose state is not written yet.

    Attributes:
        start: the position of its first token.
        logits: [token, vocabulary].
    """

    start: int
    logits: torch.Tensor
    _saves: Sequence[Save]

    def write(self, end: int | None = None) -> None:
        """Write the state of the tokens before `end`; None for all of them, which is all that recurrent layers can do."""
        for save in self._saves:
            save(self.start + len(self.logits) if end is None else end)

    def until(self, end: int) -> Pass:
        """The same without the tokens from `end` on."""
        return Pass(self.start, self.logits[: end - self.start], self._saves)


class ModelRunner:
    """One model, at one version of its weights.

    Args:
        model: a causal language model of `transformers`.
        composition: of the model, or of the model that it drafts for.
        full: the component that full attention's state is kept in; `draft` for a draft model.

    Attributes:
        layers: what connects each of the model's layers to the pools.
        components: that keep their state.
        can_cut: whether the state of a run's first tokens can be written without that of its last ones.
    """

    def __init__(self, model: Any, composition: Composition, *, full: str = "full") -> None:
        self.model = model
        self.layers: list[list[LayerState]] = layer_states(model, composition, full=full)
        used = {state.component for states in self.layers for state in states}
        self.components = tuple(component for component in composition.components if component.name in used)
        self.can_cut = all(state.can_cut for states in self.layers for state in states)

    @torch.no_grad()
    def run(self, rows: SequenceRows, tokens: Sequence[int], start: int, gate: Callable[[int], None] | None = None) -> Pass:
        """Run the tokens at the positions from `start` on.

        Args:
            rows: the sequence, whose state of the tokens [0, start) is read.
            gate: called with each layer's number before its state is read.
        """
        cache = DynamicCache(config=self.model.config)
        end = start + len(tokens)
        saves = []
        for layer_id, (layer, states) in enumerate(zip(cache.layers, self.layers, strict=True)):
            if gate is not None:
                gate(layer_id)
            rows.copy_cached_state(layer_id)
            saves += [state.open(layer, rows, start, end) for state in states]
        output = self.model(
            input_ids=torch.tensor([list(tokens)]),
            position_ids=torch.arange(start, end)[None],
            past_key_values=cache,
            use_cache=True,
        )
        return Pass(start, output.logits[0], saves)
