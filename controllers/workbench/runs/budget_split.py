"""How the device budget of a replay is split between pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.pools.host_layout import host_page_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.workbench.server.server_settings import ServerSettings
    from unified_tree.declare.block_budget import BlockBudget


def split_for_server(
    composition: Composition, device_bytes: int, settings: ServerSettings, page_counts: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Pages by pool: what the composition proposes for so many running requests, and room for one step's chunk in windows.

    A chunk is written whole before what has left the window is given back; without that room every chunk would push out
    the windows that are kept.

    Args:
        page_counts: pools whose size is settled.

    Raises ConfigurationError where not even one request would fit.
    """
    settled = dict(page_counts or {})
    pages = composition.split_budget(device_bytes, running_requests=settings.concurrency, page_counts=settled)
    chunk_pages = -(-settings.chunk_tokens // composition.page_size)
    with_chunk = {
        component.name: pages[component.name] + chunk_pages
        for component in composition.components
        if component.shares is None and component.coverage.window_tokens is not None and component.name not in settled
    }
    if not with_chunk:
        return pages
    return composition.split_budget(device_bytes, running_requests=settings.concurrency, page_counts=settled | with_chunk)


def tokens_in(budget: BlockBudget, block_count: int, composition: Composition, window_tokens: int) -> int:
    """How many tokens of path so many blocks hold, beside what one request takes of the other kinds.

    Args:
        window_tokens: tokens that it holds of a window, at most.
    """
    path_blocks = 0
    for component in composition.components:
        if component.shares is None:
            blocks, coverage = budget.page_blocks[component.name], component.coverage
            if coverage.is_path:
                path_blocks += blocks
            elif coverage.is_exact:
                block_count -= blocks
            else:
                block_count -= blocks * -(-window_tokens // composition.page_size)
    return max(0, block_count) // path_blocks * composition.page_size


def path_only_split(composition: Composition, device_bytes: int, page_counts: Mapping[str, int]) -> dict[str, int]:
    """Pages of the path pools, equally many of each, were all of the budget theirs.

    Args:
        page_counts: pages by pool, for paths of no bytes.
    """
    page_bytes = composition.pool_page_bytes()
    paths = [c.name for c in composition.components if c.shares is None and c.coverage.is_path]
    together = sum(page_bytes[name] for name in paths)
    return {name: device_bytes // together if together else page_counts[name] for name in paths}


def path_only_host_split(composition: Composition, host_bytes: int, page_counts: Mapping[str, int]) -> dict[str, int]:
    """Host pages of the paths, likewise."""
    paths = [c for c in composition.components if c.coverage.is_path]
    together = sum(host_page_bytes(c.page_bytes) for c in paths)
    return {c.name: host_bytes // together if together else page_counts[c.name] for c in paths}
