"""Which nodes only certain sessions have used, and which values a hint holds.

A `Claim` is on every node that one session made and no stranger has used since; its owner is that session, or the nearest one
above all that have used it. A claim is live while a session may go on from its node or from below: it counts the tips at the
node and the children whose claims are live, as locks count. All nodes below a claimed node are claimed, too, each by the same
session or by one below that session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node, Value


@mypyc_attr(acyclic=True)
class Claim:
    """What sessions have of a node that no stranger has used.

    Attributes:
        owner: the session that made it, or the nearest above all that have used it.
        node: None once the node is gone, or a stranger has used it.
        live: tips here, and children with a live claim. At zero nothing but an ended session could go on from here.
        tips: how many sessions' texts end here.
        moved_to: where its tips are since its node has gone; None for nowhere.
    """

    __slots__ = ("live", "moved_to", "node", "owner", "tips")

    def __init__(self, owner: Claimant, node: Node) -> None:
        self.owner = owner
        self.node: Node | None = node
        self.live = 0
        self.tips = 0
        self.moved_to: Claim | None = None


class Tip:
    """Where a text of a session ends.

    Attributes:
        claim: of the node; see `Claim.moved_to`. None where strangers pass, who may go on from there.
        least: a prompt that has so many tokens of it goes on from it.
        turns: how many it had.
    """

    __slots__ = ("claim", "least", "turns")

    def __init__(self, least: int) -> None:
        self.claim: Claim | None = None
        self.least = least
        self.turns = 1


class Claimant:
    """A session as the tree knows it.

    Attributes:
        parent: the session that it is a part of; None for none. `depth`: how many there are above it.
        tips: where its texts end, the one that was used last at the end.
        shares: claims that several sessions below it have used, which stay live with it.
    """

    __slots__ = ("depth", "parent", "shares", "tips")

    def __init__(self, parent: Claimant | None) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.tips: list[Tip] = []
        self.shares: list[Claim] = []

    def forget(self) -> None:
        """The tree is gone: refer to none of its claims, which refer to this."""
        self.tips, self.shares = [], []

    def nearest_above(self, other: Claimant) -> Claimant | None:
        """The nearest session that is both or above both; None if they are of two trees. Cost: O(depth)."""
        one: Claimant | None = self
        two: Claimant | None = other
        while one is not two:
            if one is None or two is None:
                return None
            if one.depth >= two.depth:
                one = one.parent
            else:
                two = two.parent
        return one


class Hold:
    """A hint's hold on the values of a boundary: they go after all others.

    Attributes:
        keeps: whether they do; else they only stay when a later turn supersedes them.
        values: those that are held; some may have left the tree.
        was_taken: a pool in need has taken one of them.
    """

    __slots__ = ("keeps", "values", "was_taken")

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.values: list[Value] = []
        self.was_taken = False

    def forget(self) -> None:
        """The tree is gone: refer to none of its values, which refer to this."""
        for value in self.values:
            value.holds = ()
        self.values = []
