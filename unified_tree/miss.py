"""Misses: which tokens of a prompt had to be computed, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from unified_tree.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.ghosts import Eviction

CAUSES: Final = tuple(MissCause)


@mypyc_attr(acyclic=True)
class Miss:
    """The tokens [begin, end) of a prompt, computed for one reason.

    Attributes:
        code: of the cause, as an integer.
        eviction: for EVICTED.
        detail: for NEVER_SAVED why nothing was saved, None if nothing was due; for LOAD_REFUSED and OTHER_NAMESPACE see there.
    """

    __slots__ = ("begin", "code", "detail", "end", "eviction")

    def __init__(self, code: int, begin: int, end: int, eviction: Eviction | None, detail: str | None) -> None:
        self.code = code
        self.begin = begin
        self.end = end
        self.eviction = eviction
        self.detail = detail

    @property
    def cause(self) -> MissCause:
        """The reason."""
        return CAUSES[self.code]

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return self.end - self.begin

    def __repr__(self) -> str:
        detail = "" if self.detail is None else f", {self.detail}"
        return f"Miss({self.cause.name}, [{self.begin}, {self.end}){detail})"
