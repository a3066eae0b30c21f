"""`python -m benches.worlds --policies lru,density,benches.studies.ablations:no_places`: what does each part of it bring?

Each factory here makes `density` without one part. Native classes keep their parts, so this refuses a compiled core: run it in
a checkout that is not compiled. Silent on: parts that only matter together.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from benches.machine import core
from unified_tree.policies.density.hit_density import HitDensity
from unified_tree.policies.density.queues import COPIED_OFF, EARLIER, KIND_SHIFT, LAST_RESUMED, SESSION, WEIGHT_MASK, WHOLE
from unified_tree.policies.density.recency_shadow import RecencyShadow
from unified_tree.policies.density.survival import Survival
from unified_tree.policies.density.turns import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree import TreeView
    from unified_tree.nodes.line import Line
    from unified_tree.nodes.node import Value
    from unified_tree.nodes.order import Order
    from unified_tree.policies.density.turns import Place, Turn

if core() == "compiled":
    raise ImportError("a compiled order keeps its parts: run this in a checkout that is not compiled")


class OneGroup(Survival):
    """All turns are alike."""

    def learn(self, now: int) -> Iterator[None]:
        for turn in self._turns:
            turn.features = 0
        yield from super().learn(now)


class Falling(Survival):
    """Worth never rises with age."""

    def learn(self, now: int) -> Iterator[None]:
        yield from super().learn(now)
        self._worth = [list(accumulate(worth, min)) for worth in self._worth]
        self._lows = [[] for _ in self._worth]


class Unseen(RecencyShadow):
    """Recency is never ahead."""

    def _compare(self, came: int, lead: int) -> None:
        pass


class no_groups(HitDensity):
    """Groups of turns are never told apart."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth.turns = OneGroup(view.settings.remembered_turns)


class no_places(HitDensity):
    """Nothing is known of places where requests fork off."""

    def _fork(self, line: Line, length: int) -> Place | None:  # noqa: ARG002
        return None


class no_tokens_lost(HitDensity):
    """A window or a state is worth the same however many tokens its loss costs."""

    def _queue(self, value: Value) -> int:
        queue = int(super()._queue(value))
        return (queue & ~WEIGHT_MASK) + min(queue & WEIGHT_MASK, WHOLE)


class Shared(Reach):
    """Each turn is thought to share all that the turn before added."""

    def note(self, turn: Turn) -> None:
        pass


class no_reach(HitDensity):
    """It is not learned how far requests share what the turn before added."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._reach = Shared()


class no_copies(HitDensity):
    """A value is worth the same with and without a copy on the other tier."""

    def _queue(self, value: Value) -> int:
        queue = int(super()._queue(value))
        return queue + COPIED_OFF if value.copied and value.touched else queue


class no_earlier(HitDensity):
    """A window or a state that its session has a later one of is worth what the later one would be."""

    def _queue(self, value: Value) -> int:
        queue = int(super()._queue(value))
        return queue - ((EARLIER - SESSION) << KIND_SHIFT) if queue >> KIND_SHIFT == EARLIER else queue


class no_counts(HitDensity):
    """It is not counted how often sessions go on from their last window or state, and from an earlier one."""

    def _go_on(self, before: Turn, length: int) -> Turn:
        turn = super()._go_on(before, length)
        self._worth._resumed = [1.0, 1.0 / LAST_RESUMED]
        return turn


class no_shadow(HitDensity):
    """The learned order is never compared with recency."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._shadow = Unseen(view.settings, [self._window[i] for i in self._gates])


class no_settling(HitDensity):
    """A victim goes by the rank that it was placed with."""

    def next_victim(self, order: Order, first: Value) -> Value:
        return self._queues_of(first).least(order) or first


class no_rise(HitDensity):
    """A value is never worth more for waiting longer."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth.turns = Falling(view.settings.remembered_turns)
