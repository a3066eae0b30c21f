"""Admission: where a prompt resumes.

There are three candidates: the boundary (a length one can resume from) on device; a later one whose windows are rebuilt by
running a few tokens again; and a later one that is partly on host and is loaded back, if that is faster than computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.cache.lease import Lease, LeaseOwner
from unified_tree.controllers.cache.lease_state import RAN_WITHOUT, Ask, LeaseState
from unified_tree.lookup.matching import match, path_boundary, use, window_gap
from unified_tree.misses import causes
from unified_tree.terms.errors import OutOfPagesError, TransferError
from unified_tree.terms.results import NOWHERE, Boundary

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Leases
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.controllers.weights.weights import Weights
    from unified_tree.terms.results import Match

NOTHING: Final[dict[str, int]] = {}
LOAD_FAILED: Final[tuple[int, str | None]] = (causes.LOAD_FAILED, None)
NO_ROOM: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "room")
NO_ROOM_TO_LOAD: Final = "no room to load"
CANCELLED: Final = "load beside a cancelled one"
TOO_DEAR: Final[tuple[int, str | None]] = (causes.LOAD_REFUSED, "cost")


class Plan:
    """A candidate where a prompt resumes.

    Args:
        found: the match of the prompt.
        boundary: where it resumes; `wanted`: the windows and states that it needs there, by index.
        unloaded, dropped: see `Admission._plan`.

    Attributes:
        compute_from: the first token that it computes.
        rebuilds: whether it runs tokens before the boundary again.
        loads: whether it loads back what is on host; `loaded`: only these components, None for all.
        without: the optional components without which it runs.
        needs: device pages by component that it takes at once.
    """

    __slots__ = (
        "boundary",
        "compute_from",
        "dropped",
        "found",
        "loaded",
        "loads",
        "needs",
        "rebuilds",
        "unloaded",
        "wanted",
        "without",
    )

    def __init__(
        self,
        found: Match,
        boundary: Boundary,
        wanted: tuple[int, ...],
        unloaded: tuple[int, str | None],
        dropped: str | None,
    ) -> None:
        self.found = found
        self.boundary = boundary
        self.wanted = wanted
        self.unloaded = unloaded
        self.dropped = dropped
        self.compute_from = boundary.length
        self.rebuilds = False
        self.loads = False
        self.loaded: list[str] | None = None
        self.without: tuple[str, ...] = ()
        self.needs = NOTHING


class Admission:
    """Creates the leases of one cache.

    A refusal leaves no trace but evictions. So the match touches nothing. The needs of a request are compared with what will be
    free or evictable behind its locks before anything is locked, and it counts as a use of what it resumes from when it has all
    that it asked for. By then that is locked and in no eviction order, so that using it moves nothing there.

    Optional components refuse nothing: a request that finds no pages of theirs is admitted without them.

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

    def admit(self, ask: Ask) -> tuple[Lease, LeaseState]:
        """A lease at the best candidate, and its state; see PrefixCache.acquire.

        The caller has checked the request, but for the ids of the tokens. If this raises, all locks and pages taken before are
        released, and nothing counts as used.
        """
        if ask.arriving:
            ask.fills = self._resources.layout.floor_to_page(ask.key.length)
            ask.reserve_tokens = max(ask.reserve_tokens, ask.key.length)
        plan = self._plan(ask, TOO_DEAR if ask.may_load else LOAD_FAILED, None, may_load=ask.may_load)
        try:
            return self._take(ask, plan)
        except (OutOfPagesError, TransferError) as error:
            if not plan.loads:
                raise
            is_short = isinstance(error, OutOfPagesError)
        unloaded, dropped = NO_ROOM if is_short else LOAD_FAILED, NO_ROOM_TO_LOAD if is_short else CANCELLED
        return self._take(ask, self._plan(ask, unloaded, dropped, may_load=False))

    def _plan(self, ask: Ask, unloaded: tuple[int, str | None], dropped: str | None, *, may_load: bool) -> Plan:
        """Match a prompt and choose a candidate that will have all that it needs. Raises OutOfPagesError if there is none.

        Args:
            unloaded: why what the host has is not loaded, if it is not; `dropped`: the same as it is counted, if that was found
                out just now.
        """
        parts, key = self._resources, ask.key
        layout, point = parts.layout, parts.layout.point
        if point in layout.can_give_up:
            point = None
        if point is not None:
            parts.device.check({point: 1})
        found = match(parts.state, key, key.length - 1, touch=False, checks=True)
        plan = Plan(found, found.device, layout.saved_indices, unloaded, dropped)
        if ask.arriving:
            plan.boundary, plan.wanted = self._path_on_device(found)
        elif self._rebuild and ask.may_rebuild and found.rebuild.length > found.device.length:
            plan.rebuilds = True
            plan.boundary, plan.wanted = found.rebuild, ()
        plan.compute_from = plan.boundary.length - (found.rebuild_tokens if plan.rebuilds else 0)
        if may_load and parts.controller is not None and self._is_worth_loading(found, plan.compute_from):
            plan.needs = self._needs(ask, found.reachable.length, found.reachable.length)
            plan.loads = self._has_room_to_load(found.reachable, plan.needs, None)
            if not plan.loads and layout.gating is not None:
                plan.loaded = layout.gating
                self._do_without(plan)
                plan.loads = self._has_room_to_load(found.reachable, plan.needs, plan.loaded)
            if not plan.loads:
                plan.without = ()
                plan.unloaded, plan.dropped = NO_ROOM, NO_ROOM_TO_LOAD
        if not plan.loads and (point is not None or ask.reserve_tokens):
            run_from = 0 if ask.arriving and not plan.wanted else plan.compute_from
            plan.needs = self._needs(ask, plan.boundary.length, run_from)
            if not parts.device.are_free(plan.needs):
                pinned = self._pinned(plan)
                parts.device.check(plan.needs, pinned)
        return plan

    def _pinned(self, plan: Plan) -> dict[str, int]:
        """Device pages by component that its locks will pin. Where that leaves too few for its needs, it gives up the optional
        components of which it would take pages at once, and in one budget, where that is not enough, all of them.
        """
        parts, boundary = self._resources, plan.boundary
        layout, device = parts.layout, parts.device
        pinned = parts.locks.pages_to_pin(boundary, (*layout.optional_paths, *plan.wanted))
        if layout.can_give_up and not device.has_room(plan.needs, pinned):
            self._do_without(plan)
            pinned = {name: count for name, count in pinned.items() if name not in plan.without}
            if device.is_one_budget and not device.has_room(plan.needs, pinned):
                plan.without = layout.can_give_up
                pinned = {name: count for name, count in pinned.items() if name not in plan.without}
        return pinned

    def _do_without(self, plan: Plan) -> None:
        """Give up the optional components of which it would take pages at once. All of them: a draft is of no use in parts."""
        can_give_up = self._resources.layout.can_give_up
        plan.without = tuple([name for name in can_give_up if name in plan.needs])
        plan.needs = {name: count for name, count in plan.needs.items() if name not in can_give_up}

    def _take(self, ask: Ask, plan: Plan) -> tuple[Lease, LeaseState]:
        """Lock and allocate as planned. If this raises, all that was taken is given back."""
        parts, found = self._resources, plan.found
        load: Load | None = None
        taken: LeaseState | None = None
        lease: Lease | None = None
        try:
            if plan.loads:
                assert parts.controller is not None
                tokens = found.reachable.length - plan.compute_from
                load = parts.controller.load(found.reachable, tokens, plan.needs, plan.loaded)
                plan.boundary, plan.compute_from = load.boundary, found.reachable.length
                plan.wanted = parts.layout.saved_indices
            generation = self._weights.generations.current(ask.key.namespace)
            taken = LeaseState(parts, generation, ask, plan.boundary, plan.compute_from, load)
            lease = Lease(self._owner, taken)
            self._leases.add(lease, taken)
            held = taken.begin(plan.wanted, plan.without, rebuilds=plan.rebuilds)
            points = self._plan_saves(ask, plan, taken) if parts.layout.needs_saves and not ask.fills else None
            if ask.reserve_tokens:
                self._reserve(ask, plan, taken)
            elif plan.without:
                taken.give_up(plan.without)
            use(parts.state, found, held)
            taken.admitted_by(found, plan.unloaded)
            if not plan.loads and parts.controller is not None:
                parts.controller.hit(held)
            if points is not None:
                self._count_unsaved(taken, points)
            if parts.layout.can_give_up and taken.given_up:
                parts.counters.count_drop(RAN_WITHOUT)
            if plan.dropped is not None:
                parts.counters.count_drop(plan.dropped)
            return lease, taken
        except BaseException:
            if lease is not None and taken is not None:
                self._leases.remove(lease, taken)
            elif load is not None:
                assert parts.controller is not None
                parts.controller.release(load)
            raise

    def _plan_saves(self, ask: Ask, plan: Plan, taken: LeaseState) -> list[int]:
        """Have a lease save states and windows on its way. Returns all places where that would help."""
        if ask.arriving:
            return []
        points = self._save_points(taken, plan.found, ask.checkpoints)
        kept = tuple(sorted(points[: self._save_limit]))
        taken.plan_saves(kept, plan.found.save_at, prompt_end=not ask.checkpoints)
        return points

    def _reserve(self, ask: Ask, plan: Plan, taken: LeaseState) -> None:
        """Allocate the pages that were asked for at once."""
        if ask.arriving:
            taken.expect(has_windows=bool(plan.wanted) or not self._resources.layout.windows)
        elif ask.fills:
            taken.keep_only_for(ask.fills)
        if plan.without:
            taken.give_up(plan.without)
        try:
            taken.grow_now(ask.reserve_tokens)
        except OutOfPagesError:  # what could be evicted stands above what is locked
            can_give_up = self._resources.layout.can_give_up
            if len(taken.given_up) == len(can_give_up):
                raise
            taken.give_up(can_give_up)
            taken.grow_now(ask.reserve_tokens)

    def _path_on_device(self, found: Match) -> tuple[Boundary, tuple[int, ...]]:
        """How far the required paths reach on device, windows and states ignored; and by index the windows, if all that are
        required are on device there. Cost: O(nodes passed).
        """
        state, windows = self._resources.state, self._resources.layout.window_indices
        boundary = path_boundary(state, found.known)
        if not boundary.length:
            return NOWHERE, windows
        node = state.nodes.get(boundary.node)
        assert node is not None
        has_windows = all(
            window_gap(state, node, boundary.length, i, window, device_only=True) is None
            for i, window in state.layout.required_windows
        )
        return boundary, windows if has_windows else ()

    def _needs(self, ask: Ask, resumed: int, compute_from: int) -> dict[str, int]:
        """Device pages by component that a request takes beside those that it resumes from."""
        layout, fills = self._resources.layout, ask.fills
        needs = {} if layout.point is None else {layout.point: 1}
        if not ask.reserve_tokens:
            return needs
        count, held = layout.pages(ask.reserve_tokens), resumed // layout.page_size
        if count > held:
            for name in layout.paths:
                needs[name] = count - held
        first = compute_from // layout.page_size
        for name, window in layout.windows:
            held = max(first, window.start(fills) // layout.page_size) if fills else first
            if count > held:
                needs[name] = count - held
        return needs

    def _has_room_to_load(self, boundary: Boundary, needs: dict[str, int], components: list[str] | None) -> bool:
        """Whether there will be device pages for what a boundary lacks there of these components, beside these pages."""
        parts = self._resources
        total = parts.tree.transfers.load_needs(boundary, components)
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
        the grid earlier: that is saved, too. Beside windows, the places of an optional state come last.
        """
        layout, states = self._resources.layout, lease.states
        if states is None or not (states.is_optional and self._resources.state.layout.is_gated):
            return self._points_on(layout.save_grid_tokens, lease, found, checkpoints, repeats=states is not None)
        points = self._points_on(layout.save_grid_tokens, lease, found, checkpoints, repeats=False)
        if states.running is not None and not states.is_lost:
            of_state = self._points_on(layout.state_grid_tokens, lease, found, checkpoints, repeats=True)
            points = [*dict.fromkeys([*points, *of_state])]
        return points

    def _points_on(self, grid: int, lease: LeaseState, found: Match, checkpoints: Sequence[int], *, repeats: bool) -> list[int]:
        """The places to save on a grid; those for a repeat of the prompt are wanted or not."""
        mark = lease.tokens.mark
        wanted = [*found.save_at] if mark is None else [*found.save_at, mark.fork]  # other namespaces go on from there
        for length in sorted(checkpoints, reverse=True) if checkpoints else (lease.prompt_tokens,):
            if repeats and length >= lease.prompt_tokens:
                wanted.append(lease.prompt_tokens - 1)
            wanted.append(length)
        rebuilds = lease.compute_from < lease.cached_tokens
        if rebuilds:
            wanted.insert(0, lease.cached_tokens)
        resumed = lease.cached_tokens if not rebuilds else lease.cached_tokens - 1
        points = dict.fromkeys([min(length, lease.prompt_tokens) // grid * grid for length in wanted])
        return [at for at in points if at > resumed]

    def _count_unsaved(self, lease: LeaseState, points: list[int]) -> None:
        """Count what an admitted request will not save, of these places."""
        layout, counters = self._resources.layout, self._resources.counters
        if lease.prompt_tokens < layout.save_grid_tokens:
            counters.count_drop("prompt ends before the first place to save a state")
        if len(points) > self._save_limit:
            counters.count_drop("more places to save than save_limit")
