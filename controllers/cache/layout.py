"""Which components of a cache have their own device pages, and what a request keeps of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.component import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """What follows from the components of a cache.

    Attributes:
        page_size: tokens a page.
        paths: names of the `Path` components with pages of their own; `optional_paths` those of them that may be missing.
        windows: names and `window_tokens` of the `Trailing` components with pages of their own.
        point: name of the `Point` component with pages of its own; None without one.
        window_indices, saved_indices: the windows, and the windows and the point, by their place among the components.
        components: all of them; `sharers` those in the pages of another.
        owner_of: by component, the one whose device pages hold it.
        save_grid_tokens: the lengths at which a state or a window can be saved are multiples of this.
    """

    page_size: int
    paths: tuple[str, ...]
    optional_paths: frozenset[str]
    windows: tuple[tuple[str, int], ...]
    point: str | None
    window_indices: tuple[int, ...]
    saved_indices: tuple[int, ...]
    components: tuple[Component, ...]
    sharers: tuple[Component, ...]
    owner_of: Mapping[str, str]
    save_grid_tokens: int

    @classmethod
    def of(cls, components: Sequence[Component], page_size: int, save_grid_tokens: int) -> CacheLayout:
        """The layout of these components. Raises ConfigurationError for two `Point` components with pages of their own."""
        owners = [c for c in components if c.shares is None]
        indexed = [(i, c.coverage) for i, c in enumerate(components) if c.shares is None]
        points = [c.name for c in owners if c.coverage.is_exact]
        if len(points) > 1:
            raise ConfigurationError(
                f"one Point component may have pages of its own, the others share them; there are {points}: keep both states "
                f"in one page, or give all but one of them shares={points[0]!r}"
            )
        return cls(
            page_size=page_size,
            paths=tuple(c.name for c in owners if c.coverage.is_path),
            optional_paths=frozenset(c.name for c in owners if c.coverage.is_path and not c.required),
            windows=tuple((c.name, c.coverage.window_tokens) for c in owners if c.coverage.window_tokens is not None),
            point=points[0] if points else None,
            window_indices=tuple(i for i, coverage in indexed if coverage.window_tokens is not None),
            saved_indices=tuple(i for i, coverage in indexed if not coverage.is_path),
            components=tuple(components),
            sharers=tuple(c for c in components if c.shares is not None),
            owner_of={c.name: c.shares or c.name for c in components},
            save_grid_tokens=save_grid_tokens,
        )

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
