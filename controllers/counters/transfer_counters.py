"""The counters of one direction's completed copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.counters.latency_counter import LatencyCounter

if TYPE_CHECKING:
    from collections.abc import Callable


class TransferCounters:
    """What was copied in one direction; see TransferStats.

    Args:
        tell: see CacheCounters.tell.

    Attributes:
        meter: is told of each copy that is counted, its pages by component and its bytes; None for nobody.
    """

    __slots__ = ("component_pages", "count", "latency", "meter", "pages", "size_bytes", "tell")

    def __init__(self, tell: Callable[..., None]) -> None:
        self.tell = tell
        self.count = 0
        self.pages = 0
        self.size_bytes = 0
        self.component_pages: dict[str, int] = {}
        self.latency = LatencyCounter()
        self.meter: Callable[[dict[str, int], int], None] | None = None

    def add(self, pages: dict[str, int], size_bytes: int, took_s: float) -> None:
        """Count one copy, pages by component. Cost: O(components)."""
        self.count += 1
        self.size_bytes += size_bytes
        for name, count in pages.items():
            self.pages += count
            self.component_pages[name] = self.component_pages.get(name, 0) + count
        self.latency.add(took_s)
        if self.meter is not None:
            self.tell(self.meter, pages, size_bytes)
