"""Reading what was found into host pages: jobs that read a portion of the paths each, and one for the trailing pages of the
length they came to.

Host pages are given a portion at a time, so that none is taken for what will not be read. Those for windows and states serve
every shorter length, too: a window or a state takes no more pages there. So what falls short never needs other pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.storage.storage_engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.stored_composition import PoolAccess, StoredComposition


class Fetch:
    """Host pages being filled for one prompt.

    Args:
        found: what the store has.
        length_pages: what is to be read at most, one of `found.lengths`.
        claim: for how many pages by component there is room; optional components without are not read.

    Attributes:
        pages: those given so far, by component.
        given_pages: up to where those of the required paths go.
        arrived_pages: how far all required paths were read.
        stop: set it, and the paths are read no further.
        has_trailing_room: whether pages for windows and states were given.
        left_out: optional components that are not to be used.
    """

    def __init__(self, composition: StoredComposition, found: FoundPrefix, length_pages: int, claim: Mapping[str, int]) -> None:
        self._composition = composition
        self._path_names = {access.name for access in composition.paths}
        self.found = found
        self.length_pages = length_pages
        self.claim = dict(claim)
        self.pages: dict[str, NDArray[np.int64]] = {}
        self.given_pages = found.base_pages
        self.arrived_pages = found.base_pages
        self.stop = False
        self.has_trailing_room = False
        self.left_out: set[str] = set()
        self._optional_reach: dict[str, int] = {}
        self._trailing_came: set[str] = set()

    @staticmethod
    def needs(composition: StoredComposition, base_pages: int, length_pages: int) -> dict[str, int]:
        """Host pages by component for a length."""
        return Fetch.path_needs(composition, length_pages - base_pages) | Fetch.trailing_needs(composition, length_pages)

    @staticmethod
    def path_needs(composition: StoredComposition, page_count: int) -> dict[str, int]:
        """Host pages by component for so many pages of the paths."""
        return {access.name: page_count for access in composition.paths} if page_count > 0 else {}

    @staticmethod
    def trailing_needs(composition: StoredComposition, length_pages: int) -> dict[str, int]:
        """Host pages by component for the windows and states of a length."""
        return {access.name: access.window_pages(length_pages, composition.page_size) for access in composition.trailing}

    def give_path(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Further host pages for the paths, as many of each."""
        for name, ids in pages.items():
            before = self.pages.get(name)
            self.pages[name] = ids if before is None else np.concatenate((before, ids))
        self.given_pages += next(iter(pages.values())).size

    def give_trailing(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Host pages for windows and states."""
        assert not self.has_trailing_room
        self.pages.update(pages)
        self.has_trailing_room = True

    def goes_on_with(self, name: str) -> bool:
        """Whether an optional path was given pages and read as far as the required ones."""
        return self._optional_reach.get(name, self.found.base_pages) == self.arrived_pages

    def read_paths(self, store: CheckedStorage, batch_pages: int) -> Steps:
        """A job: of the pages given and not read, the required paths, some pages of each at a time, then the optional ones if
        all has come."""
        base, start, end = self.found.base_pages, self.arrived_pages, self.given_pages
        required = [access for access in self._composition.paths if access.required]
        for begin in range(start, end, batch_pages):
            if self.stop:
                return
            upto = min(begin + batch_pages, end)
            for access in required:
                upto = begin + self._read(store, access, begin, upto, self.pages[access.name][begin - base : upto - base])
                yield 0.0
            self.arrived_pages = upto
            if upto < min(begin + batch_pages, end):
                return
        for access in self._composition.paths:
            reach = self._optional_reach.get(access.name, base)
            ids = self.pages.get(access.name)
            is_whole = ids is not None and ids.size == end - base and reach == start < end
            if is_whole and not access.required and not self.stop:
                yield from self._read_optional(store, access, start, end)

    def read_trailing(self, store: CheckedStorage, length_pages: int) -> Steps:
        """A job: the windows and states of one length, required ones before optional."""
        self._trailing_came.clear()
        for access in self._composition.trailing:
            begin = length_pages - access.window_pages(length_pages, self._composition.page_size)
            if access.required:
                pages = self.pages[access.name][: length_pages - begin]
                count = self._read(store, access, begin, length_pages, pages)
                yield 0.0
                if count < length_pages - begin:
                    return
                self._trailing_came.add(access.name)
            elif access.name in self.pages:
                yield from self._read_optional(store, access, begin, length_pages)

    def _read_optional(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int) -> Steps:
        """Pages of an optional component: all of them or none."""
        first = begin - self.found.base_pages if access.is_path else 0
        keys = self.found.keys(access, begin, end)
        there = store.exists(access.name, keys)
        yield 0.0
        if not there.all():
            return
        count = self._read(store, access, begin, end, self.pages[access.name][first : first + end - begin])
        yield 0.0
        if count < end - begin:
            return
        if access.is_path:
            self._optional_reach[access.name] = end
        else:
            self._trailing_came.add(access.name)

    def _read(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int, pages: NDArray[np.int64]) -> int:
        """Read pages [begin, end) of the prompt; returns how many came before the first that did not."""
        memory = [access.memory.page_memory(page) for page in pages.tolist()]
        outcomes = store.get(access.name, self.found.keys(access, begin, end), memory)
        for count, outcome in enumerate(outcomes):
            if outcome is not Outcome.DONE:
                return count
        return len(outcomes)

    def came(self, length_pages: int) -> set[str]:
        """Components of which everything came that a length needs, but for those left out."""
        base = self.found.base_pages
        paths = {
            access.name
            for access in self._composition.paths
            if (self.arrived_pages if access.required else self._optional_reach.get(access.name, base)) >= length_pages
        }
        return (paths | self._trailing_came) - self.left_out

    def took(self, length_pages: int) -> dict[str, NDArray[np.int64]]:
        """The pages that hold the prompt's state up to a length, by component, as `Transfers.graft` takes them."""
        whole = self.came(length_pages)
        count = max(0, length_pages - self.found.base_pages)
        taken = {name: self.pages[name][:count] for name in self.pages if count and name in whole & self._path_names}
        for access in self._composition.trailing:
            if access.name in whole:
                taken[access.name] = self.pages[access.name][: access.window_pages(length_pages, self._composition.page_size)]
        return taken

    def left(self, length_pages: int) -> dict[str, NDArray[np.int64]]:
        """The pages that `took` leaves."""
        taken = self.took(length_pages)
        return {name: ids[taken[name].size if name in taken else 0 :] for name, ids in self.pages.items()}
