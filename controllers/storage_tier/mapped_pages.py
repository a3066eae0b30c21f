"""Host pages without torch, for stores in deployments that move device pages by other means."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unified_tree.controllers.pools.formats import formats_of
from unified_tree.controllers.pools.host_layout import TRAILER_BYTES, HostLayout
from unified_tree.controllers.pools.host_memory import check_host_memory
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, PageError

if TYPE_CHECKING:
    from unified_tree.components import Composition

_ALIGNMENT_BYTES = 64


class MappedPages:
    """One component's host pages, page first, each with room for the trailer of a stored page. Memory is touched only when
    used.

    Args:
        payload_bytes: of a page without its trailer.
        page_count: of pages.

    Attributes:
        layout: of the pages.
        payload_bytes: the same.
        buffer: all of the memory, writable: what a storage engine registers.
    """

    layout = HostLayout.PAGE_FIRST_DIRECT

    def __init__(self, payload_bytes: int, page_count: int) -> None:
        self.payload_bytes = payload_bytes
        self._page_count = page_count
        self._stride_bytes = -(-(payload_bytes + TRAILER_BYTES) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.buffer = memoryview(mmap.mmap(-1, self._stride_bytes * page_count))

    def page_memory(self, page: int) -> memoryview:
        """The bytes of one page and its trailer, writable. Raises PageError for a page that there is not. Cost: O(1)."""
        if not 0 <= page < self._page_count:
            raise PageError(f"host page {page!r} is not one of 0 … {self._page_count - 1}")
        start = page * self._stride_bytes
        return self.buffer[start : start + self.payload_bytes + TRAILER_BYTES]


def mapped_pages(composition: Composition, page_counts: Mapping[str, int]) -> dict[str, MappedPages]:
    """Host pages for every component of a composition, sized by its formats: the `memory` of `StorageTier.open`.

    Raises ConfigurationError for counts that are missing, too many or not positive, and for more memory than there is.

    >>> from unified_tree.components import composition_for
    >>> pages = mapped_pages(composition_for("qwen3-32b", page_size=16), {"full": 2})
    >>> pages["full"].page_memory(1).nbytes == pages["full"].payload_bytes + 64
    True
    """
    formats = formats_of(composition)
    if formats.keys() != page_counts.keys():
        raise ConfigurationError(f"host pages of {sorted(formats)} need a count each, given for {sorted(page_counts)}")
    for name, count in page_counts.items():
        if type(count) is not int or count <= 0:
            raise ConfigurationError(f"{name}: the number of host pages must be a positive integer, not {repr_of(count)}")
    size = sum((formats[name].page_bytes + TRAILER_BYTES) * count for name, count in page_counts.items())
    check_host_memory(size, component=", ".join(formats))
    return {name: MappedPages(page_format.page_bytes, page_counts[name]) for name, page_format in formats.items()}
