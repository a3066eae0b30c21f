"""What is remembered of a node that was evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from unified_tree.nodes.line import Line
    from unified_tree.nodes.order import Ranked
    from unified_tree.tier import Tier


@mypyc_attr(acyclic=True, free_list_len=1)
class Eviction:
    """Why and when something went; one for all that one call evicted from one pool.

    Attributes:
        component: by index, whose pool was short.
        tier: of that pool.
        at_s: when, on the tree's clock.
        beneficiary: the namespace for which room was made; None if nobody said.
        evicted_pages: how many pages had left that pool before.
        urgency, rank, second_rank: where the first victim stood in the pool's order; see `Place`.
        clock: the tree's logical clock then.
    """

    __slots__ = ("at_s", "beneficiary", "clock", "component", "evicted_pages", "rank", "second_rank", "tier", "urgency")

    def __init__(
        self,
        component: int,
        tier: Tier,
        at_s: float,
        beneficiary: str | None,
        evicted_pages: int,
        victim: Ranked,
        clock: int,
    ) -> None:
        self.component = component
        self.tier = tier
        self.at_s = at_s
        self.beneficiary = beneficiary
        self.evicted_pages = evicted_pages
        self.urgency = victim.urgency
        self.rank = victim.rank
        self.second_rank = victim.second_rank
        self.clock = clock


@mypyc_attr(acyclic=True)
class Ghost:
    """A node that was evicted.

    Attributes:
        anchor: the line on which it hangs; None for one that is gone.
        is_fork: it hangs there by its code, because the line goes on with other tokens.
        code: of its first page; None while it neither `is_fork` nor has faded.
        line: the line of the node.
        start, end: as of the node, in tokens.
        edge: the node's tokens as bytes; None for one that has faded.
        eviction: why it went; None if its namespace was invalidated.
        boundary_from: a request could have resumed from this length and all behind it while all was there.
        reached: up to which length the prompt agrees whose trail it is on.
        above, below: its neighbours on its line.
        older, newer: its neighbours in its queue.
    """

    __slots__ = (
        "above",
        "anchor",
        "below",
        "boundary_from",
        "code",
        "edge",
        "end",
        "eviction",
        "is_fork",
        "line",
        "newer",
        "older",
        "reached",
        "start",
    )

    def __init__(self, line: Line, start: i64, end: i64, edge: bytes, eviction: Eviction | None, boundary_from: i64) -> None:
        self.anchor: Line | None = None
        self.is_fork = False
        self.code: object = None
        self.reached: i64 = 0
        self.line = line
        self.start = start
        self.end = end
        self.edge: bytes | None = edge
        self.eviction = eviction
        self.boundary_from = boundary_from
        self.above: Ghost | None = None
        self.below: Ghost | None = None
        self.older: Ghost | None = None
        self.newer: Ghost | None = None
