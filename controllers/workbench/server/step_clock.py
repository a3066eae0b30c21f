"""The time of a simulated server: steps of one length, and the virtual clock of what works beside them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines import VirtualClock

if TYPE_CHECKING:
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
