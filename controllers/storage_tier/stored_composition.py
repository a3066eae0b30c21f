"""The pools of a composition for a store: which pages a length needs of each, and where their host pages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unified_tree.controllers.pools.format_header import format_headers
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES, HostLayout
from unified_tree.controllers.storage.hit_policy import HitPolicy, PoolNeed, need_of
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.declare.component import Component
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.components import Composition

RECORDS = "restore points"
"""The pool of the restore-point records; no component has this name."""
COPIED_BYTES = 64 << 20
"""Of the copies of pages that one job holds for a store, but at least a page."""


class PageMemory(Protocol):
    """The host pages of a component; a HostPool is one."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of a page without its trailer."""
        ...

    def page_memory(self, page: int) -> memoryview:
        """The bytes of one page and its trailer, writable. Cost: O(1)."""
        ...


@runtime_checkable
class PooledMemory(PageMemory, Protocol):
    """Host pages in one buffer with a known layout, such as HostPool and MappedPages."""

    @property
    def layout(self) -> HostLayout:
        """Of the pages."""
        ...

    @property
    def buffer(self) -> memoryview:
        """All of the pages, to be registered with a storage engine."""
        ...


@runtime_checkable
class CopiedMemory(PageMemory, Protocol):
    """Host pages that do not lie in one piece: `page_memory` is a copy, and what a store read into it is written back."""

    def write_page(self, page: int, memory: memoryview) -> None:
        """Make these the bytes of one page. Cost: O(bytes)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAccess:
    """One component's pool.

    Attributes:
        name: the component's.
        required: whether a boundary needs it.
        writes: whether this rank stores its pages.
        memory: its host pages.
        copied: the same, if they do not lie in one piece; else None.
    """

    name: str
    required: bool
    need: PoolNeed
    stored: StoredPool
    memory: PageMemory
    copied: CopiedMemory | None = None
    writes: bool = True

    @property
    def is_path(self) -> bool:
        """Whether a length needs all pages before it."""
        return self.need.policy is HitPolicy.ALL_PAGES

    def most_pages(self, page_count: int) -> int:
        """How many of so many pages to give a store at a time; at least one."""
        if self.copied is not None:
            page_count = min(page_count, COPIED_BYTES // self.stored.value_bytes)
        return max(1, page_count)

    def window_pages(self, length_pages: int, page_size: int) -> int:
        """How many of the last pages a length needs."""
        if self.is_path:
            return length_pages
        return length_pages - self.need.first_page(length_pages * page_size, page_size)

    def most_window_pages(self, length_pages: int, page_size: int) -> int:
        """How many pages a length up to this one needs, at most: of a chunk a shorter length may need more."""
        if self.need.grid_tokens == 1:
            return self.window_pages(length_pages, page_size)
        return min(length_pages, -(-(self.need.window_tokens + self.need.grid_tokens - 1) // page_size))


class StoredComposition:
    """All of a composition's pools, required paths first.

    Args:
        components: of the cache.
        page_size: tokens a page.
        pools: one for each component, by name; the pool of restore points may be among them.
        memory: host pages by component, for each.
        written: components whose pages this rank stores; None for all.

    Attributes:
        paths, trailing: the pools whose lengths need all pages, and the last ones.
        optional: names of those that a boundary does not need.
        records: the pool of restore points; None if every length is a boundary.

    Raises ConfigurationError for components without a pool or memory, for pools of unknown components, and for memory whose
    pages are not a payload and exactly the trailer of a stored page.
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        pools: Mapping[str, StoredPool],
        memory: Mapping[str, PageMemory],
        written: Sequence[str] | None = None,
    ) -> None:
        check_memory([c.name for c in components], pools, memory)
        self.page_size = page_size
        every = [
            PoolAccess(
                name=c.name,
                required=c.required,
                need=need_of(c),
                stored=pools[c.name],
                memory=memory[c.name],
                copied=_copied(memory[c.name]),
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


def _copied(pages: PageMemory) -> CopiedMemory | None:
    """Asked once: to ask a protocol whether an object has its methods takes longer than to write a page."""
    return pages if isinstance(pages, CopiedMemory) else None


def stored_pools(composition: Composition, *, layout: HostLayout) -> list[StoredPool]:
    """The pools to open an engine with: one per component, and one for restore points if there are windows or states.

    Args:
        composition: declares the format of every component, and the rank.
        layout: of the host pools.

    Raises ConfigurationError for an incomplete format.
    """
    headers = format_headers(composition, layout)
    pools = [
        StoredPool(name=name, format_digest=header.digest, value_bytes=header.format.page_bytes + TRAILER_BYTES, layout=layout)
        for name, header in headers.items()
    ]
    required = [c.name for c in composition.components if c.required and need_of(c).policy is HitPolicy.TRAILING_PAGES]
    if required:
        pools.append(record_pool([pool for pool in pools if pool.name in required], RECORDS))
    return pools


def layout_of(memory: Mapping[str, PageMemory]) -> HostLayout:
    """The layout of host pages: their own, else page first.

    Raises ConfigurationError if the layouts differ, or if a store does not accept them.
    """
    said = {name: pages.layout for name, pages in memory.items() if isinstance(pages, PooledMemory)}
    if len(set(said.values())) > 1:
        by_name = ", ".join(f"{name} {layout.value}" for name, layout in said.items())
        raise ConfigurationError(f"the host pages of a stored composition must have one layout, not {by_name}")
    layout = next(iter(said.values()), HostLayout.PAGE_FIRST_DIRECT)
    if not layout.is_page_contiguous:
        raise ConfigurationError(
            f"{', '.join(said)}: its pages are {layout.value}, which no store takes; use page_first or page_first_direct"
        )
    return layout


def check_memory(names: Sequence[str], pools: Mapping[str, StoredPool], memory: Mapping[str, PageMemory]) -> None:
    """Raise ConfigurationError unless each of these components has a stored pool and host memory whose pages are exactly a
    payload and the trailer of a stored page.
    """
    for what, given in (("a stored pool", set(pools) - {RECORDS}), ("host memory", set(memory))):
        if given != set(names):
            raise ConfigurationError(f"each of {sorted(names)} takes {what}, and nothing else does; given for {sorted(given)}")
    wrong = []
    for name, pages in memory.items():
        payload, given_bytes, stored = pages.payload_bytes, pages.page_memory(0).nbytes, pools[name].value_bytes
        if given_bytes != payload + TRAILER_BYTES or stored != given_bytes:
            wrong.append(
                f"{name}: its host pages are {payload} bytes and a trailer of {given_bytes - payload}, a stored value {stored}"
            )
    if wrong:
        raise ConfigurationError(
            f"a stored page has a trailer of {TRAILER_BYTES} bytes, which needs room of its own: {'; '.join(wrong)}"
        )
