"""A model that only writes and reads page contents: every page it is handed must hold what was computed into it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.server.page_store import component_digest, page_contents, prefix_digests
from unified_tree.declare.keys import Key
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.workbench.server.page_store import Digests, PageStore, PageStores
    from unified_tree.controllers.workbench.traces.workload import Int64s
    from unified_tree.declare.component import Component


PAGES_AT_ONCE_BYTES = 16 << 20


class VerifiedPages:
    """Fills pages as a server computes tokens, and compares them when it resumes from them.

    Pages are compared when a lease has what it resumes from (a hit, or a load that arrived) and once more when the request
    leaves, for what it held was pinned or its own all the while. A required page that is not there counts as wrong. What a
    store has brought for a prompt is compared on host when its request stops waiting, and on device as all that is loaded.

    Args:
        cache: what gives the leases.
        stores: where the pages lie.

    Attributes:
        checked_bytes, wrong_bytes: compared so far; of these different.
        stores: device pages by component.
    """

    def __init__(self, cache: PrefixCache, stores: PageStores) -> None:
        self.checked_bytes = 0
        self.wrong_bytes = 0
        self._cache = cache
        self._page_bytes = stores.page_bytes
        self.stores = stores.device
        self._host = stores.host
        self._digests: dict[Lease, Digests] = {}
        self._written: dict[Lease, int] = {}
        self._salts = {name: component_digest(name) for name in stores.page_bytes}
        self._points = [c for c in cache.tree.components if c.coverage.is_exact]

    def resumed(self, lease: Lease, tokens: Int64s) -> None:
        """A lease has what it resumes from: compare it, and copy the state. `tokens` may go on beyond the prompt."""
        self._digests[lease] = self._digests_of(lease.key.namespace, tokens)
        self._written[lease] = lease.compute_from
        self._check(lease, lease.cached_tokens, replayed=bool(lease.rebuilt_tokens))
        self._copy_state(lease)

    def ran(self, lease: Lease, computed_tokens: int) -> None:
        """The lease's tokens up to there are computed: fill the pages that became whole, and the states due."""
        size = self._cache.page_size
        begin, self._written[lease] = self._written[lease], max(self._written[lease], computed_tokens)
        for component in self._cache.tree.components:
            if component.coverage.is_exact:
                continue
            first = max(begin, lease.write_from[component.name]) // size
            last = computed_tokens // size
            if first < last:
                ids = lease.pages(component.shares or component.name, first)[: last - first]
                index = np.arange(first + 1, last + 1)
                held = ids >= 0
                self._write(component, ids[held], self._digests[lease][index[held]])
        for length, page in lease.save_pages.items():
            if begin < length <= computed_tokens:
                for component in self._points:
                    self._write(component, np.array([page]), self._digests[lease][[length // size]])

    def left(self, lease: Lease) -> None:
        """The lease is about to be released: compare what it holds."""
        if lease in self._digests:
            computed = self._written[lease]
            if computed > lease.cached_tokens:
                self._check(lease, computed // self._cache.page_size * self._cache.page_size, replayed=False)
            del self._digests[lease], self._written[lease]

    def fetched(self, prompt: Int64s, namespace: str = "") -> None:
        """A prompt's prefetch is over: compare what the host has along the prompt."""
        key = self._cache.sharing.in_tree(Key(prompt, namespace))
        reach = self._cache.tree.transfers.host_path_end(key)
        digests = self._digests_of(namespace, prompt)
        last = reach.length // self._cache.page_size
        for component in self._cache.tree.components:
            ids = self._cache.tree.pages(reach, component.name, Tier.HOST)
            if component.coverage.is_path and ids.size < last:
                continue  # an optional one with gaps, whose pages cannot be told apart
            self._compare(component, ids, digests[last - ids.size + 1 : last + 1], self._host)

    def _digests_of(self, namespace: str, tokens: Int64s) -> Digests:
        """Those of a prompt's pages: equal in all namespaces where some of them share pages."""
        return prefix_digests("" if self._cache.sharing.is_on else namespace, tokens, self._cache.page_size)

    def _check(self, lease: Lease, length_tokens: int, *, replayed: bool) -> None:
        """Compare the pages that a boundary at so many tokens of this lease stands on."""
        size = self._cache.page_size
        last = length_tokens // size
        for component in self._cache.tree.components:
            if component.coverage.is_exact or (replayed and not component.coverage.is_path):
                continue  # a state is compared when it is copied; a window is going to be computed again
            first = component.coverage.first_page(length_tokens, size)
            self._compare(
                component, lease.pages(component.name, first)[: last - first], self._digests[lease][first + 1 : last + 1]
            )

    def _copy_state(self, lease: Lease) -> None:
        """Compare the state that the lease goes on from and copy it, with the sharers' in the same page."""
        digest = self._digests[lease][[lease.cached_tokens // self._cache.page_size]]
        copied = {copy.component: copy for copy in lease.state_copies}
        for component in self._points:
            copy = copied.get(component.shares or component.name)
            if copy is None:
                if lease.cached_tokens and component.required:
                    self._missing(component, 1)
                continue
            if component.required or self._cache.tree.pages(lease.boundary, component.name).size:
                self._compare(component, np.array([copy.source]), digest)
            store = self.stores[component.name]
            store.write(np.array([copy.target]), store.read(np.array([copy.source])))

    def _write(self, component: Component, ids: NDArray[np.int64], digests: Digests) -> None:
        name = component.name
        for part in self._parts(name, ids.size):
            content = page_contents(digests[part], self._salts[name], self._page_bytes[name])
            self.stores[name].write(ids[part], content)

    def _compare(
        self,
        component: Component,
        ids: NDArray[np.int64],
        digests: Digests,
        stores: Mapping[str, PageStore] | None = None,
    ) -> None:
        """Count the bytes of pages, of the device if nothing else is said, that are not what the digests say."""
        name = component.name
        held = ids >= 0
        if component.required and not held.all():
            self._missing(component, int((~held).sum()))
        ids, digests = ids[held], digests[held]
        for part in self._parts(name, ids.size):
            wanted = page_contents(digests[part], self._salts[name], self._page_bytes[name])
            self.checked_bytes += wanted.size
            self.wrong_bytes += int(np.count_nonzero((stores or self.stores)[name].read(ids[part]) != wanted))

    def _missing(self, component: Component, page_count: int) -> None:
        self.checked_bytes += page_count * self._page_bytes[component.name]
        self.wrong_bytes += page_count * self._page_bytes[component.name]

    def _parts(self, name: str, page_count: int) -> Sequence[slice]:
        """Cuts of so many pages that the scratch memory stays small."""
        step = max(1, PAGES_AT_ONCE_BYTES // self._page_bytes[name])
        return [slice(begin, begin + step) for begin in range(0, page_count, step)]


SHRUNK_PAGE_BYTES = 64


class Verification(Enum):
    """Whether pages hold bytes that are compared: none, 64 a page, or as many as the components say."""

    OFF = "off"
    SHRUNK = "shrunk"
    FULL = "full"

    def page_bytes(self, true_bytes: int) -> int:
        """Bytes of a page wherever pages really move, given those of the model's."""
        return true_bytes if self is Verification.FULL else SHRUNK_PAGE_BYTES
