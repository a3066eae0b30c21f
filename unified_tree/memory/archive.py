"""What a replay remembers of evictions, beside the memory of ghosts: all of it, by a hash a page.

The memory of ghosts is bounded, and the policy `density` recognises by it who comes back. A replay must rank as a server would
and has no reason to forget the causes of misses. So it keeps what was evicted here, too, where only causes look.

It is for texts in which a page at some length stands behind one prefix alone, in one namespace, as the blocks of a trace do: it
knows no prefixes, only pages and where they stand.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.native import chosen
from unified_tree.nodes.line import Ghost

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.nodes.line import Eviction

page_code: Final[Callable[..., int]] = chosen.page_code


@mypyc_attr(acyclic=True)
class Archived(Ghost):
    """A ghost of which the hashes of its pages are left.

    Attributes:
        codes: one a page.
    """

    __slots__ = ("codes",)

    def __init__(self, ghost: Ghost, start: i64, codes: array[int]) -> None:
        super().__init__(ghost.line, start, ghost.end, b"", ghost.eviction, ghost.boundary_from)
        self.codes = codes


class Archive:
    """All ghosts whose tokens are not in the tree, by their first pages.

    Args:
        page_size: tokens a page.
    """

    __slots__ = ("_found", "_lost", "_page_size")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._found: dict[int, list[Archived]] = {}
        self._lost: dict[int, Eviction] = {}  # by the last page before a boundary that was evicted and whose tokens came back

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def put(self, ghost: Ghost, edge: bytes) -> None:
        """Keep what was evicted. Cost: O(pages)."""
        self._file(Archived(ghost, ghost.start, self._codes(ghost.start, edge, ghost.end - ghost.start)))

    def _file(self, archived: Archived) -> None:
        self._found.setdefault(archived.codes[0], []).append(archived)

    def _codes(self, start: int, edge: bytes, tokens: int) -> array[int]:
        size = self._page_size
        page_bytes = len(edge) // tokens * size
        return array("q", [page_code(start + i * size, edge, i * page_bytes, page_bytes) for i in range(tokens // size)])

    def came_back(self, start: int, edge: bytes, tokens: int) -> None:
        """A leaf with these tokens stands in the tree: what it has is there again. Cost: O(pages) where there is any of it."""
        size = self._page_size
        codes: array[int] | None = None
        page, count, page_bytes = 0, tokens // size, len(edge) // tokens * size
        while page < count:
            known = self._found.get(
                page_code(start + page * size, edge, page * page_bytes, page_bytes) if codes is None else codes[page]
            )
            if known is None:
                return
            if codes is None:
                codes = self._codes(start, edge, tokens)
            most = 0
            for archived in list(known):
                agreed = _agreed(archived.codes, codes, page)
                most = max(most, agreed)
                self._drop(archived)
                eviction = archived.eviction
                if eviction is not None:
                    for i in range(agreed):
                        if archived.start + (i + 1) * size >= archived.boundary_from:
                            self._lost[archived.codes[i]] = eviction
                if agreed < len(archived.codes):
                    self._file(Archived(archived, archived.start + agreed * size, archived.codes[agreed:]))
            page += most

    def _drop(self, archived: Archived) -> None:
        known = self._found[archived.codes[0]]
        known.remove(archived)
        if not known:
            del self._found[archived.codes[0]]

    def trail(self, key: Key, length: int, limit: int) -> list[Ghost]:
        """The ghosts that a key agrees with from a length on up to a limit; each has `reached` then. Cost: O(pages passed)."""
        found: list[Ghost] = []
        size, width = self._page_size, key.width_bytes
        while length + size <= limit:
            known = self._found.get(page_code(length, key.data, length * width, size * width))
            if known is None:
                break
            best: Archived | None = None
            most = 0
            for archived in known:
                agreed = 1
                while (
                    agreed < len(archived.codes)
                    and length + (agreed + 1) * size <= limit
                    and archived.codes[agreed]
                    == page_code(length + agreed * size, key.data, (length + agreed * size) * width, size * width)
                ):
                    agreed += 1
                if agreed >= most:  # of equal ones the last that went
                    best, most = archived, agreed
            assert best is not None
            length += most * size
            best.reached = length
            found.append(best)
        return found

    def last_lost(self, key: Key, after: int, up_to: int) -> tuple[int, Eviction | None]:
        """The last boundary in (after, up_to] that was evicted while its tokens came back, and how; else (after, None).

        Cost: O(pages between).
        """
        size, width = self._page_size, key.width_bytes
        length = up_to // size * size
        while length > after:
            eviction = self._lost.get(page_code(length - size, key.data, (length - size) * width, size * width))
            if eviction is not None:
                return length, eviction
            length -= size
        return after, None


def _agreed(codes: array[int], others: array[int], first: int) -> int:
    """How many codes are those of others from the first of these on."""
    count = min(len(codes), len(others) - first)
    agreed = 0
    while agreed < count and codes[agreed] == others[first + agreed]:
        agreed += 1
    return agreed
