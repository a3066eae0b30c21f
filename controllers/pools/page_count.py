"""How many pages a pool may have."""

from __future__ import annotations

from unified_tree.errors import ConfigurationError


def check_page_count(component: str, page_count: int) -> None:
    """Raise ConfigurationError for a pool whose number of pages is not a positive integer."""
    if type(page_count) is not int or page_count <= 0:
        raise ConfigurationError(f"{component}: a pool needs a positive number of pages, not {page_count!r}")
