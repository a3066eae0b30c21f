"""Ghosts: a bounded memory of the prefixes that were evicted, so that a miss can be told from what was never seen.

A node that leaves the tree leaves a `Ghost`: its tokens (the very bytes, so nothing is copied) and its `Eviction`. It hangs on
the prefix behind which the node stood. Where the prefix's line goes on with the ghost's tokens, it is one of a list that is
ordered by length, and the end of the tree is before the first of them. Where another text forks off, a table finds it by the
length and its first page. So a walk that has come to the end of the tree goes on through ghosts by one look-up and one
comparison each, and a prefix that comes back finds what used to stand behind it.

The memory is bounded twice. Beyond `max_bytes` of tokens the oldest ghosts *fade*: they only know that something stood there.
Beyond `max_faded` these are forgotten. An eviction takes leaves before their parents, so what is forgotten first stood deepest.

Costs: O(1) an eviction; O(1) a new leaf, and a comparison of what it brings back; a look-up and a comparison for each ghost
that a walk passes. A line without ghosts costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from mypy_extensions import i64

from unified_tree.declare.keys import GROUP_TOKENS
from unified_tree.memory.archive import Archive
from unified_tree.memory.elsewhere import Elsewhere
from unified_tree.native import chosen
from unified_tree.nodes.line import Eviction, Ghost, Line, RootLine
from unified_tree.nodes.node import Root

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node

# Under names of this module, which compiled code finds without looking in a dictionary; numbers that are only passed on stay
# objects.
agreement: Final[Callable[..., int]] = chosen.agreement
page_code: Final = cast("Callable[..., object]", chosen.page_code)
GHOST_BYTES: Final = 320
"""What a ghost takes besides its tokens: itself and the header of its bytes, its part of a line, an eviction and a table.
Measured in the compiled build over thousands of them: 227 for the turns of chats, 279 for prompts that fork off one text, up to
345 where windows or states are evicted, too.
"""
MAX_FORMER: Final = 8
"""How many invalidations are remembered."""


class GhostQueue:
    """Ghosts in the order in which they came."""

    __slots__ = ("count", "newest", "oldest")

    def __init__(self) -> None:
        self.oldest: Ghost | None = None
        self.newest: Ghost | None = None
        self.count = 0

    def append(self, ghost: Ghost) -> None:
        """Add a ghost, which is in no queue, as the newest. Cost: O(1)."""
        last = self.newest
        if last is None:
            self.oldest = ghost
        else:
            ghost.older = last
            last.newer = ghost
        self.newest = ghost
        self.count += 1

    def remove(self, ghost: Ghost) -> None:
        """Remove a ghost. Cost: O(1)."""
        older, newer = ghost.older, ghost.newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        ghost.older = ghost.newer = None
        self.count -= 1


class Ghosts:
    """The memory of one tree.

    Args:
        page_size: tokens a page.
        max_bytes: for ghosts with their tokens, and as much for texts of several namespaces.
        max_faded: ghosts without tokens.
        is_gated: not every length is a boundary, so those that were are remembered.
        time_s: the clock of evictions, in seconds.

    Attributes:
        clear, faded: the ghosts with their tokens, and those without.
        elsewhere: the texts that stand in several namespaces.
        archive: all that was evicted, for causes alone; None outside of replays.
        size_bytes: what the former take.
        byte_weight: bytes for which one of their tokens' counts: those of packed keys count as those of plain ones, so that as
            much is remembered.
        forgotten: how many ghosts were forgotten.
        former: the roots that were invalidated and their lines, the last invalidation last.
        matched: the node that the last match ended in, which may be gone.
        beneficiary: the namespace for which room is being made; whoever asks for pages sets it.
        victims_of: how many values the last eviction took from each namespace; None while nobody wants to know.
    """

    __slots__ = (
        "_is_gated",
        "_max_bytes",
        "_max_faded",
        "_page_size",
        "_roots",
        "archive",
        "beneficiary",
        "byte_weight",
        "clear",
        "elsewhere",
        "faded",
        "forgotten",
        "former",
        "matched",
        "size_bytes",
        "time_s",
        "victims_of",
    )

    def __init__(self, page_size: int, max_bytes: int, max_faded: int, time_s: Callable[[], float], *, is_gated: bool) -> None:
        self._page_size = page_size
        self._max_bytes = max_bytes
        self._max_faded = max_faded
        self._is_gated = is_gated
        self.time_s = time_s
        self.clear = GhostQueue()
        self.faded = GhostQueue()
        self.elsewhere = Elsewhere(page_size, max_bytes)
        self.archive: Archive | None = None
        self.size_bytes = 0
        self.byte_weight = 1
        self.forgotten = 0
        self.matched: Node | None = None
        self.beneficiary: str | None = None
        self.victims_of: dict[str, int] | None = None
        self._roots: dict[tuple[str, bool], RootLine] = {}
        self.former: deque[tuple[dict[tuple[str, bool], Root], dict[tuple[str, bool], RootLine]]] = deque(maxlen=MAX_FORMER)

    def for_replay(self, *, packed: bool) -> None:
        """Keep all that is evicted for the causes of misses, from now on; and count the tokens of packed keys as plain ones."""
        self.archive = Archive(self._page_size)
        if packed:
            self.byte_weight = self.elsewhere.byte_weight = GROUP_TOKENS

    def line_of_root(self, name: tuple[str, bool]) -> RootLine:
        """The line of a new root, which may come and go while ghosts hang on it. Cost: O(1)."""
        line = self._roots.get(name)
        if line is None:
            line = self._roots[name] = RootLine(name)
        line.is_live = True
        return line

    def root_line(self, name: tuple[str, bool]) -> RootLine | None:
        """The line of a root that may be gone; None if nothing is known of it."""
        return self._roots.get(name)

    def root_left(self, root: Root) -> None:
        """A root lost its last child and leaves the tree."""
        line = self._roots.get(root.name)
        if line is not None and line is root.line:
            line.is_live = False
            if not line.has_ghosts:
                del self._roots[root.name]

    @property
    def root_count(self) -> int:
        """Of how many roots something is known."""
        return len(self._roots)

    def retired(self, roots: dict[tuple[str, bool], Root], name: tuple[str, bool] | None) -> None:
        """These roots were invalidated: all, or those of one name. Cost: O(1)."""
        if name is None:
            lines, self._roots = self._roots, {}
        else:
            line = self._roots.pop(name, None)
            lines = {} if line is None else {name: line}
        if roots or lines:
            self.former.append((roots, lines))

    def count_victim(self, node: Node) -> None:
        """A value of a node is about to be evicted. Cost: O(1)."""
        victims_of = self.victims_of
        if victims_of is not None and node.root is not None:
            namespace = node.root.name[0]
            victims_of[namespace] = victims_of.get(namespace, 0) + 1

    def remember(self, node: Node, eviction: Eviction | None, boundary_from: int) -> None:
        """A node is about to leave the tree. Cost: O(1), amortized over what fades."""
        parent = node.parent
        assert parent is not None
        self.remember_end(node, parent.end, node.edge, eviction, boundary_from)

    def remember_end(self, node: Node, start: int, edge: bytes, eviction: Eviction | None, boundary_from: int) -> None:
        """The same of what a node has from a length on; `edge` are its tokens."""
        line = node.line
        assert line is not None
        ghost = Ghost(line, start, node.end, edge, eviction, boundary_from)
        self._hang(ghost, edge)
        if self.archive is not None:
            self.archive.put(ghost, edge)
        self.clear.append(ghost)
        self.size_bytes += len(edge) * self.byte_weight + GHOST_BYTES
        while self.size_bytes > self._max_bytes:
            oldest = self.clear.oldest
            assert oldest is not None
            self._fade(oldest)
            if self.faded.count > self._max_faded:
                assert self.faded.oldest is not None
                self.discard(self.faded.oldest)
                self.forgotten += 1

    def _fade(self, ghost: Ghost) -> None:
        """Forget a ghost's tokens. Cost: O(1)."""
        edge = ghost.edge
        assert edge is not None
        self.clear.remove(ghost)
        self.size_bytes -= len(edge) * self.byte_weight + GHOST_BYTES
        if not ghost.is_fork:
            ghost.code = page_code(ghost.start, edge, 0, self._page_bytes(ghost, edge))
        ghost.edge = None
        self.faded.append(ghost)

    def _page_bytes(self, ghost: Ghost, edge: bytes) -> int:
        return len(edge) // (ghost.end - ghost.start) * self._page_size

    def _hang(self, ghost: Ghost, edge: bytes) -> None:
        """Hang a ghost on its line; one that forks off there is found by its code."""
        ghost.hang()
        if not ghost.is_fork:
            return
        anchor = ghost.anchor
        assert anchor is not None
        ghost.code = code = page_code(ghost.start, edge, 0, self._page_bytes(ghost, edge))
        forked = anchor.forked
        if forked is None:
            forked = anchor.forked = {}
        before = forked.get(code)
        forked[code] = ghost
        if before is not None:
            before.anchor = None
            self.discard(before)

    def _unhang(self, ghost: Ghost) -> None:
        anchor, ghost.anchor = ghost.anchor, None
        if anchor is None:
            return
        if not ghost.is_fork:
            anchor.unhang(ghost)
        else:
            assert anchor.forked is not None
            del anchor.forked[ghost.code]
            if not anchor.forked:
                anchor.forked = None
        if (
            isinstance(anchor, RootLine)
            and not anchor.has_ghosts
            and not anchor.is_live
            and self._roots.get(anchor.name) is anchor
        ):
            del self._roots[anchor.name]

    def discard(self, ghost: Ghost) -> None:
        """Forget a ghost. Cost: O(1)."""
        self._unhang(ghost)
        if ghost.edge is None:
            self.faded.remove(ghost)
        else:
            self.clear.remove(ghost)
            self.size_bytes -= len(ghost.edge) * self.byte_weight + GHOST_BYTES

    def trail(self, line: Line, length: i64, limit: i64, data: bytes | memoryview, width: i64) -> list[Ghost]:
        """The ghosts that a key agrees with, from a prefix on up to a limit; each has `reached` then. One that has faded is the
        last. Cost: O(ghosts passed), and one comparison of tokens.

        Args:
            data, width: of the key, in bytes.
        """
        found: list[Ghost] = []
        page_bytes: object = self._page_size * width
        stop: object = limit * width
        ghost: Ghost | None = None
        while length < limit:
            ghost, common = self._find(line, length, ghost, data, length * width, stop, page_bytes)
            if ghost is None:
                break
            found.append(ghost)
            if ghost.edge is None:
                break
            length += common // width
            ghost.reached = length
            line = ghost.line
        return found

    def _find(
        self,
        line: Line,
        length: i64,
        after: Ghost | None,
        data: bytes | memoryview,
        position: object,
        stop: object,
        page_bytes: object,
    ) -> tuple[Ghost | None, int]:
        """The ghost behind a prefix, whose first page stands at a position of a key's data.

        Args:
            after: the ghost that was found before on the way; None for none.
            stop: where to end in the data.

        Returns the ghost, and how many bytes of it agree; none of one that has faded. Cost: O(1), and a comparison.
        """
        owner = line.owner(length)
        ghost = owner.ghost if after is None or after.anchor is not owner else after.below
        if ghost is not None and ghost.start == length:
            tokens = ghost.edge
            if tokens is None:
                if ghost.code == page_code(length, data, position, page_bytes):
                    return ghost, 0
            else:
                common = agreement(data, tokens, position, stop, page_bytes)
                if common:
                    return ghost, common
        if owner.forked is None:
            return None, 0
        ghost = owner.forked.get(page_code(length, data, position, page_bytes))
        if ghost is None or ghost.edge is None:
            return ghost, 0
        common = agreement(data, ghost.edge, position, stop, page_bytes)
        return (ghost, common) if common else (None, 0)

    def line_of_leaf(self, parent: Node, edge: bytes, end: int) -> Line:
        """The line of a new leaf; ghosts whose tokens it brings back are forgotten.

        Cost: O(1), and a comparison of what comes back, or of what another namespace may have, too.
        """
        above, at = parent.line, parent.end
        assert above is not None
        page_bytes = len(edge) // (end - at) * self._page_size
        stretch = above.stretch
        line = self._continued(above, at, edge, end, page_bytes)
        if self.archive is not None:
            self.archive.came_back(at, edge, end - at)
        if at == 0:
            assert isinstance(parent, Root)
            line.stretch = self.elsewhere.began(parent.name, edge, page_bytes)
        elif stretch is not None:
            root = parent.root
            assert root is not None
            position = at * page_bytes // self._page_size
            line.stretch = self.elsewhere.add(stretch, position, edge, page_bytes, root.name)
        return line

    def _continued(self, line: Line, at: int, edge: bytes, end: int, page_bytes: int) -> Line:
        """The line on which an edge stands behind a line's prefix."""
        if line.end == at:  # nothing ever stood behind its parent
            line.end = end
            return line
        position, size = 0, len(edge)
        stop: object = size
        page: object = page_bytes
        while position < size:
            ghost, common = self._find(line, at, None, edge, position, stop, page)
            if ghost is None:
                break
            tokens = ghost.edge
            if tokens is None:
                self.discard(ghost)
                break
            line = ghost.line
            at += common // (len(tokens) // (ghost.end - ghost.start))
            position += common
            if self._is_gated and ghost.eviction is not None and at >= ghost.boundary_from:
                line.note_lost(ghost.boundary_from, at, ghost.eviction)
            if common < len(tokens):
                self._cut(ghost, at, tokens[common:])
            else:
                self.discard(ghost)
        if at == end:
            return line
        if at == line.end:
            line.end = end
            return line
        return Line(line.owner(at), at, end)

    def _cut(self, ghost: Ghost, start: int, rest: bytes) -> None:
        """The front of a ghost is in the tree again: what remains of it hangs behind that."""
        assert ghost.edge is not None
        self._unhang(ghost)
        self.size_bytes -= (len(ghost.edge) - len(rest)) * self.byte_weight
        ghost.start, ghost.edge = start, rest
        self._hang(ghost, rest)

    def release(self) -> None:
        """Forget all, when the tree goes: lines and ghosts refer to each other."""
        for queue in (self.clear, self.faded):
            ghost = queue.oldest
            while ghost is not None:
                after = ghost.newer
                if ghost.anchor is not None:
                    ghost.anchor.ghost = ghost.anchor.forked = None
                    ghost.anchor = None
                ghost.above = ghost.below = ghost.older = ghost.newer = None
                ghost = after
            queue.oldest = queue.newest = None
        self.elsewhere.release()
        self.matched = None
