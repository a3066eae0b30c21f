"""Admission: where a prompt resumes.

There are three candidates: the boundary (a length one can resume from) on device; a later one whose windows are rebuilt by
running a few tokens again; and a later one that is partly on host and is loaded back, if that is faster than computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.cache.lease import Lease, LeaseOwner
from unified_tree.controllers.cache.lease_state import LeaseState
from unified_tree.lookup.matching import match, path_reach, use, window_gap
from unified_tree.misses import causes
from unified_tree.terms.errors import OutOfPagesError, TransferError
from unified_tree.terms.results import NOWHERE, Boundary, record

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Leases
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.host.load import Load
    from unified_tree.controllers.weights.weights import Weights
    from unified_tree.declare.keys import Key
    from unified_tree.terms.results import Match

NOTHING: Final[dict[str, int]] = {}
LOAD_FAILED: Final[tuple[int, str | None]] = (causes.LOAD_FAILED, None)
NO_ROOM: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "room")
NO_ROOM_TO_LOAD: Final = "no room to load"
TOO_DEAR: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "cost")


class Admission:
    """Creates the leases of one cache.

    A refusal leaves no trace but evictions. So the match touches nothing. The needs of a request are compared with what will be
    free or evictable behind its locks before anything is locked, and it counts as a use of what it resumes from when it has all
    that it asked for. One that takes no page but a free one for its state cannot be refused, and counts before it locks, which
    is cheaper.

    Args:
        owner: the cache, which releases them.
        leases: the open leases; it has every lease from before that takes something.
        weights: which weights version each namespace is in.
        rebuild, save_limit: see PrefixCache.
    """

    def __init__(
        self,
        owner: LeaseOwner,
        resources: CacheResources,
        leases: Leases,
        weights: Weights,
        *,
        rebuild: bool,
        save_limit: int,
    ) -> None:
        self._owner = owner
        self._resources = resources
        self._leases = leases
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
        reserve_tokens: int = 0,
        fills: int = 0,
        arriving: bool = False,
        refused: tuple[int, str | None] = LOAD_FAILED,
        dropped: str | None = None,
    ) -> Lease:
        """A lease at the best candidate; see PrefixCache.acquire. The arguments were checked, but for the ids of the tokens.

        Args:
            reserve_tokens: also allocate pages for so many tokens.
            fills: take of windows only what this length needs, and save nothing on the way; see PrefixCache.acquire_to_fill.
            arriving: resume from the path alone; see PrefixCache.acquire.
            refused: why it may not load; `dropped`: the same as it is counted, if that was found out just now.

        If this raises, all locks and pages taken before are released, and nothing counts as used.
        """
        parts = self._resources
        point, limit, state = parts.layout.point, key.length - 1, parts.state
        if point is not None:
            parts.device.check({point: 1})
        if arriving:
            fills, reserve_tokens = parts.layout.floor_to_page(key.length), max(reserve_tokens, key.length)
        is_sure = parts.controller is None and not reserve_tokens
        if is_sure and point is not None:
            is_sure = parts.device.allocators[point].free_pages > 0
        found = match(state, key, limit, touch=is_sure, checks=True)
        rebuilds = not arriving and self._rebuild and may_rebuild and found.rebuild.length > found.device.length
        if arriving:
            boundary, wanted = self._path_on_device(found)
        else:
            boundary, wanted = (found.rebuild, ()) if rebuilds else (found.device, parts.layout.saved_indices)
        compute_from = boundary.length - (found.rebuild_tokens if rebuilds else 0)
        loads = may_load and parts.controller is not None and self._is_worth_loading(found, compute_from)
        unloaded = TOO_DEAR if may_load else refused
        needs: dict[str, int] = NOTHING
        if loads:
            needs = self._needs(found.reachable.length, found.reachable.length, reserve_tokens, fills)
            if not self._has_room_to_load(found.reachable, needs):
                loads, unloaded, dropped = False, NO_ROOM, NO_ROOM_TO_LOAD
        counts_first = not loads
        if not (is_sure or loads) and (point is not None or reserve_tokens):
            run_from = 0 if arriving and not wanted else compute_from
            needs = self._needs(boundary.length, run_from, reserve_tokens, fills)
            if not parts.device.are_free(needs):
                counts_first = False
                parts.device.check(needs, parts.locks.pages_to_pin(boundary, wanted))
            elif reserve_tokens:  # there may be no memory for the tables of so many
                counts_first = False
        load: Load | None = None
        taken: LeaseState | None = None
        lease: Lease | None = None
        try:
            if loads:
                assert parts.controller is not None
                load = parts.controller.load(found.reachable, found.reachable.length - compute_from, needs)
                boundary, compute_from = load.boundary, found.reachable.length
                wanted = parts.layout.saved_indices
            taken = LeaseState(
                parts,
                self._weights.generation(key.namespace),
                key,
                boundary,
                compute_from,
                priority=priority,
                save_output=save_output,
                load=load,
                arriving=arriving,
            )
            lease = Lease(self._owner, taken)
            self._leases.add(lease, taken)
            if counts_first and not is_sure:
                use(state, found, boundary)
            taken.begin(wanted, rebuilds=rebuilds)
            points: list[int] = []
            if parts.layout.saved_indices and not (fills or arriving):
                points = self._save_points(taken, found, checkpoints)
                kept = tuple(sorted(points[: self._save_limit]))
                taken.plan_saves(kept, found.save_at, prompt_end=not checkpoints)
            if reserve_tokens:
                if arriving:
                    taken.expect(has_windows=bool(wanted) or not parts.layout.windows)
                elif fills:
                    taken.keep_only_for(fills)
                taken.grow_now(reserve_tokens)
            if not counts_first:
                use(state, found, taken.boundary)
            if state.listener is not None:
                taken.arrived(state.arrival)
            if not loads and parts.controller is not None:
                parts.controller.hit(taken.boundary)
            taken.admitted_by(found, unloaded)
            self._count_unsaved(taken, points)
            if dropped is not None:
                parts.counters.count_drop(dropped)
            return lease
        except BaseException as error:
            if lease is not None and taken is not None:
                self._leases.remove(lease, taken)
            elif load is not None:
                assert parts.controller is not None
                parts.controller.release(load)
            if not loads or not isinstance(error, OutOfPagesError | TransferError):
                raise
            is_short = isinstance(error, OutOfPagesError)
            refused = NO_ROOM if is_short else LOAD_FAILED
            dropped = NO_ROOM_TO_LOAD if is_short else "load beside a cancelled one"
        return self.admit(
            key,
            checkpoints,
            priority=priority,
            save_output=save_output,
            may_load=False,
            may_rebuild=may_rebuild,
            reserve_tokens=reserve_tokens,
            fills=fills,
            arriving=arriving,
            refused=refused,
            dropped=dropped,
        )

    def _path_on_device(self, found: Match) -> tuple[Boundary, tuple[int, ...]]:
        """How far the required paths reach on device, windows and states ignored; and by index the windows, if all that are
        required are on device there. Cost: O(nodes passed).
        """
        state, windows = self._resources.state, self._resources.layout.window_indices
        node = state.nodes.get(found.known.node) if found.known.length else None
        if node is None:
            return NOWHERE, windows
        node, length = path_reach(state, node, found.known.length, device_only=True)
        if not length:
            return NOWHERE, windows
        has_windows = all(
            window_gap(state, node, length, i, window, device_only=True) is None for i, window in state.layout.required_windows
        )
        return record(Boundary, (node.id, length)), windows if has_windows else ()

    def _needs(self, resumed: int, compute_from: int, reserve_tokens: int, fills: int) -> dict[str, int]:
        """Device pages by component that a request takes beside those that it resumes from."""
        layout = self._resources.layout
        needs = {} if layout.point is None else {layout.point: 1}
        count, held = layout.pages(reserve_tokens), resumed // layout.page_size
        if count > held:
            for name in layout.paths:
                needs[name] = count - held
        first = compute_from // layout.page_size
        for name, window in layout.windows:
            held = max(first, window.start(fills) // layout.page_size) if fills else first
            if count > held:
                needs[name] = count - held
        return needs

    def _has_room_to_load(self, boundary: Boundary, needs: dict[str, int]) -> bool:
        """Whether there will be device pages for what a boundary lacks there, beside these."""
        parts = self._resources
        total = parts.tree.transfers.load_needs(boundary)
        for name, count in needs.items():
            total[name] = total.get(name, 0) + count
        return parts.device.are_free(total) or parts.device.fits(total, parts.locks.pages_to_pin(boundary, None))

    def _is_worth_loading(self, found: Match, compute_from: int) -> bool:
        controller, gain = self._resources.controller, found.reachable.length - compute_from
        return controller is not None and gain > 0 and controller.is_worth_loading(found.reachable, gain)

    def _save_points(self, lease: LeaseState, found: Match, checkpoints: Sequence[int]) -> list[int]:
        """Where to save, what matters most first: the branch point, then the checkpoints from the deepest up, else the prompt's
        end.

        A repeat of the prompt computes its last token. So with states, where the prompt ends on the grid, it resumes a step of
        the grid earlier: that is saved, too.
        """
        grid = self._resources.layout.save_grid_tokens
        mark = lease.tokens.mark
        wanted = [*found.save_at] if mark is None else [*found.save_at, mark.fork]  # other namespaces go on from there
        for length in sorted(checkpoints, reverse=True) if checkpoints else (lease.prompt_tokens,):
            if length >= lease.prompt_tokens and self._resources.layout.point is not None:
                wanted.append(lease.prompt_tokens - 1)
            wanted.append(length)
        rebuilds = lease.compute_from < lease.cached_tokens
        if rebuilds:
            wanted.insert(0, lease.cached_tokens)
        resumed = lease.cached_tokens if not rebuilds else lease.cached_tokens - 1
        points: list[int] = []
        for length in wanted:
            at = min(length, lease.prompt_tokens) // grid * grid
            if at > resumed and at not in points:
                points.append(at)
        return points

    def _count_unsaved(self, lease: LeaseState, points: list[int]) -> None:
        """Count what an admitted request will not save, of these places."""
        layout, counters = self._resources.layout, self._resources.counters
        if layout.saved_indices and lease.prompt_tokens < layout.save_grid_tokens:
            counters.count_drop("prompt ends before the first place to save a state")
        if len(points) > self._save_limit:
            counters.count_drop("more places to save than save_limit")
