"""The time of a simulated server: steps of one length, and the virtual clock of what works beside them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines import VirtualClock

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.server.server_settings import ServerSettings

NS_PER_S = 1e9


class StepClock:
    """Counts steps. The virtual clock follows when it is told to, for transfers begin and end between two steps.

    Args:
        settings: how long a step takes.
        virtual: shared with engines, stores and linkers.

    Attributes:
        step: the current one; the server moves it on.
    """

    def __init__(self, settings: ServerSettings, virtual: VirtualClock | None = None) -> None:
        self.step = 0
        self.virtual = virtual or VirtualClock()
        self._step_ms = settings.step_ms
        self._step_ns = round(settings.step_ms * 1e6)

    @property
    def now_s(self) -> float:
        """Seconds at the beginning of the current step."""
        return self.seconds(self.step)

    @property
    def virtual_s(self) -> float:
        """Seconds on the virtual clock."""
        return self.virtual.now / NS_PER_S

    def seconds(self, steps: int) -> float:
        """How long so many steps take."""
        return steps * self._step_ms / 1000.0

    def catch_up(self) -> None:
        """Bring the virtual clock to the current step."""
        self.virtual.advance(max(0, self.step * self._step_ns - self.virtual.now))

    def step_at(self, time_ns: int | None) -> int | None:
        """The first step that begins no earlier than a virtual time; None for None."""
        return None if time_ns is None else -(-time_ns // self._step_ns)

    def step_reaching(self, time_s: float) -> int:
        """The same, of seconds."""
        return ceil(time_s * NS_PER_S / self._step_ns)

    def step_past(self, time_s: float) -> int:
        """The first step that begins later."""
        return int(time_s * NS_PER_S) // self._step_ns + 1


def earliest(*steps: int | None) -> int | None:
    """The smallest of these steps; None if there are none."""
    return min((step for step in steps if step is not None), default=None)


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
