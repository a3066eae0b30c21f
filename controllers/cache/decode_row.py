"""A row of a batch: the lengths at which its lease has more to do than what all rows have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.cache.lease_state import LeaseState, Row
from unified_tree.declare.coverage import NO_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.resources import CacheLayout


class RowOwner(Protocol):
    """The calls of a row to its `DecodeBatch`."""

    def require_room(self, lease: LeaseState, length_tokens: int) -> None:
        """See DecodeBatch."""
        ...

    def plan(self, row: DecodeRow) -> None:
        """See DecodeBatch."""
        ...

    def vacate(self, index: int) -> None:
        """See DecodeBatch."""
        ...


class DecodeRow(Row):
    """One lease in a batch."""

    __slots__ = ("_batch", "_layout", "lease")

    def __init__(
        self,
        batch: RowOwner,
        layout: CacheLayout,
        lease: LeaseState,
        index: int,
        numbers: memoryview,
        tables: dict[str, tuple[NDArray[np.int64], memoryview]],
    ) -> None:
        super().__init__(index, numbers, tables)
        self._batch = batch
        self._layout = layout
        self.lease = lease

    def require_room(self, length_tokens: int) -> None:
        """Raise LeaseError if the row is too short for so many tokens."""
        self._batch.require_room(self.lease, length_tokens)

    def plan(self) -> None:
        """Something has changed the lease: work out at which lengths it has something of its own to do."""
        self._batch.plan(self)

    def saves(self) -> dict[int, int]:
        """A copy of the pages for saved states, for `restore_states`."""
        return {} if self.lease.states is None else dict(self.lease.states.saves)

    def restore_states(self, saves: Mapping[int, int]) -> None:
        """Have the pages for saved states that there were."""
        if self.lease.states is not None:
            self.lease.states.restore(saves)

    def leave(self) -> None:
        """The lease was released."""
        self._batch.vacate(self.index)

    @property
    def grows_at(self) -> int:
        """The first length for which `allocate` has more to do than to find pages for tokens, or is refused."""
        states, lease = self.lease.states, self.lease
        if states is None or states.is_given_up:
            return NO_LENGTH
        if states.running is None:
            return 0
        if states.is_lost:
            return NO_LENGTH
        at, length = NO_LENGTH, lease.length
        if length < lease.prompt_tokens:
            at = min((at for at in lease.save_at if at > length and at not in lease.published.saved), default=NO_LENGTH)
        return min(at, states.grow_at(length, lease.committed, lease.computed)) if lease.save_output else at

    @property
    def advances_at(self) -> int:
        """The first computed length for which `advance` has more to do than to free windows, or is refused."""
        states = self.lease.states
        if states is not None and states.running is None and not states.is_given_up:
            return 0
        locks, layout, tables = self.lease.locks, self._layout, self.lease.tables
        if not locks.has_windows:
            return NO_LENGTH
        at = locks.windows_at + 1
        for name, window in layout.windows:
            if tables[name].first_held < locks.windows_at // layout.page_size:
                at = max(at, layout.pages(window.until(locks.windows_at)) * layout.page_size)
                if at > self.lease.windows_kept_from:
                    return NO_LENGTH
        return at

    @property
    def cuts_at(self) -> int:
        """Below this length `truncate` has more to do than to free pages of tokens."""
        known = self.lease.tokens.length
        return known if self.lease.states is None else max(known, 0, *self.lease.states.saves)
