"""The locks of one lease in the tree: its paths, and the windows and the state that it resumed from or published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.nodes.receipt import Receipt
    from unified_tree.terms.results import Boundary

ONLY_PATHS: Final[tuple[int, ...]] = ()


class LeaseLocks:
    """The receipts of one lease.

    Attributes:
        windows_at: the length at which windows and state are locked, or were last.
    """

    __slots__ = ("_path", "_resources", "_windows", "windows_at")

    def __init__(self, resources: CacheResources) -> None:
        self._resources = resources
        self._path: Receipt | None = None
        self._windows: Receipt | None = None
        self.windows_at = 0

    @property
    def has_windows(self) -> bool:
        """Whether windows or a state are locked."""
        return self._windows is not None

    def hold_windows_at(self, length: int) -> bool:
        """Whether windows at a length are locked."""
        return self._windows is not None and self.windows_at == length

    def lock(self, boundary: Boundary, *, rebuilds: bool) -> Boundary:
        """Lock what a run from a boundary reads: the paths, and the windows and the state if it does not rebuild them.

        Returns the boundary by a name that is valid while it is locked. Raises StaleBoundaryError.
        """
        boundary = self.lock_paths(boundary)
        if boundary.length and not rebuilds:
            layout = self._resources.layout
            if layout.saved_indices:
                self._windows = self._resources.locks.lock(boundary, Tier.DEVICE, layout.saved_indices)
                self.windows_at = boundary.length
        return boundary

    def lock_paths(self, boundary: Boundary) -> Boundary:
        """Lock the paths up to a boundary in place of those locked so far. Returns and raises as `lock`."""
        locks = self._resources.locks
        if self._path is None:
            self._path = locks.lock(boundary, Tier.DEVICE, ONLY_PATHS)
        else:
            locks.move(self._path, boundary, ONLY_PATHS)
        return self._path.boundary

    def lock_windows(self, boundary: Boundary) -> None:
        """Lock the windows at a boundary in place of those locked so far; those that are spare stay so. A shorter boundary
        changes nothing: a state that is published late must not move the lock back.
        """
        if boundary.length < self.windows_at:
            return
        locks, wanted = self._resources.locks, self._resources.layout.window_indices
        if self._windows is None:
            self._windows = locks.lock(boundary, Tier.DEVICE, wanted, keeps=False)
        else:
            locks.move(self._windows, boundary, wanted)
        self.windows_at = boundary.length

    def release_windows(self) -> None:
        """Release windows and state. Idempotent, likewise."""
        if self._windows is not None:
            if not self._windows.is_released:  # or it was interrupted here
                self._windows.release()
            self._windows = None

    def release(self) -> None:
        """Release everything. Idempotent, wherever it was interrupted before."""
        if self._path is not None:
            if not self._path.is_released:
                self._path.release()
            self._path = None
        self.release_windows()
