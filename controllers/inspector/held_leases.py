"""The leases that hold most and longest, found in slices."""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.inspector.figures import page_bytes
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.counters.observers import ObservedRequest
    from unified_tree.controllers.inspector.inspected import Inspected

SHOWN = 20
LEASES_A_SLICE = 2


class HeldLeases:
    """One look at all open leases.

    Args:
        acquired: number and time of each lease that was acquired while someone watched.
    """

    def __init__(self, cache: Inspected, acquired: Mapping[ObservedRequest, tuple[int, float]], now_s: float) -> None:
        self._pending = list(cache.leases)
        self._count = len(self._pending)
        self._acquired = acquired
        self._now_s = now_s
        self._page_bytes = page_bytes(cache.tree)
        for component in cache.tree.components:
            if component.shares is not None:
                self._page_bytes[component.shares] += component.page_bytes
        points = [component for component in cache.tree.components if component.coverage.is_exact]
        self._point = next((component.name for component in points if component.shares is None), None)
        self._largest: list[tuple[float, int, dict[str, Any]]] = []
        self._longest: list[tuple[float, int, dict[str, Any]]] = []

    @property
    def has_ended(self) -> bool:
        """Whether all were seen."""
        return not self._pending

    def step(self) -> None:
        """Look at some more of them. Cost: O(LEASES_A_SLICE)."""
        for _ in range(min(LEASES_A_SLICE, len(self._pending))):
            lease = self._pending.pop()
            if not lease.is_released:
                shown = self._shown(lease)
                _keep(self._largest, shown["bytes"], len(self._pending), shown)
                _keep(self._longest, shown["held_s"] or 0.0, len(self._pending), shown)

    def result(self) -> dict[str, Any]:
        """What was found, the first first."""
        return {
            "count": self._count,
            "largest": [entry[2] for entry in sorted(self._largest, reverse=True)],
            "longest": [entry[2] for entry in sorted(self._longest, reverse=True)],
        }

    def _shown(self, lease: Lease) -> dict[str, Any]:
        number, since_s = self._acquired.get(lease, (None, None))
        pages: dict[str, int] = {}
        held = private = 0
        for name in lease.tables:
            table = lease.tables[name]
            count, own = table.size - table.first_held, table.size - max(table.private_from, table.first_held)
            pages[name] = count
            held += count * self._page_bytes[name]
            private += own * self._page_bytes[name]
        if self._point is not None:
            states = len(lease.save_pages) + (lease.state_page is not None)
            pages[self._point] = states
            held += states * self._page_bytes[self._point]
            private += states * self._page_bytes[self._point]
        return {
            "number": number,
            "held_s": None if since_s is None else self._now_s - since_s,
            "namespace": printable(lease.namespace),
            "prompt": lease.prompt_tokens,
            "cached": lease.cached_tokens,
            "length": lease.length,
            "committed": lease.committed,
            "loading": lease.is_loading,
            "pages": pages,
            "bytes": held,
            "private": private,
        }


def _keep(heap: list[tuple[float, int, dict[str, Any]]], rank: float, serial: int, shown: dict[str, Any]) -> None:
    if len(heap) < SHOWN:
        heappush(heap, (rank, serial, shown))
    else:
        heappushpop(heap, (rank, serial, shown))
