"""Which components of a cache have their own device pages, and what a request keeps of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.declare.component import Component


class CacheLayout:
    """What follows from the components of a cache; never changed.

    Args:
        components: all of them.
        page_size: tokens a page.
        save_grid_tokens: the lengths at which a state or a window can be saved are multiples of this.

    Attributes:
        page_size, components, save_grid_tokens: as given.
        paths: names of the `Path` components with pages of their own; `optional_paths` those of them that may be missing.
        windows: names and `window_tokens` of the `Trailing` components with pages of their own; `optional_windows` the names of
            those that may be missing.
        point: name of the `Point` component with pages of its own; None without one.
        window_indices, saved_indices: the windows, and the windows and the point, by their place among the components.
        sharers: components in the pages of another.
        owner_of: by component, the one whose device pages hold it.

    Raises ConfigurationError for two `Point` components with pages of their own.
    """

    def __init__(self, components: Sequence[Component], *, page_size: int, save_grid_tokens: int) -> None:
        owners = [c for c in components if c.shares is None]
        indexed = [(i, c.coverage) for i, c in enumerate(components) if c.shares is None]
        points = [c.name for c in owners if c.coverage.is_exact]
        if len(points) > 1:
            raise ConfigurationError(
                f"one Point component may have pages of its own, the others share them; there are {points}: keep both states "
                f"in one page, or give all but one of them shares={points[0]!r}"
            )
        self.page_size = page_size
        self.paths = tuple([c.name for c in owners if c.coverage.is_path])
        self.optional_paths = frozenset([c.name for c in owners if c.coverage.is_path and not c.required])
        self.windows = tuple([(c.name, c.coverage.window_tokens) for c in owners if c.coverage.window_tokens is not None])
        self.optional_windows = frozenset([c.name for c in owners if c.coverage.window_tokens is not None and not c.required])
        self.point = points[0] if points else None
        self.window_indices = tuple([i for i, coverage in indexed if coverage.window_tokens is not None])
        self.saved_indices = tuple([i for i, coverage in indexed if not coverage.is_path])
        self.components = tuple(components)
        self.sharers = tuple([c for c in components if c.shares is not None])
        self.owner_of: Mapping[str, str] = {c.name: c.shares or c.name for c in components}
        self.save_grid_tokens = save_grid_tokens

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
