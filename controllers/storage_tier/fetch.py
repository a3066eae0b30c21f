"""Reads found pages into host memory: jobs that read a portion of the paths each, and one for the trailing pages of the
resulting length.

Host pages are allocated a portion at a time, so that none is allocated for pages that are never read. The pages for windows and
states also suffice for every shorter length, so a shortened prefetch needs no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.storage.storage_engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.prefetch_room import PrefetchClaim
    from unified_tree.controllers.storage_tier.stored_composition import PoolAccess, StoredComposition


class Fetch:
    """Host pages being filled for one prompt.

    Args:
        found: what the store has; after its `stop`, no more path pages are read.
        claim: the claimed host pages; optional components without a claim are not read.

    Attributes:
        length_pages: maximum length to read, one of `found.lengths`.
        allocated_pages: up to which page host pages are allocated for the required paths.
        arrived_pages: up to which page all required paths have been read.
        left_out: optional components that are not to be used.
    """

    def __init__(self, composition: StoredComposition, found: FoundPrefix, claim: PrefetchClaim) -> None:
        self._composition = composition
        self._every_path = {access.name for access in composition.paths}
        self.found = found
        self.claim = claim
        self.length_pages = claim.length_pages
        self.allocated_pages = found.base_pages
        self.arrived_pages = found.base_pages
        self.left_out: set[str] = set()
        self._optional_reach: dict[str, int] = {}
        self._trailing_arrived: set[str] = set()

    def allocate_portion(self, room_pages: int) -> bool:
        """Allocate host pages for the next portion of the paths: `room_pages` of each, later as many as have been read so far.

        Allocates fewer if the pools are short. False if it allocated none though pages are left to read. May evict.
        """
        read_pages = self.arrived_pages - self.found.base_pages
        wanted = min(self.length_pages - self.arrived_pages, max(room_pages, read_pages))
        if wanted > 0:
            names = [access.name for access in self._composition.paths if access.required or self._reads_on(access.name)]
            taken = self.claim.allocate_path(names, wanted)
            self.allocated_pages += taken
            return taken > 0
        return True

    def _reads_on(self, name: str) -> bool:
        """Whether an optional path has room, and was read as far as the required ones."""
        return name in self.claim.sizes and self._optional_reach.get(name, self.found.base_pages) == self.arrived_pages

    def read_paths(self, store: CheckedStorage, batch_pages: int) -> Steps:
        """A job that reads the allocated pages: the required paths, some pages of each at a time, then the optional ones if all
        have arrived.
        """
        base, start, end = self.found.base_pages, self.arrived_pages, self.allocated_pages
        required = [access for access in self._composition.paths if access.required]
        for begin in range(start, end, batch_pages):
            if self.found.is_stopped():
                return
            upto = min(begin + batch_pages, end)
            for access in required:
                upto = begin + self._read(store, access, begin, upto, self.claim.pages[access.name][begin - base : upto - base])
                yield 0.0
            self.arrived_pages = upto
            if upto < min(begin + batch_pages, end):
                return
        for access in self._composition.paths:
            reach = self._optional_reach.get(access.name, base)
            ids = self.claim.pages.get(access.name)
            is_whole = ids is not None and ids.size == end - base and reach == start < end
            if is_whole and not access.required and not self.found.is_stopped():
                yield from self._read_optional(store, access, start, end)

    def read_trailing(self, store: CheckedStorage, length_pages: int) -> Steps:
        """A job: the windows and states of one length, required ones before optional. None of a window of which a page failed
        to come lately, as for a greater length.
        """
        self._trailing_arrived.clear()
        for access in self._composition.trailing:
            begin = length_pages - access.window_pages(length_pages, self._composition.page_size)
            if access.required:
                pages = self.claim.pages[access.name][: length_pages - begin]
                has_failed = store.failed.among(access.name, self.found.keys(access, begin, length_pages)) is not None
                count = 0 if has_failed else self._read(store, access, begin, length_pages, pages)
                yield 0.0
                if count < length_pages - begin:
                    return
                self._trailing_arrived.add(access.name)
            elif access.name in self.claim.pages:
                yield from self._read_optional(store, access, begin, length_pages)

    def _read_optional(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int) -> Steps:
        """Pages of an optional component: all of them or none."""
        first = begin - self.found.base_pages if access.is_path else 0
        keys = self.found.keys(access, begin, end)
        there = store.exists(access.name, keys)
        yield 0.0
        if not there.all():
            return
        count = self._read(store, access, begin, end, self.claim.pages[access.name][first : first + end - begin])
        yield 0.0
        if count < end - begin:
            return
        if access.is_path:
            self._optional_reach[access.name] = end
        else:
            self._trailing_arrived.add(access.name)

    def _read(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int, pages: NDArray[np.int64]) -> int:
        """Read pages [begin, end) of the prompt; returns how many came before the first that did not."""
        return read_pages(store, access, self.found.keys(access, begin, end), pages)

    @property
    def path_names(self) -> list[str]:
        """The required paths."""
        return [access.name for access in self._composition.paths if access.required]

    def trailing_pages(self, length_pages: int) -> dict[str, int]:
        """How many pages a length needs of every required window and state."""
        size = self._composition.page_size
        return {a.name: a.window_pages(length_pages, size) for a in self._composition.trailing if a.required}

    def trailing_arrived(self, names: Iterable[str]) -> None:
        """Another process has read the windows and states of these components."""
        self._trailing_arrived = set(names)

    def arrived(self, length_pages: int) -> set[str]:
        """The components of which everything that a length needs has arrived, without those in `left_out`."""
        base = self.found.base_pages
        paths = {
            access.name
            for access in self._composition.paths
            if (self.arrived_pages if access.required else self._optional_reach.get(access.name, base)) >= length_pages
        }
        return (paths | self._trailing_arrived) - self.left_out

    def pages_for(self, length_pages: int) -> dict[str, NDArray[np.int64]]:
        """The pages that hold the prompt's state up to a length, by component, as `Transfers.graft` takes them."""
        arrived, pages = self.arrived(length_pages), self.claim.pages
        count = max(0, length_pages - self.found.base_pages)
        found = {name: pages[name][:count] for name in pages if count and name in arrived & self._every_path}
        for access in self._composition.trailing:
            if access.name in arrived:
                found[access.name] = pages[access.name][: access.window_pages(length_pages, self._composition.page_size)]
        return found


def read_pages(store: CheckedStorage, access: PoolAccess, keys: Sequence[bytes], pages: NDArray[np.int64]) -> int:
    """Read a pool's values into host pages; returns how many came before the first that did not."""
    step = access.most_pages(len(keys))
    for begin in range(0, len(keys), step):
        some = pages[begin : begin + step].tolist()
        memory = [access.memory.page_memory(page) for page in some]
        outcomes = store.get(access.name, keys[begin : begin + step], memory)
        count = next((index for index, outcome in enumerate(outcomes) if outcome is not Outcome.DONE), len(some))
        if access.copied is not None:
            for page, copied in zip(some[:count], memory[:count], strict=True):
                access.copied.write_page(page, copied)
        if count < len(some):
            return begin + count
    return len(keys)
