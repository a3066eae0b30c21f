"""The place of one lease in a batch, and the lengths at which the lease has something to do that a batch cannot do for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.decode_batch import DecodeBatch
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.lease_locks import LeaseLocks
    from unified_tree.controllers.cache.resources import CacheLayout
    from unified_tree.controllers.cache.state_pages import StatePages

NEVER: Final = 1 << 62
"""A length that no lease reaches."""


class DecodeRow:
    """One lease in a batch.

    Args:
        states, locks: the lease's own.

    Attributes:
        index: which row of the batch's arrays.
    """

    __slots__ = ("_batch", "_layout", "_locks", "_states", "index", "lease")

    def __init__(
        self, batch: DecodeBatch, layout: CacheLayout, lease: Lease, index: int, states: StatePages | None, locks: LeaseLocks
    ) -> None:
        self._batch = batch
        self._layout = layout
        self._states = states
        self._locks = locks
        self.lease = lease
        self.index = index

    @property
    def numbers(self) -> memoryview:
        """The lease's numbers, in the batch's memory."""
        return self._batch.numbers_of(self.index)

    def table(self, component: str) -> tuple[NDArray[np.int64], memoryview]:
        """The same for one of its tables; see PageTable.move_to."""
        return self._batch.table_of(self.index, component)

    def require_room(self, length_tokens: int) -> None:
        """Raise LeaseError if the row is too short for so many tokens."""
        self._batch.require_room(self.lease, length_tokens)

    def plan(self) -> None:
        """Something has changed the lease: work out at which lengths it has something of its own to do."""
        self._batch.plan(self)

    def restore_states(self, saves: Mapping[int, int]) -> None:
        """Have the pages for saved states that there were."""
        if self._states is not None:
            self._states.restore(saves)

    def leave(self) -> None:
        """The lease was released."""
        self._batch.vacate(self.index)

    @property
    def grows_at(self) -> int:
        """The first length for which `allocate` has more to do than to find pages for tokens, or is refused."""
        states, lease = self._states, self.lease
        if states is None:
            return NEVER
        if states.running is None:
            return 0
        if states.is_lost:
            return NEVER
        at, length = NEVER, lease.length
        if length < lease.prompt_tokens:
            at = min((at for at in lease.save_at if at > length and at not in lease.saved), default=NEVER)
        return min(at, states.grow_at(length, lease.committed, lease.computed)) if lease.save_output else at

    @property
    def advances_at(self) -> int:
        """The first computed length for which `advance` has more to do than to free windows, or is refused."""
        if self._states is not None and self._states.running is None:
            return 0
        locks, layout, tables = self._locks, self._layout, self.lease.tables
        if not locks.has_windows:
            return NEVER
        at = locks.windows_at + 1
        for name, window in layout.windows:
            if tables[name].first_held < locks.windows_at // layout.page_size:
                at = max(at, layout.pages(locks.windows_at + window) * layout.page_size)
                if at > self.lease.windows_kept_from:
                    return NEVER
        return at

    @property
    def cuts_at(self) -> int:
        """Below this length `truncate` has more to do than to free pages of tokens."""
        known = self.lease.tokens.length
        return known if self._states is None else max(known, 0, *self._states.saves)
