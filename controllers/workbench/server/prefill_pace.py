"""How much prompt a step of the simulated server computes: a chunk of tokens, of no more FLOPs than its hardware does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.server.server_settings import ServerSettings


class PrefillPace:
    """What is left of a step. FLOPs that are too few for a token are kept for the next one, so that any rate gets on.

    Args:
        settings: a step's tokens and time, and the rate if there is one.
        composition: says what tokens cost at their place; None where there is no rate.
    """

    def __init__(self, settings: ServerSettings, composition: Composition | None = None) -> None:
        rate = settings.prefill_flops_per_s
        assert rate is None or composition is not None, "a rate of FLOPs needs what a token costs"
        self._chunk_tokens = settings.chunk_tokens
        self._step_flops = None if rate is None else rate * settings.step_ms / 1000.0
        self._composition = composition
        self._tokens = 0
        self._flops = 0.0

    def begin_step(self) -> None:
        """A new step; of the one before only a token's part is left."""
        self._tokens = self._chunk_tokens
        self._flops += self._step_flops or 0.0

    def end_step(self, *, has_more: bool) -> None:
        """The step is over. `has_more`: there is prompt left that it did not compute."""
        if not has_more or not self._tokens:
            self._flops = 0.0  # the hardware had nothing to do

    def max_tokens(self, start: int, end: int) -> int:
        """How many tokens of [start, end) the rest of the step computes. Cost: O(log tokens) sums of FLOPs."""
        most = min(self._tokens, end - start)
        if self._step_flops is None or self._cost(start, start + most) <= self._flops:
            return most
        least = 0  # which fits; `most` does not
        while most - least > 1:
            middle = (least + most) // 2
            if self._cost(start, start + middle) <= self._flops:
                least = middle
            else:
                most = middle
        return least

    def spend(self, start: int, end: int) -> None:
        """The tokens [start, end) are computed."""
        self._tokens -= end - start
        if self._step_flops is not None:
            self._flops -= self._cost(start, end)

    def _cost(self, start: int, end: int) -> float:
        assert self._composition is not None
        return self._composition.prefill_flops(start, end)
