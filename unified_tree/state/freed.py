"""The pages that an eviction freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.terms.results import EvictResult, record
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value
    from unified_tree.state.tree_state import TreeState


class Freed:
    """The pages that an eviction freed, by component index, and its counts."""

    def __init__(self, state: TreeState, tier: Tier) -> None:
        self._state = state
        self._tier = tier
        self._chunks: dict[int, list[bytes]] = {}
        self._elsewhere: dict[int, list[bytes]] = {}
        self.page_counts = [0] * len(state.components)
        self.victims = 0
        self.tombstones = 0
        self.deleted_nodes = 0
        self.lost = 0

    def add(self, values: list[Value]) -> None:
        """Values that were removed; a sharer's device value has no pages to give."""
        for value in values:
            if value.tier is Tier.HOST or self._state.layout.owner_of[value.component] == value.component:
                self.add_pages(value.component, value.tier, value.pages)

    def add_pages(self, component: int, tier: Tier, pages: bytes) -> None:
        """Pages that the tree has no more."""
        chunks = self._chunks if tier is self._tier else self._elsewhere
        of_component = chunks.get(component)
        if of_component is None:
            chunks[component] = [pages]
        else:
            of_component.append(pages)
        count = len(pages) // PAGE_ID_BYTES
        state = self._state
        (state.host_pools if tier is Tier.HOST else state.device_pools)[component].evicted_pages += count
        if tier is self._tier:
            self.page_counts[component] += count

    def result(self) -> EvictResult:
        """The result so far."""
        by_name = self._state.by_name
        here, elsewhere = by_name(self._chunks), by_name(self._elsewhere) if self._elsewhere else {}
        return record(EvictResult, (here, elsewhere, self.victims, self.tombstones, self.deleted_nodes, self.lost))
