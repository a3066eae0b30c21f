"""The connection of one layer's cache to the pools: it reads state before a run, and writes new state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from reference_engine.sequence_rows import SequenceRows
    from unified_tree.controllers.pools import Part

Save: TypeAlias = Callable[[int], None]
"""Writes what a run added, up to the given token."""


class LayerState(Protocol):
    """One component's state in one layer.

    Attributes:
        component: that keeps it.
        can_cut: whether the state of a run's first tokens can be written without that of its last ones.
    """

    component: str
    can_cut: bool

    def parts(self, layer: Any) -> Mapping[str, tuple[Part, ...]]:
        """What a page of each component holds of this layer, read off a cache layer that has run."""
        ...

    def open(self, layer: Any, rows: SequenceRows, start: int, end: int) -> Save:
        """Fill a new cache layer with the state of the tokens [0, start), before the tokens [start, end) run.

        Returns what writes the state of new tokens back; a state cannot be written for fewer than all of them.
        """
        ...
