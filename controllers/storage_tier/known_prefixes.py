"""Prefixes whose pages were hashed, so that of a longer prefix only the tail is copied and hashed, and looked for among the
stored digests.

A turn of a conversation adds a few pages to a prefix of thousands. The node at which the earlier turn ends names that prefix:
its id is never used again, a split leaves it where it is, and the tokens up to there never change. A node that is cut names
what is left of the prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unified_tree.controllers.storage.digests import Digests
from unified_tree.controllers.storage_tier.stored_digests import NOT_SEEN, Seen

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.terms.results import Boundary
    from unified_tree.terms.tier import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrefix:
    """A prefix of whole pages under one weights version.

    Attributes:
        weights_version: of the key chain; `digests`: of that chain, one a page.
        seen: how far it was seen in the store.
    """

    weights_version: str
    digests: Digests
    seen: Seen = NOT_SEEN


class KnownPrefixes:
    """The known prefixes of one tree, by the node at whose end each ends.

    Args:
        max_pages: how many pages those that are kept have in all; the one not used for longest goes first, the latest stays
            however long it is. A page takes 32 bytes.
    """

    def __init__(self, page_size: int, max_pages: int) -> None:
        self._page_size = page_size
        self._max_pages = max_pages
        self._pages = 0
        self._by_node: OrderedDict[NodeId, KnownPrefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_node)

    def add(self, boundary: Boundary, prefix: KnownPrefix) -> None:
        """Keep what is known up to a boundary that ends a node."""
        before = self._by_node.pop(boundary.node, None)
        self._by_node[boundary.node] = prefix
        self._pages += len(prefix.digests) - (0 if before is None else len(before.digests))
        while self._pages > self._max_pages and len(self._by_node) > 1:
            _, oldest = self._by_node.popitem(last=False)
            self._pages -= len(oldest.digests)

    def _shorten(self, node: Node, known: KnownPrefix) -> KnownPrefix:
        """A node was cut since: keep what is known of what it has left."""
        pages, seen = node.end // self._page_size, known.seen
        shorter = replace(known, digests=known.digests[:pages], seen=seen._replace(page_count=min(seen.page_count, pages)))
        self._pages -= len(known.digests) - pages
        self._by_node[node.id] = shorter
        return shorter

    def longest(self, node: Node | None, length: int, weights_version: str) -> KnownPrefix:
        """The longest known prefix of a boundary of this length, which lies in `node` (`Locks.find`); an empty one if none is
        known.

        Cost: O(nodes between its end and the boundary).
        """
        while node is not None:
            known = self._by_node.get(node.id)
            if known is not None and node.end <= length and known.weights_version == weights_version:
                self._by_node.move_to_end(node.id)
                if len(known.digests) * self._page_size > node.end:
                    known = self._shorten(node, known)
                return known
            node = node.parent
        return KnownPrefix(weights_version=weights_version, digests=Digests())
