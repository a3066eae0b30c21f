"""Trees of a shape that some operation finds hard: one node with very many children, one very long chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import Boundary, Component, InsertResult, Key, Path, Point, Trailing, UnifiedTree

Int64s = NDArray[np.int64]
FULL = Component(name="full", coverage=Path())
MAMBA = Component(name="mamba", coverage=Point())
MARK = Component(name="mark", coverage=Point(), required=False)
"""An optional state: saving one cuts a node, and gates nothing."""
NO_PAGES = np.empty(0, np.int64)
ROOM = 1 << 40
"""More pages than any tree here has."""
STEM_TOKENS = 64
FIRST_LEAF_TOKEN = 2_000_000


def window(tokens: int, name: str = "swa") -> Component:
    """A required sliding window."""
    return Component(name=name, coverage=Trailing(tokens))


def sets(name: str) -> list[Component]:
    """The component sets that sizes are compared over."""
    return {"full": [FULL], "full_swa": [FULL, window(512)], "full_mamba": [FULL, MAMBA]}[name]


class Grown:
    """A tree being grown, and page ids that nobody has had yet."""

    def __init__(self, components: Sequence[Component], page_size: int, policy: str = "lru") -> None:
        self.tree = UnifiedTree(components, page_size, policy=policy)
        self.page_size = page_size
        self.stem = np.arange(900_000, 900_000 + max(STEM_TOKENS, page_size), dtype=np.int64)
        self._windows = {c.name: c.coverage.window_tokens for c in components if c.coverage.window_tokens}
        self._states = [c.name for c in components if c.coverage.is_exact]
        self._taken: Counter[str] = Counter()

    def fresh(self, pool: str, count: int) -> Int64s:
        """Page ids not given before."""
        first = self._taken[pool]
        self._taken[pool] += count
        return np.arange(first, first + count, dtype=np.int64)

    def supply(self, needs: Mapping[str, int]) -> dict[str, Int64s]:
        """Fresh pages for an effect."""
        return {pool: self.fresh(pool, count) for pool, count in needs.items()}

    def put(self, tokens: Int64s, new_tokens: int, *, namespace: str = "", **more: Any) -> InsertResult:
        """Insert what a request would bring of a key: pages for its last tokens, its window's, its state."""
        count = new_tokens // self.page_size
        pages = {"full": self.fresh("full", count)}
        for name, tokens_wide in self._windows.items():
            pages[name] = self.fresh(name, min(count, -(-tokens_wide // self.page_size)))
        states = {name: {len(tokens): int(self.fresh(name, 1)[0])} for name in self._states}
        return self.tree.insert(Key(tokens, namespace), pages, states, **more)

    def leaf(self, index: int) -> Int64s:
        """The key of one leaf of a page, below the stem."""
        first = FIRST_LEAF_TOKEN + index * self.page_size
        return np.concatenate((self.stem, np.arange(first, first + self.page_size, dtype=np.int64)))

    def plant(self, namespace: str = "") -> Boundary:
        """Insert the stem."""
        return self.put(self.stem, self.stem.size, namespace=namespace).boundary

    def grow(self, leaves: range, **more: Any) -> list[Boundary]:
        """Insert leaves below the stem, in order; returns where each ends."""
        return [self.put(self.leaf(index), self.page_size, **more).boundary for index in leaves]

    def chain(self, nodes: int, namespace: str = "") -> Int64s:
        """Insert one path of so many nodes of a page each; returns its key. For trees of paths alone.

        It is cut from its end upwards, each time at the node below the root, since the way down a chain is long.
        """
        tree, size = self.tree, self.page_size
        tokens = np.arange(nodes * size, dtype=np.int64)
        self.put(tokens, tokens.size, namespace=namespace)
        whole = Key(tokens, namespace)
        for cut in range((nodes - 1) * size, 0, -size):
            tree.lock(tree.match_prefix(whole, limit=cut, touch=False).device).release()
        assert tree.node_count >= nodes
        return tokens

    def settle(self) -> None:
        """Finish what operations have put off, where the tree puts anything off."""
        settle = getattr(self.tree, "settle", None)
        if settle is not None:
            settle()
