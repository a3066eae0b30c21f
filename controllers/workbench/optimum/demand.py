"""What a boundary needs of each pool, and how much room each pool has for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.declare.component import Component

    Room: TypeAlias = int | NDArray[np.int64]
    """For what nobody uses: the same at all admissions, or [requests], at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRoom:
    """Room that all pools of a demand share.

    Attributes:
        units: how much it is.
        weights: units that a token of the paths takes, then a token of each window, then each state.
    """

    units: Room
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pools that can run short, and what of them a boundary needs; the others are left out.

    Attributes:
        path_tokens: room of the smallest path pool, in tokens; None for no end.
        windows: of each window's pool, the tokens that a boundary needs before it, in whole pages, and the room for such.
        states: of each pool of states, the room for them.
        grid: boundaries with states are at multiples of it; 1 without.
        rebuild_tokens: so many tokens run again where a request resumes without windows; None where it cannot.
        locks_states: whether a running request may lock the state that it resumed from for longer than its prompt takes: until
            its windows there are gone, too.
        shared: what all these pools share; the room of each is then what it could have of it. None where they share nothing.
    """

    path_tokens: Room | None = None
    windows: tuple[tuple[int, Room], ...] = ()
    states: tuple[Room, ...] = ()
    grid: int = 1
    rebuild_tokens: int | None = None
    locks_states: bool = False
    shared: SharedRoom | None = None

    @property
    def rooms(self) -> list[Room]:
        """What can run short: that of the paths, of each window and of the states, or the one that they share."""
        if self.shared is not None:
            return [self.shared.units]
        paths = [] if self.path_tokens is None else [self.path_tokens]
        return [*paths, *(tokens for _, tokens in self.windows), *self.states]

    @property
    def claims(self) -> list[tuple[int, int]]:
        """Of each pool, paths first, then windows, then states: which room it takes of, and how much a token or state takes."""
        if self.shared is not None:
            return [(0, weight) for weight in self.shared.weights]
        return [(number, 1) for number in range(len(self.rooms))]

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
            count, suffix = rooms.get(component.name), component.coverage.suffix
            if component.coverage.is_path:
                if count is not None:
                    paths.append(count * page_size)
            elif suffix is not None:
                rebuilds.append(component.rebuild_tokens)
                if count is not None and suffix.back_tokens:  # chunks need nothing at their ends: the bound leaves them out
                    windows.append((-(-suffix.back_tokens // page_size) * page_size, count * page_size))
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
            locks_states=any(component.coverage.window_tokens is not None for component in components),
        )

    @classmethod
    def sharing(
        cls,
        components: Sequence[Component],
        page_size: int,
        blocks: Room,
        page_blocks: Mapping[str, int],
        pinned_tokens: Room = 0,
    ) -> Demand:
        """Of required components whose pages take blocks of one memory.

        Args:
            blocks: of all tiers together.
            page_blocks: of a page, by component with pages of its own.
            pinned_tokens: of paths, in whole pages, for which there must be room besides.
        """
        owners = [component for component in components if component.required and component.shares is None]
        paths = [page_blocks[component.name] for component in owners if component.coverage.is_path]
        suffixes = [(component, component.coverage.suffix) for component in owners]
        windows = [page_blocks[c.name] for c, suffix in suffixes if suffix is not None and suffix.back_tokens]
        states = [page_blocks[component.name] * page_size for component in owners if _is_state(component)]
        blocks = blocks - pinned_tokens // page_size * sum(paths)
        together = {c.name: sum(paths) if c.coverage.is_path else page_blocks[c.name] for c in owners}
        alone = cls.of(components, page_size, {name: blocks // count for name, count in together.items()})
        weights = (*([sum(paths)] if paths else []), *windows, *states)
        return replace(alone, shared=SharedRoom(units=blocks * page_size, weights=weights))


def _is_state(component: Component) -> bool:
    return not component.coverage.is_path and component.coverage.window_tokens is None
