"""Texts that stand in several namespaces: in which one a prompt is known furthest.

Each first page of prompts has the first namespace in which it stood; that one's own tree says how far it knows a prompt. Of all
namespaces that came later the texts are in one trie, whatever namespace they are in, and each stretch of it names some of the
namespaces that had all of it. So the one that knows a prompt furthest is found along one path, however many namespaces there
are, and where only one namespace has a text nothing is kept but its name.

A name is only a hint: the namespace may have forgotten the text since, so whoever asks looks into its tree.

Costs: O(1) a leaf of the first namespace; a comparison of its tokens a leaf of another; a look-up and a comparison for each
stretch that a prompt passes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.native.chosen import agreement, page_code
from unified_tree.nodes.line import Stretch

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key

    Name = tuple[str, bool]

MAX_FIRST_PAGES: Final = 1 << 16
"""Of how many first pages of prompts it is remembered in which namespaces they stood."""
STRETCH_BYTES: Final = 400
"""What a stretch takes besides its tokens."""


@mypyc_attr(acyclic=True)
class Beginning:
    """A first page.

    Attributes:
        first: the name of the first root with a child that begins with it; its texts are in no trie.
        later: the texts of all others; None for none.
    """

    __slots__ = ("first", "later")

    def __init__(self, first: Name) -> None:
        self.first = first
        self.later: Stretch | None = None


class Elsewhere:
    """The texts of one tree by their first pages.

    Args:
        page_size: tokens a page.
        max_bytes: for texts of namespaces that were not the first ones to have them; beyond that the ends that came first are
            forgotten.

    Attributes:
        size_bytes: what those take.
        byte_weight: see `Ghosts`.
    """

    __slots__ = ("_beginnings", "_ends", "_max_bytes", "_page_size", "byte_weight", "size_bytes")

    def __init__(self, page_size: int, max_bytes: int) -> None:
        self._page_size = page_size
        self._max_bytes = max_bytes
        self._beginnings: OrderedDict[int, Beginning] = OrderedDict()
        self._ends: deque[Stretch] = deque()  # without any below, and some that have them by now
        self.size_bytes = 0
        self.byte_weight = 1

    def beginning(self, key: Key) -> Beginning | None:
        """The first page of a key; None if no root has had it, as far as is remembered. Cost: O(1)."""
        return self._beginnings.get(page_code(key.bigram, key.data, 0, self._page_size * key.width_bytes))

    def began(self, name: Name, edge: bytes, page_bytes: int) -> Stretch | None:
        """A root has a new child with such an edge. Returns where its text stands; None for the first root. Cost: see above."""
        code = page_code(name[1], edge, 0, page_bytes)
        known = self._beginnings.get(code)
        if known is None:
            if len(self._beginnings) >= MAX_FIRST_PAGES:
                self._beginnings.popitem(last=False)
            self._beginnings[code] = Beginning(name)
            return None
        if known.first == name:
            return None
        later = known.later
        if later is None:
            later = known.later = Stretch(None, 0, b"", 0)
        return self.add(later, 0, edge, page_bytes, name)

    def add(self, at: Stretch, position: i64, edge: bytes, page_bytes: int, name: Name) -> Stretch | None:
        """A root's text goes on with an edge behind a place.

        Args:
            at: a stretch that its text has; the place is there or above.
            position: of the place, in bytes from the front.

        Returns the stretch at whose end the text ends then; None if the place was forgotten.
        """
        if at.is_gone or at.end < position:
            return None
        above = at.above
        while above is not None and above.end >= position:
            at, above = above, above.above
        done: i64 = 0
        size: i64 = len(edge)
        while True:
            rest: i64 = at.end - position
            if rest:
                theirs = at.edge if rest == len(at.edge) else at.edge[len(at.edge) - rest :]
                common: i64 = agreement(edge, theirs, done, size, page_bytes)
                done += common
                position += common
                if common < rest:
                    if at.end - rest + common == at.start:
                        return None  # two pages with one code
                    at = self._cut(at, position, page_bytes)
            at.note(name)
            if done == size:
                return at
            code = page_code(0, edge, done, page_bytes)
            below = at.below.get(code)
            if below is None:
                return self._grow(at, code, edge[done:], name)
            at = below

    def _grow(self, above: Stretch, code: int, edge: bytes, name: Name) -> Stretch:
        end = Stretch(above, code, edge, above.end + len(edge))
        end.note(name)
        above.below[code] = end
        self._ends.append(end)
        self.size_bytes += len(edge) * self.byte_weight + STRETCH_BYTES
        while self.size_bytes > self._max_bytes and len(self._ends) > 1:
            self._forget_oldest()
        return end

    def _cut(self, stretch: Stretch, position: i64, page_bytes: int) -> Stretch:
        """Divide a stretch; it is the lower part then. Returns the upper part."""
        above = stretch.above
        assert above is not None
        size: i64 = position - stretch.start
        upper = Stretch(above, stretch.code, stretch.edge[:size], position)
        upper.names = list(stretch.names)
        above.below[stretch.code] = upper
        stretch.above, stretch.edge = upper, stretch.edge[size:]
        stretch.code = page_code(0, stretch.edge, 0, page_bytes)
        upper.below[stretch.code] = stretch
        self.size_bytes += STRETCH_BYTES
        return upper

    def _forget_oldest(self) -> None:
        """Forget the end that came first, or take note that it is none any more. Cost: O(1)."""
        end = self._ends.popleft()
        above = end.above
        if end.below or above is None:
            return
        end.is_gone, end.above = True, None
        del above.below[end.code]
        self.size_bytes -= len(end.edge) * self.byte_weight + STRETCH_BYTES
        if not above.below and above.above is not None:
            self._ends.append(above)

    def passed(self, later: Stretch, key: Key, limit: int) -> list[tuple[Stretch, int]]:
        """The stretches that a key passes, with how far it agrees then, in tokens: ascending. Cost: see above."""
        found: list[tuple[Stretch, int]] = []
        width = key.width_bytes
        page_bytes = self._page_size * width
        stop = limit * width
        position, at = 0, later
        while position + page_bytes <= stop:
            below = at.below.get(page_code(0, key.data, position, page_bytes))
            if below is None:
                break
            common = agreement(key.data, below.edge, position, stop, page_bytes)
            if not common:
                break
            position += common
            found.append((below, position // width))
            if common < len(below.edge):
                break
            at = below
        return found

    def release(self) -> None:
        """Forget all, when the tree goes: stretches refer to each other."""
        pending = [known.later for known in self._beginnings.values() if known.later is not None]
        for end in self._ends:
            while end.above is not None:
                end = end.above
            pending.append(end)
        while pending:
            stretch = pending.pop()
            pending.extend(stretch.below.values())
            stretch.above = None
            stretch.below = {}
        self._beginnings.clear()
        self._ends.clear()
