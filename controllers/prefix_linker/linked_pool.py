"""A component's pages as a prefix linker sees them, and the refusal of components that it cannot carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.format_header import FormatHeader, format_headers
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Coverage, Path, Trailing
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from unified_tree.components import Composition
    from unified_tree.controllers.pools.device_pool import DevicePool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedPool:
    """One component's pages on the device.

    Attributes:
        name: the component's.
        owner: the component whose page ids these are; the same, if it shares no pages.
        page_tokens: tokens a page.
        coverage: which pages a prefix needs; a window in whole pages. A state is one page, whatever length it was saved at.
        tensors: each [page, slot, bytes], uint8, a view of the pool's memory; one a layer and part.
        format: identifies the page format, model and rank included (`FormatHeader`); pools with different ones share nothing.
    """

    name: str
    owner: str
    page_tokens: int
    tensors: Sequence[torch.Tensor]
    format: str
    coverage: Coverage = Path()  # noqa: RUF009  a frozen value

    def page_range(self, first_token: int, end: int) -> tuple[int, int]:
        """The pages, by index along the prefix, that a span names of the tokens from there to `end`: [first, last).

        Every one; of a window those that a prefix of length `end` needs; of a state one, in the place of the last page.
        """
        last = end // self.page_tokens
        needed = self.coverage.first_page(end, self.page_tokens)
        return (last - 1 if self.coverage.is_exact else max(first_token // self.page_tokens, needed)), last


def linked_pools(composition: Composition, pools: Mapping[str, DevicePool], *, paths_only: bool = False) -> list[LinkedPool]:
    """Those components that a linker carries, over their device pools.

    Args:
        composition: states what the pages hold, and of which rank.
        pools: by component, made for this composition.
        paths_only: for a linker that knows no windows and states: an optional component of that kind is left out, and a
            prefix that is retrieved then lacks it.

    Raises ConfigurationError that names every required component it cannot carry, and why; nothing of such a model could
    be resumed from what it keeps. Also for a format that is not stated in full, and for pools of another format.
    """
    headers = format_headers(composition, None)
    linked, wrong = [], []
    for component in composition.components:
        reason = why_not(component) if paths_only else None
        if reason is None:
            linked.append(_linked(component, pools[component.name], headers[component.name]))
        elif component.required:
            wrong.append(f"{component.name}: {reason}")
    if wrong or not linked:
        raise ConfigurationError(f"this prefix linker cannot carry {'; '.join(wrong) or 'this: there is no paged component'}")
    return linked


def why_not(component: Component) -> str | None:
    """Why a linker that keeps the pages of every token cannot carry a component; None if it can."""
    if component.coverage.is_path:
        return None
    if component.coverage.is_exact:
        return "its state is saved at single positions, and the linker keeps pages of every token"
    return "of a window only the last pages are kept, and the linker stores the pages of every token"


def check_windows(pools: Sequence[LinkedPool], chunk_tokens: int) -> None:
    """Raise ConfigurationError for a window that whole chunks, or the end of one, cannot hold exactly.

    What a chunk keeps of a window must be the same wherever the prefix ends, for others find it under the same tokens.
    """
    for pool in pools:
        suffix = pool.coverage.suffix
        if suffix is not None and suffix.grid_tokens > 1:
            raise ConfigurationError(
                f"{pool.name}: it keeps {pool.coverage.describe()}, and linkers keep windows of one length"
            )
        window = pool.coverage.window_tokens or 0
        if window > chunk_tokens and window % chunk_tokens:
            raise ConfigurationError(
                f"{pool.name}: a window that keeps pages of {window} tokens is neither within a chunk of {chunk_tokens} nor a "
                "multiple of it: choose another chunk size"
            )


def format_digest(pools: Sequence[LinkedPool]) -> str:
    """16 hexadecimal digits that identify these pools' formats."""
    described = repr([(pool.name, pool.owner, pool.page_tokens, pool.format, *_kind(pool.coverage)) for pool in pools])
    return sha256(described.encode()).hexdigest()[:16]


def _kind(coverage: Coverage) -> tuple[Coverage, ...]:
    return () if coverage.is_path else (coverage,)


def _whole_pages(coverage: Coverage, page_size: int) -> Coverage:
    suffix = coverage.suffix
    if suffix is None or suffix.grid_tokens > 1:
        return coverage
    return Trailing(-(-suffix.back_tokens // page_size) * page_size)


def _linked(component: Component, pool: DevicePool, header: FormatHeader) -> LinkedPool:
    page_format = pool.format
    if page_format != header.format:
        raise ConfigurationError(f"{component.name}: its device pool holds {page_format}, the composition says {header.format}")
    tensors = [_bytes_of(pool.tensor(layer, part.name)) for part in page_format.parts for layer in page_format.layer_ids]
    return LinkedPool(
        name=component.name,
        owner=component.shares or component.name,
        page_tokens=header.page_size,
        coverage=_whole_pages(component.coverage, header.page_size),
        tensors=tensors,
        format=header.encode().decode(),
    )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """[page, slot, byte] of [page, slot, *shape], the same memory."""
    from unified_tree.controllers.tensors import torch

    return tensor.flatten(2).view(torch.uint8) if tensor.dim() > 2 else tensor.unsqueeze(2).view(torch.uint8)
