"""How much pages are, in tokens and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.tree import UnifiedTree


def is_in_pages(tree: UnifiedTree) -> bool:
    """Whether sizes are shown in pages, because no component says how many bytes its pages have."""
    return not any(component.page_bytes for component in tree.components)


def page_bytes(tree: UnifiedTree) -> dict[str, int]:
    """How large a page of each component is shown, in bytes, or in pages."""
    in_pages = is_in_pages(tree)
    return {component.name: 1 if in_pages else component.page_bytes for component in tree.components}


class PageSizes:
    """The sizes of one tree's pages."""

    def __init__(self, tree: UnifiedTree) -> None:
        self._page_tokens = {
            component.name: tree.page_size if component.coverage.is_path else 0 for component in tree.components
        }
        self._page_bytes = page_bytes(tree)

    def of(self, counts: Mapping[str, int]) -> tuple[int, int, int]:
        """How many tokens, pages and bytes so many pages by component are; the tokens are those of which a path has pages."""
        tokens = max((count * self._page_tokens[name] for name, count in counts.items()), default=0)
        return tokens, sum(counts.values()), sum(count * self._page_bytes[name] for name, count in counts.items())
