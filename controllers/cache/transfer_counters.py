"""The counters of one direction's completed copies."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from unified_tree.controllers.latency_counter import LatencyCounter


@mypyc_attr(allow_interpreted_subclasses=True)
class TransferCounters:
    """What was copied in one direction; see TransferStats."""

    __slots__ = ("component_pages", "count", "latency", "pages", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.pages = 0
        self.size_bytes = 0
        self.component_pages: dict[str, int] = {}
        self.latency = LatencyCounter()

    def add(self, pages: dict[str, int], size_bytes: int, took_s: float) -> None:
        """Count one copy, pages by component. Cost: O(components)."""
        self.count += 1
        self.size_bytes += size_bytes
        for name, count in pages.items():
            self.pages += count
            self.component_pages[name] = self.component_pages.get(name, 0) + count
        self.latency.add(took_s)
