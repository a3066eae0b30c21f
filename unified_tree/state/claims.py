"""Sessions in the tree: what only ended sessions could go on from, and what a later turn supersedes.

A session stands at the tips of its texts. Its claims are on the nodes that it made, until a stranger passes there. A claim that
is not live any more puts its node's values into the class LEFT, before all that others may go on from. Nothing is evicted here.

Rejected: a set of sessions at each node (a prompt of all sessions would list them all), and a walk over a session's nodes when
a stranger comes (each walk here stops at the first node where nothing changes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unified_tree.nodes.claim import Claim, Claimant, Hold, Tip
    from unified_tree.nodes.node import Node, Value
    from unified_tree.state.tree_state import TreeState

FEW_USES: Final = 1
"""A value that was resumed from more often has been branched from."""


def pass_by(state: TreeState, node: Node, claimant: Claimant | None) -> None:
    """A session, or a prompt without one, uses the path to a node. Each claim there that is not its own passes to the nearest
    session above both; if there is none, the claim ends.

    Cost: O(1) amortized over the nodes that sessions made, and O(depth of the trees of sessions).
    """
    at: Node | None = node
    deepest: Claim | None = None
    while at is not None and (claim := at.claim) is not None:
        owner = claim.owner
        both = None if claimant is None else owner.nearest_above(claimant)
        if both is owner:
            break
        if both is None:
            at.claim = claim.node = None
            state.reclass(at)
        else:
            claim.owner = both
            if deepest is None and both is not claimant:
                deepest = claim
        at = at.parent
    if deepest is not None:  # two sessions have shown it: a third may come as long as the one above them lives
        _stand(state, deepest)
        shares = deepest.owner.shares
        shares.append(deepest)
        if len(shares) > state.settings.session_texts:
            _leave(state, shares.pop(0))


def move_tip(state: TreeState, tip: Tip, node: Node, claimant: Claimant) -> None:
    """A text of a session ends at a node, in place of where it ended before. Cost: O(nodes between, log n)."""
    pass_by(state, node, claimant)
    before, claim = tip.claim, node.claim
    if claim is not before or claim is None:
        if claim is not None:
            _stand(state, claim)
        if before is not None:
            _leave(state, before)
        tip.claim = claim


def drop_tip(state: TreeState, tip: Tip) -> None:
    """A text of a session does not go on. Cost: O(nodes that only it could go on from, log n)."""
    if tip.claim is not None:
        _leave(state, tip.claim)
        tip.claim = None


def add_tip(state: TreeState, claimant: Claimant, tip: Tip, node: Node) -> None:
    """A turn's prompt was published up to a node: its tip is one of the session's, in place of the one that it goes on from.

    Cost: O(nodes from its end up to where the prompt of that one ended), for each tip.
    """
    tips = claimant.tips
    for before in reversed(tips):
        if _goes_on(before, node):
            tips.remove(before)
            tip.turns += before.turns
            drop_tip(state, before)
            break
    else:
        if len(tips) >= state.settings.session_texts:
            drop_tip(state, tips.pop(0))
    tips.append(tip)


def leave_all(state: TreeState, claimant: Claimant) -> None:
    """A session goes on from none of its texts. Cost: O(nodes that only it could go on from, log n)."""
    for tip in claimant.tips:
        drop_tip(state, tip)
    for claim in claimant.shares:
        _leave(state, claim)
    claimant.tips, claimant.shares = [], []


def _goes_on(before: Tip, to: Node) -> bool:
    """Whether the path to a node has the text of a tip, but for its answer."""
    one = tip_node(before)
    node: Node | None = to
    while one is not None and one.parent is not None and one.parent.end >= before.least:
        one = one.parent
    while node is not None and node.parent is not None and node.parent.end >= before.least:
        node = node.parent
    return one is not None and one is node


def _find(claim: Claim) -> Claim | None:
    """Where the tips of a claim are now; None for nowhere. Cost: O(1) amortized."""
    last = claim
    while last.moved_to is not None:
        last = last.moved_to
    while claim.moved_to is not None and claim.moved_to is not last:
        claim.moved_to, claim = last, claim.moved_to
    return None if last.node is None else last


def tip_node(tip: Tip) -> Node | None:
    """The node at whose end a text of a session ends now; None if it is gone or strangers pass there."""
    found = None if tip.claim is None else _find(tip.claim)
    return None if found is None else found.node


def _stand(state: TreeState, claim: Claim) -> None:
    claim.tips += 1
    at: Claim | None = claim
    while at is not None:
        at.live += 1
        if at.live > 1:
            return
        at = _changed(state, at)


def _leave(state: TreeState, claim: Claim) -> None:
    at = _find(claim)
    if at is not None:
        assert at.tips > 0
        at.tips -= 1
    while at is not None:
        assert at.live > 0
        at.live -= 1
        if at.live:
            return
        at = _changed(state, at)


def _changed(state: TreeState, claim: Claim) -> Claim | None:
    """A claim has become live, or is so no more; the claim above it."""
    node = claim.node
    assert node is not None
    assert node.parent is not None
    state.reclass(node)
    return node.parent.claim


def supersede_above(state: TreeState, node: Node | None, length: int, later: int, *, has_windows: bool) -> None:
    """Demote the states before `length` on the path to a node, on both tiers: they are evicted before others from now on.

    A turn that resumed at `length` has saved a state or window at `later`, where the next turn will resume. The values at
    `length` itself stay for one turn more, because the next prompt may leave out the last turn. Values stay that a hint holds,
    or that more than `FEW_USES` turns have resumed from. The walk ends where another text may go on.

    Args:
        has_windows: demote windows, too, except those that `later` needs.

    Cost: O(nodes up to the turn before), at most the setting `cost_steps` behind `length`.
    """
    below: Node | None = None
    while node is not None and node.end > length:
        below, node = node, node.parent
    if node is not None and node.parent is not None and node.resumable:  # a prompt may step back once
        below, node = node, node.parent
    for _ in range(state.settings.cost_steps):
        if node is None or node.parent is None or (below is not None and _is_branch(node, below)):
            return
        if _supersede(state, node, later, has_windows=has_windows):
            return
        below, node = node, node.parent


def _is_branch(node: Node, below: Node) -> bool:
    """Whether another text than the one to `below`, a child, may go on from a node. An answer that nothing resumes from, and
    which the next prompt did not repeat, is none.
    """
    if node.claim is not None and node.claim.live:
        return node.claim.live > 1
    if node.child_count == 1:
        return False
    if node.child_count > 2:
        return True
    for child in node.children():
        if child is not below:
            if child.first_child is not None or child.resumable:
                return True
            for value in (*child.device, *child.host):
                if value is not None and value.hits > 0:
                    return True
    return False


def _supersede(state: TreeState, node: Node, later: int, *, has_windows: bool) -> bool:
    """Whether anything at a node had been superseded before."""
    layout, was_before = state.layout, False
    for values in (node.device, node.host):
        for i in layout.points:
            was_before |= _demote(state, values[i])
        for i, window in layout.windows:
            if has_windows and node.end <= window.start(later):
                was_before |= _demote(state, values[i])
    return was_before


def _demote(state: TreeState, value: Value | None) -> bool:
    """Demote a value that was not branched from and that no hint holds. Whether it was before."""
    if value is None or value.holds or value.hits > FEW_USES:
        return False
    if value.demoted:
        return True
    state.demote(value)
    return False


def hold_boundary(state: TreeState, hold: Hold, node: Node) -> None:
    """Hold the values that the boundary at a node's end needs, on both tiers. Cost: O(components and nodes of the windows)."""
    layout = state.layout
    state.holds.add(hold)
    for values in (node.device, node.host):
        for i in (*layout.paths, *layout.points):
            held = values[i]
            if held is not None:
                _hold(state, hold, held)
    for i, window in layout.windows:
        at: Node | None = node
        while at is not None and at.parent is not None and at.end > window.start(node.end):
            for value in (at.device[i], at.host[i]):
                if value is not None:
                    _hold(state, hold, value)
            at = at.parent


def _hold(state: TreeState, hold: Hold, value: Value) -> None:
    value.holds = (*value.holds, hold)
    value.demoted = False
    hold.values.append(value)
    state.pools(value.tier)[value.component].reclass(value)


def end_hold(state: TreeState, hold: Hold) -> None:
    """Keep its values no more. Cost: O(values)."""
    for value in hold.values:
        value.holds = tuple([each for each in value.holds if each is not hold])
        state.pools(value.tier)[value.component].reclass(value)
    hold.values = []
    state.holds.discard(hold)


def demote_boundary(state: TreeState, node: Node) -> None:
    """Let what the boundary at a node's end alone needs go before the others: its state, window and end of the path."""
    for values in (node.device, node.host):
        for value in values:
            if value is not None:
                state.demote(value)
