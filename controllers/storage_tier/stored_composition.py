"""The pools of a composition as a store sees them: what a length needs of each, and where their host pages lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unified_tree.component import Component
from unified_tree.controllers.storage.format_header import REPLICATED, FormatHeader
from unified_tree.controllers.storage.hit_policy import HitPolicy, PoolNeed, need_of
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.pools.host_layout import HostLayout
    from unified_tree.controllers.pools.page_format import PageFormat

RECORDS = "restore points"
"""The pool of the restore-point records; no component has this name."""


class PageMemory(Protocol):
    """Where the host pages of a component lie; a HostPool is one."""

    def page_memory(self, page: int) -> memoryview:
        """The bytes of one page and its trailer, writable. Cost: O(1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAccess:
    """One component's pool.

    Attributes:
        name: the component's.
        required: whether a boundary needs it.
        writes: whether this rank stores its pages.
        memory: its host pages.
    """

    name: str
    required: bool
    need: PoolNeed
    stored: StoredPool
    memory: PageMemory
    writes: bool = True

    @property
    def is_path(self) -> bool:
        """Whether a length needs all pages before it."""
        return self.need.policy is HitPolicy.ALL_PAGES

    def window_pages(self, length_pages: int, page_size: int) -> int:
        """How many of the last pages a length needs."""
        if self.is_path:
            return length_pages
        return length_pages - max(0, length_pages * page_size - self.need.window_tokens) // page_size


class StoredComposition:
    """All of a composition's pools, required paths first.

    Args:
        components: of the cache.
        page_size: tokens a page.
        pools: by component, for each.
        memory: host pages by component, for each.
        written: components whose pages this rank stores; None for all.

    Attributes:
        paths, trailing: the pools whose lengths need all pages, and the last ones.
        optional: names of those that a boundary does not need.
        records: the pool of the restore points; None where every length is a boundary.

    Raises ConfigurationError for components without a pool or memory, and for pools of components that are not there.
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        pools: Mapping[str, StoredPool],
        memory: Mapping[str, PageMemory],
        written: Sequence[str] | None = None,
    ) -> None:
        names = [c.name for c in components]
        for what, given in (("a stored pool", pools), ("host memory", memory)):
            if set(given) != set(names):
                raise ConfigurationError(f"each of {names} takes {what}; given for {sorted(given)}")
        self.page_size = page_size
        every = [
            PoolAccess(
                name=c.name,
                required=c.required,
                need=need_of(c),
                stored=pools[c.name],
                memory=memory[c.name],
                writes=written is None or c.name in written,
            )
            for c in components
        ]
        every.sort(key=lambda access: not access.required)
        self.paths = [access for access in every if access.is_path]
        self.trailing = [access for access in every if not access.is_path]
        self.optional = [access.name for access in every if not access.required]
        required = [access.stored for access in self.trailing if access.required]
        self.records = record_pool(required, RECORDS) if required else None


def stored_pools(
    components: Sequence[Component],
    formats: Mapping[str, PageFormat],
    *,
    model: str,
    layout: HostLayout,
    page_size: int,
    shards: Mapping[str, str] | None = None,
    trailer_bytes: int,
) -> list[StoredPool]:
    """What an engine is opened with: a pool a component, and one for restore points where lengths need more than paths.

    Args:
        formats: by component.
        model: see FormatHeader.
        layout: of the host pools.
        shards: by component, `REPLICATED` where one is left out.
        trailer_bytes: of the host pools' pages.
    """
    pools = []
    for component in components:
        page_format = formats[component.name]
        shard = (shards or {}).get(component.name, REPLICATED)
        header = FormatHeader(model=model, format=page_format, layout=layout, page_size=page_size, shard=shard)
        value_bytes = page_format.page_bytes + trailer_bytes
        pools.append(StoredPool(name=component.name, format_digest=header.digest, value_bytes=value_bytes, layout=layout))
    required = [c.name for c in components if c.required and need_of(c).policy is HitPolicy.TRAILING_PAGES]
    if required:
        pools.append(record_pool([pool for pool in pools if pool.name in required], RECORDS))
    return pools
