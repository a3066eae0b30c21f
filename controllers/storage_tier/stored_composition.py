"""The pools of a composition as a store sees them: what a length needs of each, and where their host pages lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unified_tree.component import Component
from unified_tree.controllers.pools.format_header import format_headers
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.hit_policy import HitPolicy, PoolNeed, need_of
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage.stored_pool import StoredPool
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.pools.host_layout import HostLayout

RECORDS = "restore points"
"""The pool of the restore-point records; no component has this name."""


class PageMemory(Protocol):
    """Where the host pages of a component lie; a HostPool is one."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of a page without its trailer."""
        ...

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

    Raises ConfigurationError for components without a pool or memory, for pools of components that are not there, and for
    memory that has no room for the trailer of a stored page, or more: the trailer would be written over the page.
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
        _check_memory(pools, memory)
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


def stored_pools(composition: Composition, *, layout: HostLayout, trailer_bytes: int = TRAILER_BYTES) -> list[StoredPool]:
    """What an engine is opened with: a pool a component, and one for restore points where lengths need more than paths.

    Args:
        composition: states the format of every component, and of which rank.
        layout: of the host pools.
        trailer_bytes: of the host pools' pages.

    Raises ConfigurationError for a format that is not stated in full, and for pages without the room of a trailer.
    """
    if trailer_bytes != TRAILER_BYTES:
        raise ConfigurationError(
            f"a stored page has a trailer of {TRAILER_BYTES} bytes, the host pools have room for {trailer_bytes!r}: create "
            f"them with trailer_bytes={TRAILER_BYTES}"
        )
    headers = format_headers(composition, layout)
    pools = [
        StoredPool(name=name, format_digest=header.digest, value_bytes=header.format.page_bytes + TRAILER_BYTES, layout=layout)
        for name, header in headers.items()
    ]
    required = [c.name for c in composition.components if c.required and need_of(c).policy is HitPolicy.TRAILING_PAGES]
    if required:
        pools.append(record_pool([pool for pool in pools if pool.name in required], RECORDS))
    return pools


def _check_memory(pools: Mapping[str, StoredPool], memory: Mapping[str, PageMemory]) -> None:
    """Every component's host pages must be a payload and the trailer of a stored page, and nothing else."""
    wrong = []
    for name, pages in memory.items():
        payload, given, stored = pages.payload_bytes, pages.page_memory(0).nbytes, pools[name].value_bytes
        if given != payload + TRAILER_BYTES or stored != given:
            wrong.append(
                f"{name}: its host pages are {payload} bytes and a trailer of {given - payload}, a stored value {stored}"
            )
    if wrong:
        raise ConfigurationError(
            f"a stored page has a trailer of {TRAILER_BYTES} bytes, which needs room of its own: {'; '.join(wrong)}"
        )
