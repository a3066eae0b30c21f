"""Prompt tokens by namespace since the last telling: hits, and misses by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.inputs.printable import printable
from unified_tree.misses.causes import LOAD_FAILED
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.controllers.counters.observers import ObservedRequest

MAX_NAMESPACES = 64
"""Between two tellings; the others are one."""
SERIES = 1 + len(MissCause)


class NamespaceTally:
    """What is counted: by namespace the hit tokens, and behind them those that were computed, by cause."""

    def __init__(self) -> None:
        self._tokens: dict[str | None, list[int]] = {}

    def acquired(self, request: ObservedRequest, namespace: str) -> None:
        """Count a request. Cost: O(its misses)."""
        tokens = self._of(printable(namespace))
        tokens[0] += request.compute_from
        for miss in request.misses:
            tokens[1 + miss.code] += miss.end - miss.begin

    def load_failed(self, namespace: str, count: int) -> None:
        """So many tokens that were counted as hits are computed after all."""
        tokens = self._of(printable(namespace))
        tokens[0] -= count
        tokens[1 + LOAD_FAILED] += count

    def take(self) -> list[tuple[str | None, list[int]]]:
        """What was counted since the last call, by namespace; the last may be all others, without a name."""
        told = sorted(self._tokens.items(), key=lambda entry: entry[0] is None)
        self._tokens = {}
        return told

    def _of(self, namespace: str) -> list[int]:
        name = namespace if namespace in self._tokens or len(self._tokens) < MAX_NAMESPACES else None
        return self._tokens.setdefault(name, [0] * SERIES)
