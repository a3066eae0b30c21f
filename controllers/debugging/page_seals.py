"""Checksums of pages when they were published, by component and prefix instead of by page id.

A seal belongs to a component and the chain digest of a prefix. So a page is recognised under any page id: after a load from
host, a prefetch from a store, or a swap for another request's page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    ReadPage = Callable[[str, int], bytes | bytearray | memoryview | NDArray[Any]]

SEAL_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSeal:
    """A page as it was published.

    Attributes:
        digest: of its bytes.
        writer: the request that computed it, as named in `acquire`; None for one without a name.
        number: how many pages were sealed before it.
        page: its device page id at that time.
    """

    digest: bytes
    writer: Hashable
    number: int
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongPage:
    """A device page that does not hold what was published for its prefix.

    Attributes:
        component, page: which page; it holds the state of the tokens up to `length_tokens` of a prefix in `namespace`.
        reader: the request that was about to read it.
        source: whether it was on device at `acquire`, came by a load, or was found later while the lease held it.
        sealed: what was published.
    """

    component: str
    page: int
    length_tokens: int
    namespace: str
    reader: Hashable
    source: str
    sealed: PageSeal

    def __str__(self) -> str:
        return (
            f"page {self.page} of {self.component} is not what was published for the first {self.length_tokens} tokens of a "
            f"prompt in namespace '{printable(self.namespace)}': handed to request {printable(repr(self.reader))} "
            f"({self.source}); request {printable(repr(self.sealed.writer))} "
            f"published it in page {self.sealed.page}, {self.sealed.number} seals after the first"
        )


class PageSeals:
    """Seals by component and prefix.

    Args:
        read_page: the bytes of a device page now, all layers of a component; called with its name and the page id.
        max_seals: the oldest go first.
    """

    def __init__(self, read_page: ReadPage, max_seals: int) -> None:
        self._read_page = read_page
        self._max_seals = max_seals
        self._seals: OrderedDict[tuple[str, bytes], PageSeal] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return len(self._seals)

    def put(self, component: str, pages: Iterable[tuple[bytes, int]], writer: Hashable) -> None:
        """Seal pages by the digests of their prefixes. Cost: O(bytes)."""
        for prefix, page in pages:
            seal = PageSeal(digest=self._digest(component, page), writer=writer, number=self._count, page=page)
            self._count += 1
            self._seals.pop((component, prefix), None)
            self._seals[component, prefix] = seal
            if len(self._seals) > self._max_seals:
                self._seals.popitem(last=False)

    def differing(self, component: str, pages: Iterable[tuple[bytes, int]]) -> list[tuple[int, int, PageSeal]]:
        """Pages that differ from their seals, as (index among those given, page, seal). Pages without a seal are skipped. Cost:
        O(bytes).
        """
        found = []
        for index, (prefix, page) in enumerate(pages):
            seal = self._seals.get((component, prefix))
            if seal is not None and seal.digest != self._digest(component, page):
                found.append((index, page, seal))
        return found

    def _digest(self, component: str, page: int) -> bytes:
        content = self._read_page(component, page)
        if isinstance(content, np.ndarray):
            content = np.ascontiguousarray(content).view(np.uint8).reshape(-1).data
        return blake2b(content, digest_size=SEAL_BYTES).digest()
