"""What the tree asks for: copies between device and host."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.nodes.node import Lock, Node
    from unified_tree.terms.results import Boundary


class EffectKind(Enum):
    """Which way an effect copies."""

    BACKUP = "device to host"
    LOAD = "host to device"

    __hash__ = object.__hash__  # Enum's own is a Python function


class Copy(NamedTuple):
    """Copy page `source[i]` of a component to its page `target[i]` on the other tier; int64 ids of equal length."""

    component: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]


class Span:
    """Target pages for the tokens [begin, end) of one component, `end` being in or at the end of `node`.

    Attributes:
        source: the pages that are copied there, if they are.
    """

    __slots__ = ("begin", "component", "end", "node", "source", "target")

    def __init__(self, component: int, node: Node, begin: int, end: int, source: bytes, target: bytes) -> None:
        self.component = component
        self.node = node
        self.begin = begin
        self.end = end
        self.source = source
        self.target = target


class Effect:
    """Copies asked for, to be acknowledged or aborted exactly once.

    Attributes:
        copies: the paths first, then the sidecars, one entry a component.
        after: open effects that copy the rest of what the boundary needs. Acknowledge or abort those first. If one is aborted,
            the prefix of this one's pages may be missing; they then come back unused.
        page_counts: how many pages each of `copies` has, by component.
        spans: where the target pages belong; `receipt` locks the sources; `in_others`: components whose target pages are those
            of others. Internal.
        unused: targets that the tree did not take when it ended.
        transfer: the record of whoever makes the copies, who alone uses it.
    """

    __slots__ = ("after", "boundary", "copies", "in_others", "kind", "page_counts", "receipt", "spans", "transfer", "unused")

    def __init__(
        self,
        kind: EffectKind,
        boundary: Boundary,
        after: tuple[Effect, ...],
        spans: list[Span],
        receipt: Lock,
    ) -> None:
        self.kind = kind
        self.boundary = boundary
        self.after = after
        self.spans = spans
        self.receipt = receipt
        self.copies: tuple[Copy, ...] = ()
        self.page_counts: dict[str, int] = {}
        self.in_others: tuple[str, ...] = ()
        self.transfer: object = None
        self.unused: dict[str, NDArray[np.int64]] = {}

    @property
    def targets(self) -> dict[str, NDArray[np.int64]]:
        """All target pages, by component."""
        return {name: target for name, _, target in self.copies if name not in self.in_others}

    def __repr__(self) -> str:
        return f"Effect({self.kind.name}, {self.boundary}, {self.copies})"

    def copied_from(self, component: int, begin: int, end: int) -> int:
        """The first of a component's tokens [begin, end) that this effect copies; `end` if it copies none. Cost: O(spans)."""
        for span in self.spans:
            if span.component == component and span.begin < end and begin < span.end:
                return max(begin, span.begin)
        return end
