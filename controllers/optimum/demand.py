"""What a boundary needs of each pool, and how much room each pool has for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.component import Component

    Room: TypeAlias = int | NDArray[np.int64]
    """For what nobody uses: the same at all admissions, or [requests], at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pools that can run short, and what of them a boundary needs; the others are left out.

    Attributes:
        path_tokens: room of the smallest path pool, in tokens; None for no end.
        windows: of each window's pool, the tokens that a boundary needs before it, in whole pages, and the room for such.
        states: of each pool of states, the room for them.
        grid: boundaries with states are at multiples of it; 1 without.
        rebuild_tokens: so many tokens run again where a request resumes without windows; None where it cannot.
    """

    path_tokens: Room | None = None
    windows: tuple[tuple[int, Room], ...] = ()
    states: tuple[Room, ...] = ()
    grid: int = 1
    rebuild_tokens: int | None = None

    @classmethod
    def of(cls, components: Sequence[Component], page_size: int, rooms: Mapping[str, Room]) -> Demand:
        """Of required components with pages of their own.

        Args:
            rooms: pages by component, of all tiers together; one left out is without end.
        """
        paths: list[Room] = []
        windows: list[tuple[int, Room]] = []
        states: list[Room] = []
        grid, rebuilds = 1, []
        for component in components:
            if not component.required or component.shares is not None:
                continue
            count, window = rooms.get(component.name), component.coverage.window_tokens
            if component.coverage.is_path:
                if count is not None:
                    paths.append(count * page_size)
            elif window is not None:
                rebuilds.append(component.rebuild_tokens)
                if count is not None:
                    windows.append((-(-window // page_size) * page_size, count * page_size))
            else:
                grid = max(grid, component.save_grid_tokens)
                if count is not None:
                    states.append(count)
        can_rebuild = rebuilds and None not in rebuilds and not any(c.required and _is_state(c) for c in components)
        return cls(
            path_tokens=np.minimum.reduce(np.broadcast_arrays(*paths)) if paths else None,
            windows=tuple(windows),
            states=tuple(states),
            grid=grid,
            rebuild_tokens=sum(tokens or 0 for tokens in rebuilds) if can_rebuild else None,
        )


def _is_state(component: Component) -> bool:
    return not component.coverage.is_path and component.coverage.window_tokens is None
