"""What the tree asks for: copies between device and host."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.node import Node
    from unified_tree.receipt import Boundary, Receipt


class EffectKind(Enum):
    """Which way an effect copies."""

    BACKUP = "device to host"
    LOAD = "host to device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copy page `source[i]` of a component to its page `target[i]` on the other tier; int64 ids of equal length."""

    component: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(slots=True)
class Span:
    """Target pages for the tokens [begin, end) of one component, `end` being in or at the end of `node`."""

    component: int
    node: Node
    begin: int
    end: int
    target: bytes


@dataclass(slots=True, eq=False)
class Effect:
    """Copies asked for, to be acknowledged or aborted exactly once.

    Attributes:
        copies: the paths first, then the sidecars, one entry a component.
        after: open effects that copy the rest of what the boundary needs. Acknowledge or abort those first. If one is aborted,
            the prefix of this one's pages may be missing; they then come back unused.
    """

    kind: EffectKind
    boundary: Boundary
    copies: tuple[Copy, ...]
    after: tuple[Effect, ...]
    spans: list[Span] = field(repr=False)
    receipts: list[Receipt] = field(repr=False)
    targets: dict[str, NDArray[np.int64]] = field(repr=False)

    def copied_from(self, component: int, begin: int, end: int) -> int:
        """The first of a component's tokens [begin, end) that this effect copies; `end` if it copies none. Cost: O(spans)."""
        for span in self.spans:
            if span.component == component and span.begin < end and begin < span.end:
                return max(begin, span.begin)
        return end
