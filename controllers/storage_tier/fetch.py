"""Reading what was found into host pages: two jobs, the paths first and then the trailing pages of the length they came to.

The pages given for a length serve every shorter one: a path's pages are filled from the front, and a window or a state takes
no more pages at a shorter length. So what falls short never needs other pages, only fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.storage.storage_engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.stored_composition import PoolAccess, StoredComposition


class Fetch:
    """Host pages being filled for one prompt.

    Args:
        found: what the store has.
        length_pages: what is to be read, one of `found.lengths`.
        pages: host page ids by component, from `needs`.

    Attributes:
        stop: set it, and the paths are read no further.
        arrived_pages: how far all required paths were read.
        whole: components that were read as far as the others and can be used.
    """

    def __init__(
        self, composition: StoredComposition, found: FoundPrefix, length_pages: int, pages: Mapping[str, NDArray[np.int64]]
    ) -> None:
        self._composition = composition
        self.found = found
        self.length_pages = length_pages
        self.pages = dict(pages)
        self.stop = False
        self.arrived_pages = found.base_pages
        self.whole: list[str] = []

    @staticmethod
    def needs(composition: StoredComposition, base_pages: int, length_pages: int) -> dict[str, int]:
        """Host pages by component for a length."""
        missing = length_pages - base_pages
        needs = {access.name: missing for access in composition.paths} if missing > 0 else {}
        for access in composition.trailing:
            needs[access.name] = access.window_pages(length_pages, composition.page_size)
        return needs

    def read_paths(self, store: CheckedStorage, batch_pages: int) -> Steps:
        """A job: the required paths, some pages of each at a time, then the optional ones if all has come."""
        base, end = self.found.base_pages, max(self.found.base_pages, self.length_pages)
        required = [access for access in self._composition.paths if access.required]
        for begin in range(base, end, batch_pages):
            if self.stop:
                break
            upto = min(begin + batch_pages, end)
            for access in required:
                upto = begin + self._read(store, access, begin, upto, self.pages[access.name][begin - base : upto - base])
                yield 0.0
            self.arrived_pages = upto
            if upto < min(begin + batch_pages, end):
                break
        self.whole = [access.name for access in required]
        if base < end == self.arrived_pages and not self.stop:
            for access in self._composition.paths:
                if not access.required and access.name in self.pages:
                    yield from self._read_optional(store, access, base, end)

    def read_trailing(self, store: CheckedStorage, length_pages: int) -> Steps:
        """A job: the windows and states of one length. `whole` then lists those that came, required ones before optional."""
        paths = {access.name for access in self._composition.paths}
        self.whole = [name for name in self.whole if name in paths]
        for access in self._composition.trailing:
            begin = length_pages - access.window_pages(length_pages, self._composition.page_size)
            if access.required:
                pages = self.pages[access.name][: length_pages - begin]
                count = self._read(store, access, begin, length_pages, pages)
                yield 0.0
                if count < length_pages - begin:
                    return
                self.whole.append(access.name)
            elif access.name in self.pages:
                yield from self._read_optional(store, access, begin, length_pages)

    def _read_optional(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int) -> Steps:
        keys = self.found.keys(access, begin, end)
        there = store.exists(access.name, keys)
        yield 0.0
        if there.all():
            count = self._read(store, access, begin, end, self.pages[access.name][: end - begin])
            yield 0.0
            if count == end - begin:
                self.whole.append(access.name)

    def _read(self, store: CheckedStorage, access: PoolAccess, begin: int, end: int, pages: NDArray[np.int64]) -> int:
        """Read pages [begin, end) of the prompt; returns how many came before the first that did not."""
        memory = [access.memory.page_memory(page) for page in pages.tolist()]
        outcomes = store.get(access.name, self.found.keys(access, begin, end), memory)
        for count, outcome in enumerate(outcomes):
            if outcome is not Outcome.DONE:
                return count
        return len(outcomes)

    def took(self, length_pages: int) -> dict[str, NDArray[np.int64]]:
        """The pages that hold the prompt's state up to a length, by component, as `UnifiedTree.graft` takes them."""
        paths = {access.name for access in self._composition.paths}
        come = max(0, length_pages - self.found.base_pages)
        taken = {name: self.pages[name][:come] for name in self.whole if come and name in paths}
        for access in self._composition.trailing:
            if access.name in self.whole:
                taken[access.name] = self.pages[access.name][: access.window_pages(length_pages, self._composition.page_size)]
        return taken

    def left(self, length_pages: int) -> dict[str, NDArray[np.int64]]:
        """The pages that `took` leaves."""
        taken = self.took(length_pages)
        return {name: ids[taken[name].size if name in taken else 0 :] for name, ids in self.pages.items()}
