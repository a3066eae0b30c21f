"""A PrefixCache that seals every page it publishes and verifies every page that a prompt resumes from.

A wrong hit has one of three causes: an engine that writes below `write_from`, a faulty copy, or a bug in the library. In each
case a page no longer holds what was published for its prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.cache.prefix_cache import PrefixCache
from unified_tree.controllers.debugging.page_seals import PageSeals, WrongPage
from unified_tree.controllers.storage.key_chain import KeyChain
from unified_tree.terms.errors import InvalidKeyError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.debugging.page_seals import ReadPage
    from unified_tree.declare.component import Component
    from unified_tree.declare.keys import Key

LOG = logging.getLogger("unified_tree.debugging")


class SealedPrefixCache(PrefixCache):
    """A PrefixCache for debugging; use it in place of a PrefixCache.

    Args:
        components: as of PrefixCache, like `page_size`, `page_counts` and `options`.
        read_page: the bytes of a device page now, over all layers of a component: `read_page("full", 7)`. Of a component that
            shares pages, its own bytes in the owner's page. Everything computed must have been written when it is called.
        max_seals: pages remembered; the oldest go first. Some 300 bytes each.

    Attributes:
        wrong_pages: every wrong page found so far. Each is also logged as an error (logger `unified_tree.debugging`).

    Cost: hashing the bytes of all pages published and handed out.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path
    >>> pool = np.zeros((8, 4))
    >>> cache = SealedPrefixCache(
    ...     [Component(name="full", coverage=Path())], 2, {"full": 8}, read_page=lambda component, page: pool[page]
    ... )
    >>> with cache.acquire(Key([1, 2, 3]), request="first", reserve_tokens=2) as lease:
    ...     pool[lease.pages("full")] = 1.0
    ...     cache.commit(lease, 2)
    >>> pool[:] = 2.0  # somebody writes where nobody should
    >>> with cache.acquire(Key([1, 2, 3]), request="second") as lease:
    ...     [(wrong.component, wrong.length_tokens, wrong.sealed.writer) for wrong in cache.wrong_pages]
    [('full', 2, 'first')]
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        page_counts: Mapping[str, int] | None = None,
        *,
        read_page: ReadPage,
        max_seals: int = 1 << 20,
        **options: Any,
    ) -> None:
        super().__init__(components, page_size, page_counts, **options)
        self.wrong_pages: list[WrongPage] = []
        self._seals = PageSeals(read_page, max_seals)
        self._chain = KeyChain(page_size=page_size, weights_version="")
        self._names: dict[Lease, Hashable] = {}
        self._prompts: dict[Lease, tuple[Key, bytes]] = {}
        self._loading: set[Lease] = set()
        self._reported: set[tuple[Lease, str, int, int]] = set()

    def acquire(self, key: Key, checkpoints: Sequence[int] = (), **options: Any) -> Lease:
        """See PrefixCache.acquire. What the lease resumes from is compared at once, or when its load has arrived."""
        lease = super().acquire(key, checkpoints, **options)
        try:
            self._names[lease] = options.get("request")
            self._prompts[lease] = (key, sha256(key.data).digest())
            if lease.is_loading:
                self._loading.add(lease)
            else:
                self._check(lease, "on device", lease.cached_tokens)
            return lease
        except BaseException:  # of whoever reads the pages
            super().release(lease)
            raise

    def poll(self) -> None:
        """See PrefixCache.poll."""
        super().poll()
        for lease in [lease for lease in self._loading if not lease.is_loading]:
            self._loading.discard(lease)
            if lease.failure is None:
                self._check(lease, "loaded back", lease.cached_tokens)

    def commit(
        self,
        lease: Lease,
        tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
        states: Mapping[int, int] | None = None,
        *,
        begin: int = 0,
        without: Sequence[str] = (),
        resumable: bool | None = None,
    ) -> None:
        """See PrefixCache.commit. Pages that the tree takes are sealed; those that it had are compared.

        Raises InvalidKeyError, with nothing changed, if the caller has changed the prompt's tokens under a key that was made
        with copy=False.
        """
        prompt = self._prompts.get(lease)
        if prompt is not None and sha256(prompt[0].data).digest() != prompt[1]:
            raise InvalidKeyError(f"the tokens of {prompt[0]}, which was made with copy=False, have changed since its acquire")
        before = {name: (lease.tables[name].private_from, lease.pages(name)) for name in lease.tables}
        super().commit(lease, tokens, states, begin=begin, without=without, resumable=resumable)
        digests = self._chain.digests(lease.key.prefix(lease.committed))
        for component in self.tree.components:
            owner = self.layout.owner_of[component.name]
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
        at = self.tree.match_prefix(lease.key.prefix(length), touch=False).device
        for component in self.tree.components:
            is_point = component.coverage.is_exact and at.length == length
            if is_point and self.tree.pages(at, component.name).tolist() == [page]:
                prefix = digests[length // self.page_size - 1]
                self._seals.put(component.name, [(prefix, page)], self._names.get(lease))

    def verify(self) -> int:
        """Compare what every lease holds and has committed, those at work included; returns how many pages were found wrong.

        Called after each step of an engine it says in which step a page was overwritten. A page is reported once a lease.
        Cost: hashing the bytes of all pages held.
        """
        before = len(self.wrong_pages)
        for lease in self.leases:
            self._compare_held(lease)
        return len(self.wrong_pages) - before

    def _compare_held(self, lease: Lease) -> None:
        if not lease.is_loading and lease.failure is None:
            self._check(lease, "held", lease.committed)

    def release(self, lease: Lease) -> None:
        """See PrefixCache.release. What the lease held is compared once more."""
        if not lease.is_released and lease in self._names:
            self._compare_held(lease)
        super().release(lease)
        self._names.pop(lease, None)
        self._prompts.pop(lease, None)
        self._loading.discard(lease)
        self._reported = {each for each in self._reported if each[0] is not lease}

    def _check(self, lease: Lease, source: str, length_tokens: int) -> None:
        """Compare the pages that a lease holds of its first tokens."""
        last = length_tokens // self.page_size
        if not last:
            return
        digests = self._chain.digests(lease.key.prefix(length_tokens))
        for component in self.tree.components:
            if self.layout.owner_of[component.name] in lease.tables:
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
                length_tokens=(digests.index(pages[index][0]) + 1) * self.page_size,
                namespace=lease.key.namespace,
                reader=self._names.get(lease),
                source=source,
                sealed=seal,
            )
            self.wrong_pages.append(wrong)
            LOG.error("%s", wrong)
