"""The tree as text, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.node import Node, Tier

if TYPE_CHECKING:
    from unified_tree.state import TreeState


def dump(state: TreeState) -> str:
    """One line a node: id, token range, values as `name:pages` with `*` per lock and `!` if stranded, `h:` before host ones."""
    lines = []
    for (namespace, bigram), root in state.roots.items():
        lines.append(f"namespace {namespace!r}{' bigrams' if bigram else ''}")
        pending = [(child, 1) for child in root.children()]
        while pending:
            node, depth = pending.pop()
            lines.append("  " * depth + _line(state, node))
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
                words.append(f"{prefix}{component.name}:{value.page_count}{'*' * value.locks}{'!' * value.stranded}")
    return " ".join(words)
