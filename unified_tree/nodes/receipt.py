"""Receipts of locks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from unified_tree.terms.errors import ReceiptError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value
    from unified_tree.terms.results import Boundary


class LockKeeper:
    """The calls that a receipt makes to the locks that issued it; see `Locks`."""

    @abstractmethod
    def move_to(self, receipt: Receipt, boundary: Any, components: Any) -> None:
        """See Receipt.move."""

    @abstractmethod
    def move_to_present(self, receipt: Receipt, boundary: Boundary) -> None:
        """See Receipt.move_to_present."""

    @abstractmethod
    def release(self, receipt: Receipt, component: str | None) -> None:
        """See Receipt.release."""


class Receipt:
    """A lock on what a boundary needs on one tier, until it is released, once. That of an open effect, which nobody else
    releases, locks what both tiers have of it.

    Attributes:
        boundary: what was locked, by a name that stays valid while a path is locked up to it. It differs from the given one if
            the lock had to split a node.
        old_name: the given one, which stays valid as long.
        tier: which tier's pages are locked; DEVICE for both.
        paths, values: what is locked: the deepest value of each counted path, and the single values of windows and states.
            Internal.
    """

    __slots__ = ("_locks", "boundary", "old_name", "paths", "serial", "tier", "values")

    def __init__(self, locks: LockKeeper, serial: int, boundary: Boundary, tier: Tier) -> None:
        self._locks: LockKeeper | None = locks
        self.serial = serial
        self.boundary = boundary
        self.old_name: Boundary | None = None
        self.tier = tier
        self.paths: list[Value] = []
        self.values: list[Value] = []

    @property
    def is_released(self) -> bool:
        """Whether nothing is locked any more."""
        return self._locks is None

    @property
    def locks(self) -> LockKeeper | None:
        """The tree's locks this receipt belongs to; None once released."""
        return self._locks

    def add(self, value: Value) -> None:
        """A split divided a locked value: its upper half is locked too."""
        self.values.append(value)

    def move(self, boundary: Any, components: Any = None) -> None:  # unchecked: compiled code would refuse in its own words
        """Lock what another boundary needs on device instead, without a moment in which what both need is not locked.

        Args:
            boundary, components: as for UnifiedTree.lock.

        Raises StaleBoundaryError, with nothing changed, if the boundary is not covered any more, and ReceiptError if the
        receipt was released or locks another tier. Cost: as the lock and the release of what only one of both needs.
        """
        self._movable(boundary).move_to(self, boundary, components)

    def move_to_present(self, boundary: Boundary) -> None:
        """As `move`, for the part of another boundary that is on device, covered or not; see `Transfers.lock_present`."""
        self._movable(boundary).move_to_present(self, boundary)

    def _movable(self, boundary: Any) -> LockKeeper:
        if self._locks is None or self.tier is not Tier.DEVICE:
            raise ReceiptError(f"{self} cannot move to {boundary}")
        return self._locks

    def close(self) -> None:
        """Nothing is locked any more."""
        self._locks = None

    def release(self, component: str | None = None) -> None:
        """Release one component early, or all that is still locked.

        The boundary can become stale once no path that is still locked reaches it; an optional path may end before it.
        Raises ReceiptError if it was released before. Cost: as the lock.
        """
        if self._locks is None:
            raise ReceiptError(f"the receipt for {self.boundary} was released before")
        self._locks.release(self, component)

    def __repr__(self) -> str:
        state = "released" if self.is_released else "held"
        return f"Receipt({state}, {self.boundary}, {self.tier.name})"
