"""The results of the tree's operations: boundaries, matches, insert and evict results, and lock receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from unified_tree.errors import ReceiptError
from unified_tree.node import ROOT_ID, NodeId, Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.locking import Locks
    from unified_tree.node import Value


record = tuple.__new__
"""Makes a NamedTuple of all its fields, without the Python frame of its own constructor: `record(Boundary, (node, length))`."""


class Boundary(NamedTuple):
    """A length one can resume from: every required component is covered there. It has `length` tokens and ends in, or at the
    end of, `node`.

    It stays meaningful while the tree changes; locking it revalidates it. Length zero is a boundary of every key.
    """

    node: NodeId
    length: int


NOWHERE = Boundary(ROOT_ID, 0)


class Match(NamedTuple):
    """What the tree has of a key's prefix.

    Attributes:
        device: the longest boundary covered on device.
        reachable: the longest boundary covered over device and host together.
        rebuild: where a run can resume after rebuilding the windows: it runs `rebuild_tokens` tokens again, reading the cached
            path pages. Equal to `device` where that would not help.
        rebuild_tokens: how many tokens before `rebuild.length` must run again; 0 where `rebuild` is `device`.
        path_length: how far the required path components reach over device and host, the others ignored.
        save_at: lengths at which the next prefill should save states and windows, so that the next prompt with this prefix
            hits: where this key branches off from the tree.
        known: how far the tree's nodes know this key, whatever they still have of it.
    """

    device: Boundary
    reachable: Boundary
    rebuild: Boundary
    rebuild_tokens: int
    path_length: int
    save_at: tuple[int, ...]
    known: Boundary


class InsertResult(NamedTuple):
    """What became of an insert. The caller owns the pages in `duplicates` and `replaced` and frees them.

    Attributes:
        boundary: where the key's whole pages now end; lock it to keep them.
        matched_length: how many tokens the tree knew before.
        duplicates: given pages the tree did not keep, by component, int64.
        replaced: pages the tree gave up for given ones that carry more components, by component, int64.
        canonical: the tree's own pages for the pages given, by component, read-only int64, in the key's order; of windows the
            part that was kept. -1 where an optional path has no page, because its parent has none. Windows have no entry and
            stay the caller's if a policy refused one of them, or if the tree's pages are locked and lack a required sharer's
            state that the given ones have.
    """

    boundary: Boundary
    matched_length: int
    duplicates: dict[str, NDArray[np.int64]]
    replaced: dict[str, NDArray[np.int64]]
    canonical: dict[str, NDArray[np.int64]]


class EvictResult(NamedTuple):
    """What an eviction freed. The caller owns the pages and returns them to their pools.

    Attributes:
        freed: page ids on the tier that was short, by component, int64; components that lost nothing are absent.
        freed_elsewhere: likewise on the other tier, for what could not stand without a victim.
        victims: how many values were chosen; values removed along with them are not counted.
        tombstones: victims whose node stayed in the tree.
        deleted_nodes: nodes that left the tree, or, of a leaf that was cut, its end.
        lost: victims that a boundary needed and that had no copy on the other tier.
    """

    freed: dict[str, NDArray[np.int64]]
    freed_elsewhere: dict[str, NDArray[np.int64]]
    victims: int
    tombstones: int
    deleted_nodes: int
    lost: int


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

    def __init__(self, locks: Locks, serial: int, boundary: Boundary, tier: Tier) -> None:
        self._locks: Locks | None = locks
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
    def locks(self) -> Locks | None:
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

    def _movable(self, boundary: Any) -> Locks:
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
