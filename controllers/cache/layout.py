"""Which components of a cache have their own device pages, and what a request keeps of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.declare.component_layout import ComponentLayout


class CacheLayout:
    """What a request keeps of each component; never changed.

    Args:
        kinds: the components, as the tree groups them.

    Attributes:
        page_size, components, save_grid_tokens: of the components.
        paths: names of the `Path` components with pages of their own; `optional_paths` those of them that may be missing.
        windows: names and `window_tokens` of the `Trailing` components with pages of their own; `optional_windows` the names of
            those that may be missing.
        point: name of the `Point` component with pages of its own; None without one.
        window_indices, saved_indices: the windows, and the windows and the point, by their place among the components.
        sharers: components in the pages of another.
        owner_of: by component, the one whose device pages hold it.

    Raises ConfigurationError for two `Point` components with pages of their own.
    """

    def __init__(self, kinds: ComponentLayout) -> None:
        self.components = every = kinds.components
        self.page_size = kinds.page_size
        self.save_grid_tokens = kinds.save_grid_tokens
        points = [every[i].name for i in kinds.owned_points[0]]
        if len(points) > 1:
            raise ConfigurationError(
                f"one Point component may have pages of its own, the others share them; there are {points}: keep both states "
                f"in one page, or give all but one of them shares={points[0]!r}"
            )
        self.point = points[0] if points else None
        paths, windows = kinds.owned_paths[0], kinds.owned_windows[0]
        self.paths = tuple([every[i].name for i in paths])
        self.optional_paths = frozenset([every[i].name for i in paths if not every[i].required])
        self.windows = tuple([(every[i].name, window) for i, window in windows])
        self.optional_windows = frozenset([every[i].name for i, _ in windows if not every[i].required])
        self.window_indices = tuple([i for i, _ in windows])
        self.saved_indices = tuple(sorted([*self.window_indices, *kinds.owned_points[0]]))
        self.sharers = tuple([c for c in every if c.shares is not None])
        self.owner_of: Mapping[str, str] = {c.name: c.shares or c.name for c in every}

    @property
    def needs_saves(self) -> bool:
        """Whether resuming at a length needs a window or a state that was saved there."""
        return bool(self.saved_indices)

    def pages(self, tokens: int) -> int:
        """Pages for so many tokens, rounded up."""
        return -(-tokens // self.page_size)

    def floor_to_page(self, tokens: int) -> int:
        """`tokens`, rounded down to whole pages."""
        return tokens // self.page_size * self.page_size
