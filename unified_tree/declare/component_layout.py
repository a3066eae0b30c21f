"""The components of a tree, grouped by how their values lie at a node; all that follows from them and never changes."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

from unified_tree.declare.coverage import MAX_TOKENS, NO_LENGTH
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, UnifiedTreeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.declare.component import Component
    from unified_tree.declare.suffix import Suffix


class SharedWindow(NamedTuple):
    """A required window in the pages of another; components by index."""

    sharer: int
    window: Suffix
    owner: int
    owner_window: Suffix


class Owned:
    """The components with pages of their own on one tier, by index: paths, windows with their Suffix, and points."""

    __slots__ = ("paths", "points", "windows")

    def __init__(self, paths: tuple[int, ...], windows: tuple[tuple[int, Suffix], ...], points: tuple[int, ...]) -> None:
        self.paths = paths
        self.windows = windows
        self.points = points


class ComponentLayout:
    """The groups and constants of a tree's components, by their index; never changed. The tree's state and the cache share it.

    Attributes:
        components, page_size: as given; `index`: of a component by its name.
        is_path: whether a component is a path. `paths`, `windows`, `points`: the components of each way; windows as (index,
            Suffix).
        required_paths, required_windows, required_points: those that a boundary needs.
        is_required_window: the same by component index.
        is_gate: whether a component is one of these windows or points, by index.
        required_owned_paths: of these paths, the ones with device pages of their own.
        owner_of: whose device pages a component's values live in, by index; itself if it has its own.
        sharers_of: who else lives in a component's device pages.
        on_device, on_host: the components with pages of their own there.
        shared_windows: required windows that live in the pages of others.
        is_gated: some required component is not a path, so not every length is a boundary.
        rebuild_tokens: how many tokens rebuild every required window; None where no rebuild is exact. `rebuilt_from`: the
            shortest path from which a prompt resumes without any window, by that or on the free grid; NO_LENGTH for none.
        free_grid_tokens: every multiple of it is a boundary wherever the paths are, for no window needs anything there; 0 for
            no such grid.
        save_grid_tokens: the grid on which boundaries are saved. `state_grid_tokens`: that on which every kind can be saved,
            which is coarser where an optional state with pages of its own has a grid that boundaries need not keep to.

    Raises ConfigurationError for grids without a common multiple up to 2**48.
    """

    def __init__(self, components: Sequence[Component], page_size: int) -> None:
        self.components = tuple(components)
        self.page_size = page_size
        self.index = {component.name: i for i, component in enumerate(self.components)}
        indexed = list(enumerate(self.components))
        self.is_path = [c.coverage.is_path for c in self.components]
        self.owner_of = [i if c.shares is None else self.index[c.shares] for i, c in indexed]
        self.sharers_of = [tuple(j for j, c in indexed if c.shares == owner.name) for _, owner in indexed]
        self.paths = tuple(i for i, c in indexed if c.coverage.is_path)
        self.windows = tuple((i, suffix) for i, c in indexed if (suffix := c.coverage.suffix) is not None)
        self.points = tuple(i for i, c in indexed if c.coverage.is_exact)
        owned = [i for i, owner in enumerate(self.owner_of) if i == owner]
        self.on_device = Owned(
            tuple(i for i in self.paths if i in owned),
            tuple((i, w) for i, w in self.windows if i in owned),
            tuple(i for i in self.points if i in owned),
        )
        self.on_host = Owned(self.paths, self.windows, self.points)
        self.required_paths = tuple(i for i in self.paths if self.components[i].required)
        self.required_owned_paths = tuple(i for i in self.required_paths if i in owned)
        self.required_windows = tuple((i, w) for i, w in self.windows if self.components[i].required)
        self.required_points = tuple(i for i in self.points if self.components[i].required)
        window_of = dict(self.windows)
        gates = dict(self.required_windows)
        self.is_required_window = [i in gates for i in range(len(self.components))]
        self.is_gate = [c.required and not c.coverage.is_path for c in self.components]
        self.shared_windows = tuple(
            SharedWindow(i, window, self.owner_of[i], window_of[self.owner_of[i]])
            for i, window in self.required_windows
            if self.owner_of[i] != i
        )
        self.is_gated = bool(self.required_windows or self.required_points)
        self.free_grid_tokens = 0
        if self.required_windows and not self.required_points and not any(w.back_tokens for _, w in self.required_windows):
            self.free_grid_tokens = lcm(page_size, *(w.grid_tokens for _, w in self.required_windows))
        rebuilds = [self.components[i].rebuild_tokens for i, _ in self.required_windows if self.components[i].shares is None]
        self.rebuild_tokens: int | None = None
        if rebuilds and not self.required_points and None not in rebuilds:
            self.rebuild_tokens = sum(tokens for tokens in rebuilds if tokens is not None)
        self.rebuilt_from = NO_LENGTH
        if self.rebuild_tokens is not None:
            self.rebuilt_from = (2 - (1 - self.rebuild_tokens) // self.page_size) * self.page_size
        if self.free_grid_tokens:
            self.rebuilt_from = self.free_grid_tokens
        self.state_grid_tokens = lcm(self.page_size, *(c.save_grid_tokens for c in self.components))
        if self.state_grid_tokens > MAX_TOKENS:
            raise ConfigurationError(
                f"the grids of all components have no common multiple up to 2**48: {self.state_grid_tokens}"
            )
        self.save_grid_tokens = self.state_grid_tokens
        if self.is_gated:
            gating = [c.save_grid_tokens for i, c in indexed if c.required or not self._is_optional_state(self.owner_of[i])]
            self.save_grid_tokens = lcm(self.page_size, *gating)

    def _is_optional_state(self, i: int) -> bool:
        return self.components[i].coverage.is_exact and not self.components[i].required

    def index_of(self, component: Any) -> int:  # any object, so that compiled code raises UnifiedTreeError too
        """A component's index. Raises UnifiedTreeError for an unknown one."""
        i = self.index.get(component) if isinstance(component, str) else None
        if i is None:
            raise UnifiedTreeError(f"there is no component {repr_of(component)}; there are {', '.join(self.index)}")
        return i
