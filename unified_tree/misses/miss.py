"""Misses: which tokens of a prompt had to be computed, and why.

Those of one prompt are a chain: naming them makes no object besides, and few requests are asked for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.nodes.line import Eviction

CAUSES: Final = tuple(MissCause)


@mypyc_attr(acyclic=True, free_list_len=1)
class Miss:
    """The tokens [begin, end) of a prompt, computed for one reason.

    Attributes:
        code: of the cause, as an integer.
        eviction: for EVICTED.
        detail: for NEVER_SAVED why nothing was saved, None if nothing was due; for STORE_FAILED one of those of StoreLoss; for
            LOAD_REFUSED and OTHER_NAMESPACE see there.
        next: the one behind it; None for the last that was found.
    """

    __slots__ = ("begin", "code", "detail", "end", "eviction", "next")

    def __init__(self, code: i64, begin: i64, end: i64, eviction: Eviction | None, detail: str | None) -> None:
        self.code = code
        self.begin = begin
        self.end = end
        self.eviction = eviction
        self.detail = detail
        self.next: Miss | None = None

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


NOT_GIVEN: Final = "not given"
NO_ANSWER: Final = "no answer"


@mypyc_attr(acyclic=True)
class StoreLoss:
    """What a fault of a store kept from a prompt, as lengths of it in tokens.

    Attributes:
        listed: up to here the store listed the prompt, and did not give it: NOT_GIVEN. 0 for nowhere.
        unanswered: up to here the store might have had it, but did not say: NO_ANSWER. 0 for nowhere.
    """

    __slots__ = ("listed", "unanswered")

    def __init__(self, listed: i64, unanswered: i64) -> None:
        self.listed = listed
        self.unanswered = unanswered

    def __repr__(self) -> str:
        return f"StoreLoss(listed={self.listed}, unanswered={self.unanswered})"


@mypyc_attr(acyclic=True)
class Misses:
    """The misses of one prompt, as they are found, from the front on.

    Attributes:
        first, last: of the chain; None for an empty one.
    """

    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first: Miss | None = None
        self.last: Miss | None = None

    def add(self, code: i64, begin: i64, end: i64, eviction: Eviction | None, detail: str | None) -> i64:
        """Append one; returns its end."""
        miss = Miss(code, begin, end, eviction, detail)
        last = self.last
        if last is None:
            self.first = miss
        else:
            last.next = miss
        self.last = miss
        return end

    def take(self) -> Miss | None:
        """The first of the chain, which is empty then."""
        first, self.first, self.last = self.first, None, None
        return first


def listed(first: Miss | None) -> list[Miss]:
    """A chain as a list."""
    found = []
    while first is not None:
        found.append(first)
        first = first.next
    return found
