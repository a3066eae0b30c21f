"""What a prefix linker is told of a component, and the refusal of what it cannot carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.component import Component, Path, Point
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.pools.device_pool import DevicePool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedPool:
    """One component's pages on the device.

    Attributes:
        name: the component's.
        owner: the component whose page ids these are; the same, if it shares no pages.
        page_tokens: tokens a page.
        tensors: each [page, slot, bytes], uint8, a view of the pool's memory; one a layer and part.
        format: what tells this pool from others: pools that differ in it share nothing.
    """

    name: str
    owner: str
    page_tokens: int
    tensors: Sequence[torch.Tensor]
    format: str


def linked_pools(components: Iterable[Component], pools: Mapping[str, DevicePool], page_size: int) -> list[LinkedPool]:
    """Those components that a linker carries, over their device pools.

    An optional component that it cannot carry is left out: a prefix that is retrieved then lacks it.
    Raises ConfigurationError that names every required component it cannot carry, and why; nothing of such a model could
    be resumed from what it keeps.
    """
    linked, wrong = [], []
    for component in components:
        reason = why_not(component)
        if reason is None:
            linked.append(_linked(component, pools[component.name], page_size))
        elif component.required:
            wrong.append(f"{component.name}: {reason}")
    if wrong or not linked:
        raise ConfigurationError(f"no prefix linker can carry {'; '.join(wrong) or 'this: there is no paged component'}")
    return linked


def why_not(component: Component) -> str | None:
    """Why a linker cannot carry a component; None if it can."""
    if isinstance(component.coverage, Path):
        return None
    if isinstance(component.coverage, Point):
        return "its state is saved at single positions, and a linker keeps pages of every token"
    return "of a window only the last pages are kept, and a linker stores the pages of every token"


def format_digest(pools: Sequence[LinkedPool]) -> str:
    """16 hexadecimal digits that tell these pools from others."""
    described = repr([(pool.name, pool.owner, pool.page_tokens, pool.format) for pool in pools])
    return sha256(described.encode()).hexdigest()[:16]


def _linked(component: Component, pool: DevicePool, page_size: int) -> LinkedPool:
    page_format = pool.format
    tensors = [_bytes_of(pool.tensor(layer, part.name)) for part in page_format.parts for layer in page_format.layer_ids]
    return LinkedPool(
        name=component.name,
        owner=component.shares or component.name,
        page_tokens=page_size,
        tensors=tensors,
        format=repr((page_format.layer_ids, page_format.parts, page_format.slots_per_page)),
    )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """[page, slot, byte] of [page, slot, *shape], the same memory."""
    import torch

    return tensor.flatten(2).view(torch.uint8) if tensor.dim() > 2 else tensor.unsqueeze(2).view(torch.uint8)
