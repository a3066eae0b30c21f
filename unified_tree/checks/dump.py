"""The tree as text, and which node owns a page: tools to debug a wrong or missing hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.inputs.printable import printable
from unified_tree.lookup.matching import key_of
from unified_tree.nodes.node import Node
from unified_tree.terms.results import Boundary
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.state.tree_state import TreeState


def dump(state: TreeState, *, tokens: bool) -> str:
    """See UnifiedTree.dump."""
    lines = []
    for (namespace, bigram), root in state.roots.items():
        lines.append(f"namespace '{printable(namespace)}'{' bigrams' if bigram else ''}")
        pending = [(child, 1) for child in root.children()]
        while pending:
            node, depth = pending.pop()
            lines.append("  " * depth + _line(state, node))
            if tokens:
                width = 2 if bigram else 1
                elements = np.frombuffer(node.edge, np.int64)[::width].tolist()
                lines += ["  " * depth + f"  {line}" for line in (f"tokens {elements}", *_pages(state, node))]
            pending.extend((child, depth + 1) for child in node.children())
    return "\n".join(lines)


def _line(state: TreeState, node: Node) -> str:
    words = [f"#{node.id} [{node.start}, {node.end})"]
    if node.resumable:
        words.append("resumable")
    for tier in (Tier.DEVICE, Tier.HOST):
        for component, value in zip(state.components, node.values(tier), strict=True):
            if value is not None:
                prefix = "h:" if tier else ""
                marks = "*" * value.locks + "!" * value.stranded + "~" * value.spare
                words.append(f"{prefix}{component.name}:{value.page_count}{marks}")
    return " ".join(words)


def _pages(state: TreeState, node: Node) -> list[str]:
    return [
        f"{'h:' if tier else ''}{component.name} pages {np.frombuffer(value.pages, np.int64).tolist()}"
        for tier in (Tier.DEVICE, Tier.HOST)
        for component, value in zip(state.components, node.values(tier), strict=True)
        if value is not None
    ]


def owner_of_page(state: TreeState, component: int, page: int, tier: Tier) -> tuple[Boundary, Key] | None:
    """See UnifiedTree.owner_of_page."""
    wanted = page.to_bytes(PAGE_ID_BYTES, "little", signed=True)
    for node in state.nodes:
        value = node.values(tier)[component]
        if value is None or wanted not in value.pages:
            continue
        ids = np.frombuffer(value.pages, np.int64)
        places = np.flatnonzero(ids == page)  # the bytes may also match across two ids
        if places.size:
            end = node.end
            if component not in state.layout.points:
                end -= (ids.size - 1 - int(places[0])) * state.page_size
            return Boundary(node.id, end), key_of(node, end)
    return None
