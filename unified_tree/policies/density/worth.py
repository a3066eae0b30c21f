"""The worth of a value now: the hits that it promises for each tick and token of its room.

Worth is the rate at which the value's session goes on (`Survival`), or its place is used (`Places`), whichever is larger, times
the tokens that its loss costs for each token or state that it frees: of a state or a window those back to the boundary before
(`tokens_lost`), of a token of path itself, as far as the next request shares it (`Reach`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from unified_tree.policies.density.survival import Survival
from unified_tree.policies.density.turns import Place, Places, Reach, Turn, latest, session_of
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.line import Line
    from unified_tree.nodes.node import Value
    from unified_tree.policies.tree_view import TreeView

COPIED: Final = 1 / 16
"""To load a value from the other tier costs about so much of computing it."""
COUNTED_AGES: Final = 64.0
"""Of about so many values that went, the age at which they did is noted."""
LAST_RESUMED: Final = 4.0
"""Before anything is known a session's last window or state is resumed from so many times as often as an earlier one."""
UNTOLD: Final = "of a text without a session"
SESSION: Final = "of a session"
EARLIER: Final = "before the last one of its session, resumed from {:.1%} as often as that"
ONCE: Final = "requests fork off here, once so far"
PLACE: Final = "requests fork off here, about every {:,.0f} ticks"


@mypyc_attr(acyclic=True)
class Reason:
    """The parts of a value's worth.

    Attributes:
        used: the tick of its last use; 0 if it was never used, or is superseded.
        tokens: how many its loss costs for each token or state that it frees, as far as requests need it.
        kind: one of the texts above, and figure: its number.
        share: how many sessions like its own go on; negative if it has none, or nothing is learned.
        by_recency: last uses decide instead. is_learned: something is learned.
    """

    __slots__ = ("by_recency", "figure", "is_learned", "kind", "share", "tokens", "used")

    def __init__(self, used: int, tokens: float, kind: str, figure: float, share: float) -> None:
        self.used = used
        self.tokens = tokens
        self.kind = kind
        self.figure = figure
        self.share = share
        self.by_recency = False
        self.is_learned = False

    def words(self) -> tuple[str, str]:
        """The value in words, and the cost of its loss; the latter is empty where it is its own tokens."""
        if not self.used:
            return "never used, or superseded", ""
        said = self.kind.format(self.figure)
        if self.share >= 0:
            said += f", and {self.share:.0%} of sessions like it go on"
        if self.tokens < 1.0:
            return said, ", the other tier has it, too, or requests that go on seldom need it"
        if self.tokens > 1.5:
            return said, f", its loss costs about {self.tokens:,.0f} tokens for each token or state that it frees"
        return said, ""


class Worth:
    """The worth of values, from what is learned of turns and places.

    Args:
        is_path: by component, whether it is a path. window: its tokens, 1 for a state or a path.

    Attributes:
        turns, places, reach: what is learned.
        revision: how often all values came to be worth something else.
    """

    def __init__(self, view: TreeView, is_path: list[bool], window: list[int]) -> None:
        self._view = view
        self._is_path = is_path
        self._window = window
        self.turns = Survival(view.settings.remembered_turns)
        self.places = Places()
        self.reach = Reach()
        self.revision = 0
        self._usual_ages = [1.0] * (2 * len(is_path))  # by pool
        # How often a session's last window or state was resumed from, and an earlier one; and as shares of the larger.
        self._counts, self._resumed = [LAST_RESUMED, 1.0], [1.0, 1.0]

    def pool_of(self, value: Value) -> int:
        """A number for each component and tier."""
        return value.component + (len(self._is_path) if value.tier is Tier.HOST else 0)

    def of(self, value: Value) -> float:
        """How many tokens are hit for keeping a value, for each tick and token of room; the least goes first.
        Cost: O(nodes up to the boundary before) for a window or a state, else O(1).
        """
        if not value.touched:
            return -inf
        line = value.node.line
        turn = None if line is None else latest(line)
        if line is None or turn is None:
            return self._tokens(value) / (self._view.now - value.touched + self._usual_ages[self.pool_of(value)] + 1.0)
        return self._tokens(value) * max(self._rate_of_session(value, turn), self._rate_of_place(value, line))

    def _rate_of_session(self, value: Value, turn: Turn) -> float:
        """The rate at which its session goes on and needs a value; 0 until something is learned."""
        if not self.turns.is_ready:
            return 0.0
        return self._share(value, turn) * self.turns.worth(self.turns.group(turn), self._view.now - value.touched)

    def _rate_of_place(self, value: Value, line: Line) -> float:
        """The rate at which requests fork off at a value's end; 0 if none did."""
        place = _place(value, line)
        if place is None:
            return 0.0
        return self.places.rate(place, float(self._view.now - value.touched), self._usual_ages[self.pool_of(value)])

    def _tokens(self, value: Value) -> float:
        """How many tokens its loss costs for each token or state that it frees."""
        tokens, i = 1.0, value.component
        if not self._is_path[i]:
            tokens = max(1.0, self._view.tokens_lost(value) / self._window[i])
        return tokens * COPIED if value.copied else tokens

    def _share(self, value: Value, turn: Turn) -> float:
        """How many of the requests that go on from its session need a value."""
        i, end = value.component, value.node.end
        if self._is_path[i]:
            parent = value.node.parent
            return self.reach.share(turn, 0 if parent is None else parent.end, end)
        return self._resumed[1 if end + self._window[i] <= turn.saved_to else 0]

    def reason(self, value: Value) -> Reason:
        """The parts of a value's worth. Cost: as of `of`."""
        line, tokens = value.node.line, self._tokens(value)
        turn = None if line is None else latest(line)
        if line is None or turn is None:
            return Reason(value.touched, tokens, UNTOLD, 0.0, -1.0)
        place = _place(value, line)
        if place is not None and self._rate_of_place(value, line) > self._rate_of_session(value, turn):
            gap = (place.last - place.first) / max(1, place.uses - 1)
            return Reason(value.touched, tokens, PLACE if place.uses > 1 else ONCE, gap, -1.0)
        going_on = self.turns.shares[self.turns.group(turn)] if self.turns.is_ready else -1.0
        if self._is_path[value.component]:
            return Reason(value.touched, tokens * self._share(value, turn), SESSION, 0.0, going_on)
        is_earlier = value.node.end + self._window[value.component] <= turn.saved_to
        kind, often = (EARLIER, self._counts[1] / self._counts[0]) if is_earlier else (SESSION, 0.0)
        return Reason(value.touched, tokens, kind, often, going_on)

    def note_age(self, value: Value) -> None:
        """A value is evicted. Cost: O(1)."""
        pool = self.pool_of(value)
        self._usual_ages[pool] += (self._view.now - value.touched - self._usual_ages[pool]) / COUNTED_AGES

    def note_resumed(self, *, is_last: bool) -> None:
        """A session went on from its last window or state, or from an earlier one. Cost: O(1)."""
        self._counts[0 if is_last else 1] += 1.0
        most = max(self._counts)
        self._resumed = [count / most for count in self._counts]


def _place(value: Value, line: Line) -> Place | None:
    """The place at a value's end."""
    places = session_of(line).places
    return None if places is None else places.get(value.node.end)
