"""Seals on every page that a cache publishes, compared with every page that a prompt resumes from.

A wrong hit has one of three causes: an engine that writes below `write_from`, a faulty copy, or a bug in the library. In each
case a page no longer holds what was published for its prefix.

A seal belongs to a component and the chain digest of a prefix. So a page is recognised under any page id: after a load from
host, a prefetch from a store, or a swap for another request's page.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.cache.lease import Lease
from unified_tree.controllers.counters.observers import CacheObserver, ObservedRequest
from unified_tree.controllers.storage.key_chain import KeyChain
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.declare.keys import Key

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


LOG = logging.getLogger("unified_tree.debugging")


class SealedPages(CacheObserver):
    """Seals the pages of a PrefixCache, from its making on, and compares every page that the cache hands out later.

    Args:
        cache: whose pages.
        read_page: the bytes of a device page now, over all layers of a component: `read_page("full", 7)`. Of a component that
            shares pages, its own bytes in the owner's page. Everything computed must have been written when it is called. If it
            raises, sealing ends: the log says so, and `CacheStats.drops` counts an `observer failed`.
        max_seals: pages remembered; the oldest go first. Some 300 bytes each.

    Attributes:
        wrong_pages: every wrong page found so far. Each is also logged as an error (logger `unified_tree.debugging`).
        changed_prompts: names of the requests whose tokens the caller had changed, when they committed, under a key that was
            made with copy=False. Their commits may have published pages under tokens that they do not hold. Also logged.

    Cost: hashing the bytes of all pages published and handed out.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path
    >>> from unified_tree.controllers import PrefixCache
    >>> pool = np.zeros((8, 4))
    >>> cache = PrefixCache([Component(name="full", coverage=Path())], 2, {"full": 8})
    >>> seals = SealedPages(cache, read_page=lambda component, page: pool[page])
    >>> with cache.acquire(Key([1, 2, 3]), request="first", reserve_tokens=2) as lease:
    ...     pool[lease.pages("full")] = 1.0
    ...     cache.commit(lease, 2)
    >>> pool[:] = 2.0  # somebody writes where nobody should
    >>> with cache.acquire(Key([1, 2, 3]), request="second") as lease:
    ...     [(wrong.component, wrong.length_tokens, wrong.sealed.writer) for wrong in seals.wrong_pages]
    [('full', 2, 'first')]
    """

    def __init__(self, cache: PrefixCache, *, read_page: ReadPage, max_seals: int = 1 << 20) -> None:
        self.wrong_pages: list[WrongPage] = []
        self.changed_prompts: list[Hashable] = []
        self._cache = cache
        self._seals = PageSeals(read_page, max_seals)
        self._chain = KeyChain(page_size=cache.page_size, weights_version="")
        self._name: Hashable = None  # of the request that is about to be admitted
        self._names: dict[Lease, Hashable] = {}
        self._prompts: dict[Lease, tuple[Key, bytes]] = {}
        self._held: dict[str, tuple[int, NDArray[np.int64]]] = {}  # before a commit, by component: first own page, and ids
        self._reported: set[tuple[Lease, str, int, int]] = set()
        cache.observers.add(self)

    def acquiring(self, key: Key, request: Hashable | None) -> None:  # noqa: ARG002
        """See CacheObserver."""
        self._name = request

    def acquired(self, request: ObservedRequest, key: Key) -> None:
        """See CacheObserver. A lease that loads is compared when its load has ended."""
        assert isinstance(request, Lease)
        self._names[request] = self._name
        self._prompts[request] = (key, sha256(key.data).digest())
        if not request.is_loading:
            self._check(request, "on device", request.cached_tokens)

    def load_ended(self, lease: Lease) -> None:
        """See CacheObserver."""
        if lease.failure is None:
            self._check(lease, "loaded back", lease.cached_tokens)

    def committing(self, lease: Lease) -> None:
        """See CacheObserver."""
        self._held = {}
        if lease.failure is None:  # else the commit is refused, and the lease shows no pages
            self._held = {name: (table.private_from, lease.pages(name)) for name, table in lease.tables.items()}
        prompt = self._prompts.get(lease)
        if prompt is not None and sha256(prompt[0].data).digest() != prompt[1]:
            self.changed_prompts.append(self._names.get(lease))
            LOG.error("the tokens of %s, which was made with copy=False, have changed since its acquire", prompt[0])

    def committed(
        self, lease: Lease, states: Mapping[int, int] | None, without: Sequence[str], error: BaseException | None
    ) -> None:
        """See CacheObserver. Pages that the tree took are sealed; those that it had are compared."""
        before, self._held = self._held, {}
        if error is not None:
            return
        digests = self._chain.digests(lease.tree_key.prefix(lease.committed))
        layout = self._cache.layout
        for component in layout.components:
            owner = layout.owner_of[component.name]
            if owner in before and component.name not in without:
                first, old = before[owner]
                new = lease.pages(component.name)
                last = min(lease.tables[owner].private_from, len(digests), new.size)
                pages = [(digests[at], int(new[at])) for at in range(first, last) if new[at] >= 0]
                own = {int(old[at]) for at in range(first, min(last, old.size))}
                self._seals.put(component.name, [each for each in pages if each[1] in own], self._names.get(lease))
                self._report(lease, component.name, [each for each in pages if each[1] not in own], digests, "on device")
        for length, page in (states or {}).items():
            self._seal_state(lease, length, page, digests)

    def _seal_state(self, lease: Lease, length: int, page: int, digests: list[bytes]) -> None:
        """A state that was committed, if the tree took it."""
        if not 0 < length <= lease.committed:
            return
        at = self._cache.tree.match_prefix(lease.tree_key.prefix(length), touch=False).device
        for component in self._cache.layout.components:
            is_point = component.coverage.is_exact and at.length == length
            if is_point and self._cache.tree.pages(at, component.name).tolist() == [page]:
                prefix = digests[length // self._cache.page_size - 1]
                self._seals.put(component.name, [(prefix, page)], self._names.get(lease))

    def verify(self) -> int:
        """Compare what every lease holds and has committed, those at work included; returns how many pages were found wrong.

        Called after each step of an engine it says in which step a page was overwritten. A page is reported once a lease.
        Cost: hashing the bytes of all pages held.
        """
        before = len(self.wrong_pages)
        for lease in self._cache.leases:
            self._compare_held(lease)
        return len(self.wrong_pages) - before

    def _compare_held(self, lease: Lease) -> None:
        if not lease.is_loading and lease.failure is None:
            self._check(lease, "held", lease.committed)

    def releasing(self, lease: Lease) -> None:
        """See CacheObserver. The pages held are compared once more."""
        if lease in self._names:
            self._compare_held(lease)

    def released(self, lease: Lease) -> None:
        """See CacheObserver."""
        self._names.pop(lease, None)
        self._prompts.pop(lease, None)
        self._reported = {each for each in self._reported if each[0] is not lease}

    def _check(self, lease: Lease, source: str, length_tokens: int) -> None:
        """Compare the pages that a lease holds of its first tokens."""
        last = length_tokens // self._cache.page_size
        if not last:
            return
        digests = self._chain.digests(lease.tree_key.prefix(length_tokens))
        for component in self._cache.layout.components:
            if self._cache.layout.owner_of[component.name] in lease.tables:
                ids = lease.pages(component.name)[:last]
                pages = [(digests[at], int(ids[at])) for at in range(ids.size) if ids[at] >= 0]
                self._report(lease, component.name, pages, digests, source)
        for copy in lease.state_copies if length_tokens == lease.cached_tokens else ():
            self._report(lease, copy.component, [(digests[-1], copy.source)], digests, source)

    def _report(self, lease: Lease, component: str, pages: list[tuple[bytes, int]], digests: list[bytes], source: str) -> None:
        for index, page, seal in self._seals.differing(component, pages):
            if (lease, component, page, seal.number) in self._reported:
                continue
            self._reported.add((lease, component, page, seal.number))
            wrong = WrongPage(
                component=component,
                page=page,
                length_tokens=(digests.index(pages[index][0]) + 1) * self._cache.page_size,
                namespace=lease.namespace,
                reader=self._names.get(lease),
                source=source,
                sealed=seal,
            )
            self.wrong_pages.append(wrong)
            LOG.error("%s", wrong)
