"""How the device budget of a replay is split between pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.server_settings import ServerSettings


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
