"""How many host pages each component gets: a proposal by the number of boundaries worth keeping, as for the device.

On host every component has its own pages, sharers of device pages included. A fixed share per pool would starve the states and
windows that a boundary (a length one can resume from) needs. So the composition's own split is used, with all components as
owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES, host_page_bytes
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition


def propose_page_counts(
    composition: Composition,
    *,
    host_bytes: int | None = None,
    host_ratio: float | None = None,
    device_page_counts: Mapping[str, int] | None = None,
    page_counts: Mapping[str, int] | None = None,
    request_tokens: int | None = None,
    tokens_between_boundaries: int = 8192,
    requests_in_flight: int = 1,
    min_path_share: float = 0.5,
    trailer_bytes: int = TRAILER_BYTES,
) -> dict[str, int]:
    """Propose host page counts, by component, whose page-contiguous pools fit the budget, trailers included.

    Args:
        composition: the components.
        host_bytes: host memory for all pools; or
        host_ratio: that as a multiple of the device pools' bytes, for `device_page_counts`.
        device_page_counts: device pages by component that owns pages.
        page_counts: fixed host page counts of some pools; the rest is split among the other pools.
        request_tokens: the largest request, a boundary of which every pool must hold; None for the longest window and a page.
        tokens_between_boundaries: see `Composition.split_budget`.
        requests_in_flight: boundaries that are being copied at the same time, on top of those kept.
        min_path_share: see `Composition.split_budget`.
        trailer_bytes: of the host pools.

    Raises ConfigurationError for no budget or two, a budget too small for one boundary of the largest request, and a given
    page count too small for it. Cost: O(components · log pages).
    """
    budget = _budget(composition, host_bytes, host_ratio, device_page_counts)
    owners = tuple(
        replace(c, shares=None, format=None, page_bytes=host_page_bytes(c.page_bytes, trailer_bytes) if c.page_bytes else 0)
        for c in composition.components
    )
    pages = replace(composition, components=owners).split_budget(
        budget,
        tokens_between_boundaries=tokens_between_boundaries,
        running_requests=requests_in_flight,
        min_path_share=min_path_share,
        request_tokens=request_tokens,
        page_counts=page_counts,
    )
    windows = [c.coverage.window_tokens or 0 for c in owners]
    length = request_tokens or max(windows, default=0) + composition.page_size
    for component in owners:
        needed = component.coverage.pages_needed(length, composition.page_size)
        if pages[component.name] < needed:
            raise ConfigurationError(
                f"{component.name}: a boundary of a request of {length} tokens takes {needed} host pages, "
                f"and the pool would have {pages[component.name]}"
            )
    return pages


def host_budget(composition: Composition, host_bytes: int, *, trailer_bytes: int = TRAILER_BYTES) -> BlockBudget:
    """Host memory as one budget that all pools share, for pages with trailers; see `HostTier`.

    Raises as `Composition.budget`.
    """
    sizes = {c.name: host_page_bytes(c.page_bytes, trailer_bytes) if c.page_bytes else 0 for c in composition.components}
    return BlockBudget.of(sizes, host_bytes)


def _budget(
    composition: Composition,
    host_bytes: int | None,
    host_ratio: float | None,
    device_page_counts: Mapping[str, int] | None,
) -> int:
    """The budget in bytes, however it was given."""
    if (host_bytes is None) == (host_ratio is None):
        raise ConfigurationError("propose_page_counts: give either host_bytes or host_ratio")
    if host_bytes is not None:
        return host_bytes
    assert host_ratio is not None
    sizes = composition.pool_page_bytes()
    if device_page_counts is None or device_page_counts.keys() != sizes.keys():
        raise ConfigurationError(
            f"propose_page_counts: host_ratio needs the device_page_counts of {', '.join(sizes)}, "
            f"not {repr_of(device_page_counts)}"
        )
    if type(host_ratio) not in (int, float) or not 0 < host_ratio < float("inf"):
        raise ConfigurationError(f"propose_page_counts: host_ratio must be a positive number, not {repr_of(host_ratio)}")
    return int(host_ratio * sum(count * sizes[name] for name, count in device_page_counts.items()))
