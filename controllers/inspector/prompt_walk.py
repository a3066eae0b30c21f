"""The walk of a prompt: which nodes it passes, what each still has, and why the rest has to be computed.

A prompt may be long and a path deep, and the cache's thread does no more of this in a step than a slice. So the prompt is
compared with the tree piece by piece. Meanwhile the tree may change: nodes are cut, and go. The walk keeps the id of the node
that it has come to and a length. A node that was cut keeps its id on its lower half, so the place is found again above it; if
the node is gone, the walk begins anew.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.inspector.recent_requests import misses_shown, tree_clock
from unified_tree.inputs.printable import printable
from unified_tree.lookup.matching import walk
from unified_tree.misses.causes import LOAD_REFUSED, misses
from unified_tree.misses.explain import losses_of, unknown_tail
from unified_tree.native.chosen import agreement
from unified_tree.terms.errors import UnifiedTreeError
from unified_tree.terms.results import NOWHERE, Boundary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.controllers.inspector.inspected import Inspected
    from unified_tree.declare.keys import Key
    from unified_tree.misses.explain import Loss
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.results import Match

MAX_PROMPT_TOKENS = 1 << 18
"""Of a longer prompt the beginning is walked. Some steps at the end compare all of it, and this much takes some 0.2 ms."""
MAX_PATH_NODES = 1024
"""A prompt that passes more nodes is not walked either: some of the steps at its end look at all of them."""
SLICE_BYTES = 1 << 16
"""So much of a prompt is compared with the tree at a time."""
MAX_RESTARTS = 16
MAX_NODES = 400
"""Of a path, the last ones are shown."""


class WalkError(UnifiedTreeError):
    """A prompt cannot be walked."""


class Descent:
    """A walk down the tree, in slices between which the tree may change.

    Attributes:
        reached: the node it has come to, and how many tokens match.
        has_ended: it goes no further.
    """

    def __init__(self, state: TreeState, key: Key) -> None:
        self._state = state
        self._key = key
        self._page_bytes = state.page_size * key.width_bytes
        self._whole = key.length // state.page_size * state.page_size
        self._restarts = -1
        self.has_ended = False
        self._begin()

    def _begin(self) -> None:
        self._restarts += 1
        self._passed = 0
        self.reached = NOWHERE

    def node(self) -> Node | None:
        """The node it has come to; None for none. It begins anew if that is gone."""
        root = self._state.roots.get((self._key.namespace, self._key.bigram))
        if root is None or not self.reached.length:
            return root
        node = self._state.nodes.get(self.reached.node)
        if node is None or node.root is not root:
            self._begin()
            self.has_ended = False
            return root
        while node.parent is not None and node.start >= self.reached.length:
            node = node.parent
        return node

    def step(self) -> None:
        """Go on by SLICE_BYTES of the prompt, or to the next node. Raises WalkError for a path that is too deep."""
        state, key, length = self._state, self._key, self.reached.length
        node = self.node()
        length = self.reached.length
        if node is None or length >= self._whole or self._restarts > MAX_RESTARTS:
            self.has_ended = True
            return
        width = key.width_bytes
        if length < node.end:
            piece = max(SLICE_BYTES // self._page_bytes, 1) * self._page_bytes
            at = (length - node.start) * width
            ends = min(length * width + piece, self._whole * width)
            rest = node.edge[at : at + piece]
            common = agreement(key.data, rest, length * width, ends, self._page_bytes)
            self.has_ended = common < min(len(rest), ends - length * width)
            length += common // width
        else:
            child, reached = walk(state, key, node, length + state.page_size)
            self.has_ended = reached == length
            if not self.has_ended:
                self._passed += 1
                if self._passed > MAX_PATH_NODES:
                    raise WalkError(f"this prompt passes more than {MAX_PATH_NODES:,} nodes, too many to be walked here")
            node, length = child, reached
        self.reached = Boundary(node.id, length) if length else NOWHERE


def prompt_walk(cache: Inspected, key: Key) -> Iterator[dict[str, Any]]:
    """The outcome of a prompt now, in parts, each a slice of work; many are empty. Changes nothing, recency included.

    Raises WalkError for a prompt that goes too deep. Cost: a match in all; a part at most a comparison of
    what the tree, or its memory, knows of the prompt.
    """
    tree = cache.tree
    state = tree.state
    left_out = max(0, key.length - MAX_PROMPT_TOKENS)
    key = key.prefix(key.length - left_out)
    descent = Descent(state, key)
    while not descent.has_ended:
        descent.step()
        yield {}
    key.walked = (state.mark, descent.reached)
    found = tree.match_prefix(key, limit=key.length - 1, touch=False)
    resumed = found.reachable.length if cache.controller is not None else found.device.length
    yield {
        "namespace": printable(key.namespace),
        "prompt": key.length,
        "left_out": left_out,
        "device": found.device.length,
        "reachable": found.reachable.length,
        "rebuild": found.rebuild.length if cache.rebuild else found.device.length,
        "rebuild_tokens": found.rebuild_tokens if cache.rebuild else 0,
        "path": found.path_length,
        "known": found.known.length,
        "remembers": state.ghosts is not None,
        "misses": [],
    }
    if state.ghosts is not None:
        yield {"misses": _misses(cache, key, found, resumed)}
    node = descent.node()
    known = descent.reached.length
    losses: list[Loss] = []
    for i in range(len(state.components)):
        if node is None:
            break
        losses += losses_of(state, node, known, i)
        yield {}
        node = descent.node()
    losses.sort(key=lambda loss: loss.kept_on is None)
    losses += unknown_tail(known, key.length)
    yield {"losses": [asdict(loss) for loss in losses]}
    yield {"nodes": _nodes(descent.node(), known)}


def _misses(cache: Inspected, key: Key, found: Match, resumed: int) -> list[dict[str, Any]]:
    state = cache.tree.state
    parts = misses(state, key, found, resumed, (LOAD_REFUSED, None), cache.ledger.in_flight)
    return misses_shown(parts, state, tree_clock(state.ghosts)())


def _nodes(last: Node | None, length: int) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    node = last
    while node is not None and node.parent is not None and len(shown) < MAX_NODES:
        values = [
            [value.component, tier, value.page_count, bool(value.locks or value.locked_by), value.stranded]
            for tier in range(2)
            for value in (node.host if tier else node.device)
            if value is not None
        ]
        shown.append(
            {
                "id": node.id,
                "begin": node.start,
                "end": node.end,
                "matched": min(length, node.end),
                "boundary": node.resumable,
                "values": values,
            }
        )
        node = node.parent
    shown.reverse()
    return shown
