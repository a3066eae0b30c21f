"""The walk of a prompt: which nodes it passes, what each still has, and why the rest has to be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unified_tree.causes import LOAD_REFUSED, misses
from unified_tree.controllers.inspector.recent_requests import misses_shown, tree_clock
from unified_tree.matching import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.controllers.inspector.inspected import Inspected
    from unified_tree.keys import Key
    from unified_tree.node import Node
    from unified_tree.state import TreeState

MAX_NODES = 400
"""Of a path, the last ones are shown."""


def prompt_walk(cache: Inspected, key: Key) -> Iterator[dict[str, Any]]:
    """What would come of a prompt now, in three parts, each for a step of its own. Changes nothing, recency included.

    Cost: a few matches.
    """
    tree = cache.tree
    state = tree.state
    found = tree.match_prefix(key, limit=key.length - 1, touch=False)
    resumed = found.reachable.length if cache.controller is not None else found.device.length
    names = [component.name for component in tree.components]
    parts = []
    if state.ghosts is not None:
        parts = misses(state, key, found, resumed, (LOAD_REFUSED, None), 0, cache.ledger.in_flight)
    yield {
        "namespace": key.namespace,
        "prompt": key.length,
        "device": found.device.length,
        "reachable": found.reachable.length,
        "rebuild": found.rebuild.length if cache.rebuild else found.device.length,
        "rebuild_tokens": found.rebuild_tokens if cache.rebuild else 0,
        "path": found.path_length,
        "known": found.known.length,
        "remembers": state.ghosts is not None,
        "misses": misses_shown(parts, names, tree_clock(state.ghosts)()),
    }
    yield {
        "losses": [
            {
                "component": loss.component,
                "kept_on": None if loss.kept_on is None else int(loss.kept_on),
                "begin": loss.begin,
                "end": loss.end,
            }
            for loss in tree.explain(key).losses
        ],
    }
    yield {"nodes": _nodes(state, key)}


def _nodes(state: TreeState, key: Key) -> list[dict[str, Any]]:
    root = state.roots.get((key.namespace, key.bigram))
    if root is None:
        return []
    last, length = walk(state, key, root, key.length // state.page_size * state.page_size)
    shown: list[dict[str, Any]] = []
    node: Node | None = last
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
