"""`python -m benches.worlds --policies lru,density,benches.studies.ablations:no_places`: what does each part of it bring?

Each factory here makes `density` without one part. Native classes keep their parts, so this refuses a compiled core: run it in
a checkout that is not compiled. Silent on: parts that only matter together.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from benches.machine import core
from unified_tree.policies.density.hit_density import HitDensity
from unified_tree.policies.density.recency_shadow import RecencyShadow
from unified_tree.policies.density.survival import Survival
from unified_tree.policies.density.turns import Reach
from unified_tree.policies.density.worth import COPIED, LAST_RESUMED, Worth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree import TreeView
    from unified_tree.nodes.line import Line
    from unified_tree.nodes.node import Node, Value
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

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth = OneToken(view, self._worth)


class OneToken(Worth):
    """The loss of a value costs one token."""

    def __init__(self, view: TreeView, of: Worth) -> None:
        super().__init__(view, of._is_path, of._window)

    def _tokens(self, value: Value) -> float:
        return COPIED if value.copied else 1.0


class Alone(OneToken):
    """The other tier has nothing."""

    def _tokens(self, value: Value) -> float:
        tokens = Worth._tokens(self, value)
        return tokens / COPIED if value.copied else tokens


class AllLast(OneToken):
    """Each window and state is its session's last one."""

    def _tokens(self, value: Value) -> float:
        return Worth._tokens(self, value)

    def _share(self, value: Value, turn: Turn) -> float:
        return super()._share(value, turn) if self._is_path[value.component] else self._resumed[0]


class Shared(Reach):
    """Each turn is thought to share all that the turn before added."""

    def note(self, turn: Turn) -> None:
        pass


class no_reach(HitDensity):
    """It is not learned how far requests share what the turn before added."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth.reach = Shared()


class no_copies(HitDensity):
    """A value is worth the same with and without a copy on the other tier."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth = Alone(view, self._worth)


class no_earlier(HitDensity):
    """A window or a state that its session has a later one of is worth what the later one would be."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth = AllLast(view, self._worth)


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
        self._shadow = Unseen(view.settings, [self._worth._window[i] for i in self._gates])


class no_look_at_earlier(HitDensity):
    """The windows and states before a session's last ones are found by the hand alone."""

    def _look_at_earlier(self, node: Node, length: int) -> None:
        pass


class no_rise(HitDensity):
    """A value is never worth more for waiting longer."""

    def __init__(self, view: TreeView) -> None:
        super().__init__(view)
        self._worth.turns = Falling(view.settings.remembered_turns)
