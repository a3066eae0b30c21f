"""Admission: where a prompt resumes.

There are three candidates: the boundary (a length one can resume from) on device; a later one whose windows are rebuilt by
running a few tokens again; and a later one that is partly on host and is loaded back, if that is faster than computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from unified_tree import causes
from unified_tree.controllers.cache.lease import Lease, LeaseOwner
from unified_tree.errors import OutOfPagesError, TransferError
from unified_tree.matching import match

if TYPE_CHECKING:
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.cache.weights import Weights
    from unified_tree.controllers.host.load import Load
    from unified_tree.keys import Key
    from unified_tree.receipt import Match

LOAD_FAILED: Final[tuple[int, str | None]] = (causes.LOAD_FAILED, None)
NO_ROOM: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "room")
TOO_DEAR: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "cost")


class Admission:
    """Creates the leases of one cache.

    Args:
        owner: the cache, which releases them.
        weights: which weights version each namespace is in.
        rebuild, save_limit: see PrefixCache.
    """

    def __init__(
        self, owner: LeaseOwner, resources: CacheResources, weights: Weights, *, rebuild: bool, save_limit: int
    ) -> None:
        self._owner = owner
        self._resources = resources
        self._weights = weights
        self._rebuild = rebuild
        self._save_limit = save_limit

    def admit(
        self,
        key: Key,
        checkpoints: Sequence[int] = (),
        *,
        priority: int = 0,
        save_output: bool = False,
        may_load: bool = True,
        may_rebuild: bool = True,
        refused: tuple[int, str | None] = LOAD_FAILED,
    ) -> Lease:
        """A lease at the best candidate; see PrefixCache.acquire. The arguments were checked, but for the ids of the tokens.

        Args:
            refused: why it may not load.

        If this raises, all locks and pages taken before are released.
        """
        ages = self._resources.at_once(key.namespace)
        try:
            return self._admit(key, checkpoints, priority, save_output, may_load, may_rebuild, refused)
        finally:
            if ages is not None:
                ages.let_go()

    def _admit(
        self,
        key: Key,
        checkpoints: Sequence[int],
        priority: int,
        save_output: bool,
        may_load: bool,
        may_rebuild: bool,
        refused: tuple[int, str | None],
    ) -> Lease:
        parts = self._resources
        point, limit, state = parts.layout.point, key.length - 1, parts.state
        if point is not None:
            parts.device.check({point: 1})
        sure = point is None or parts.device.allocators[point].free_pages > 0
        found = match(state, key, limit, touch=sure, checks=True)
        boundary = found.rebuild if self._rebuild and may_rebuild else found.device
        rebuilds = boundary.length > found.device.length
        compute_from = boundary.length - (found.rebuild_tokens if rebuilds else 0)
        loads = may_load and parts.controller is not None and self._is_worth_loading(found, compute_from)
        load: Load | None = None
        try:
            if loads:
                assert parts.controller is not None
                load = parts.controller.load(
                    found.reachable, found.reachable.length - compute_from, {point: 1} if point else {}
                )
                boundary, compute_from = load.boundary, found.reachable.length
            lease = Lease(
                self._owner,
                parts,
                self._weights.generation(key.namespace),
                key,
                boundary,
                compute_from,
                priority=priority,
                save_output=save_output,
                load=load,
            )
            try:
                lease._begin(rebuilds=rebuilds)
                if not sure:  # nothing was to be refreshed before it was sure that there is a page for the state
                    match(state, key, limit, touch=True)
                if parts.layout.saved_indices:
                    points = self._save_points(lease, found, checkpoints)
                    lease._plan_saves(points, found.save_at, prompt_end=not checkpoints)
            except BaseException:
                lease._end()
                raise
        except (OutOfPagesError, TransferError) as error:
            if not loads:
                raise
            is_short = isinstance(error, OutOfPagesError)
            parts.counters.count_drop("no room to load" if is_short else "load beside a cancelled one")
            refused = NO_ROOM if is_short else LOAD_FAILED
            return self._admit(key, checkpoints, priority, save_output, False, may_rebuild, refused)
        if not loads and parts.controller is not None:
            parts.controller.hit(lease.boundary)
        lease._admitted_by(found, TOO_DEAR if may_load else refused)
        return lease

    def _is_worth_loading(self, found: Match, compute_from: int) -> bool:
        controller, gain = self._resources.controller, found.reachable.length - compute_from
        return controller is not None and gain > 0 and controller.is_worth_loading(found.reachable, gain)

    def _save_points(self, lease: Lease, found: Match, checkpoints: Sequence[int]) -> tuple[int, ...]:
        """Where to save: the branch point first, then the checkpoints from the deepest up, else the prompt's end.

        A repeat of the prompt computes its last token. So with states, where the prompt ends on the grid, it resumes a step of
        the grid earlier: that is saved, too.
        """
        grid = self._resources.layout.save_grid_tokens
        wanted = [*found.save_at]
        for length in sorted(checkpoints, reverse=True) if checkpoints else (lease.prompt_tokens,):
            if length >= lease.prompt_tokens and self._resources.layout.point is not None:
                wanted.append(lease.prompt_tokens - 1)
            wanted.append(length)
        if lease.rebuilt_tokens:
            wanted.insert(0, lease.cached_tokens)
        resumed = lease.cached_tokens if not lease.rebuilt_tokens else lease.cached_tokens - 1
        points: list[int] = []
        for length in wanted:
            at = min(length, lease.prompt_tokens) // grid * grid
            if at > resumed and at not in points:
                points.append(at)
        if lease.prompt_tokens < grid:
            self._resources.counters.count_drop("prompt ends before the first place to save a state")
        if len(points) > self._save_limit:
            self._resources.counters.count_drop("more places to save than save_limit")
        return tuple(sorted(points[: self._save_limit]))
