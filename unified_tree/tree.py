"""The radix tree: what exists of every known prefix, on device and host, for every kind of state."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from unified_tree import evicting, grafting, matching
from unified_tree.arguments import MAX_INTEGER, integer
from unified_tree.component import validate_components, validate_host_page_counts, validate_page_counts
from unified_tree.cost import restore_cost
from unified_tree.dump import dump
from unified_tree.effect import Effect, EffectKind
from unified_tree.errors import (
    ConfigurationError,
    InsertError,
    InvalidKeyError,
    ReceiptError,
    StaleBoundaryError,
    UnifiedTreeError,
)
from unified_tree.explain import Explanation, explain
from unified_tree.grafting import GraftResult
from unified_tree.insert_plan import plan_insert
from unified_tree.inserting import Insertion
from unified_tree.invariants import Violation, violations
from unified_tree.keys import Key
from unified_tree.locking import Locks
from unified_tree.node import NodeId, Tier
from unified_tree.policies import policy_factory
from unified_tree.receipt import NOWHERE, Boundary, InsertResult
from unified_tree.settings import TreeSettings
from unified_tree.state import TreeState
from unified_tree.transfers import Effects, Supply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.component import Component
    from unified_tree.eviction_policy import EvictionPolicy, PolicyFactory
    from unified_tree.order import Place
    from unified_tree.pool import Pool
    from unified_tree.receipt import EvictResult, Match, Receipt

MAX_PRIORITY = 1 << 53
EVERYTHING = 1 << 62


class UnifiedTree:
    """One radix tree over the pages of all components. Pure bookkeeping: no tensors, no threads, no I/O.

    The caller owns the pools: it brings page ids with `insert` and gets them back from `insert` and `evict`. One thread
    at a time may call. Every method that raises leaves the tree as it was.

    Args:
        components: the kinds of state; at least one required `Path`.
        page_size: tokens a page; a multiple of every component's tokens_per_slot.
        policy: an eviction policy by name (`lru`, `lfu`, `fifo`, `mru`, `filo`, `slru`, `priority`, `cost`, one of an installed
            package's entry points `unified_tree.policies`, or `module:factory`), or a factory, which is called once a pool.
        page_counts: device pages by component, to check ids against; a component left out is unbounded.
        host_page_counts: host pages by component, likewise.
        settings: every bound, with its default.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path, UnifiedTree
    >>> tree = UnifiedTree([Component(name="full", coverage=Path())], page_size=2)
    >>> tree.insert(Key([1, 2, 3, 4]), {"full": np.array([7, 8])}).boundary.length
    4
    >>> match = tree.match_prefix(Key([1, 2, 3, 9]))
    >>> match.device.length, tree.pages(match.device, "full").tolist()
    (2, [7])
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        *,
        policy: str | PolicyFactory = "lru",
        page_counts: Mapping[str, int] | None = None,
        host_page_counts: Mapping[str, int] | None = None,
        settings: TreeSettings | None = None,
    ) -> None:
        components = validate_components(components, page_size)
        validate_page_counts(page_counts or {}, components)
        validate_host_page_counts(host_page_counts or {}, components)
        factory = policy_factory(policy)

        def make_policy(component: int, tier: Tier) -> EvictionPolicy:
            return factory(lambda value: restore_cost(self._state, component, tier, value))

        counts = (page_counts or {}, host_page_counts or {})
        self._state = TreeState(components, page_size, counts, make_policy, settings or TreeSettings())
        self._locks = Locks(self._state)
        self._effects = Effects(self._state, self._locks)
        weakref.finalize(self, self._state.nodes.take_apart).atexit = False

    @property
    def components(self) -> tuple[Component, ...]:
        """The kinds of state, in the order given."""
        return self._state.components

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self._state.page_size

    @property
    def node_count(self) -> int:
        """Nodes in the tree, roots not counted."""
        return len(self._state.nodes)

    @property
    def state(self) -> TreeState:
        """The data itself, for the tree's own tools (invariants, dumps, debuggers)."""
        return self._state

    @property
    def locks(self) -> Locks:
        """The receipts held now, for the same."""
        return self._locks

    def match_prefix(self, key: Key, *, limit: int | None = None, touch: bool = True) -> Match:
        """The longest boundaries along `key`, at most `limit` tokens; never changes the structure.

        Args:
            limit: match at most this many elements of the key; a scheduler passes its length less one.
            touch: refresh the recency of what the match used.

        Cost: one look-up and one memory comparison a node on the path, and the nodes of the windows at the boundary.
        """
        _check_key(key)
        return matching.match(self._state, key, _limited(key, limit), touch=touch)

    def pages(self, boundary: Boundary, component: str, tier: Tier = Tier.DEVICE) -> NDArray[np.int64]:
        """The page ids a component has for a boundary on one tier: all of [0, length) for `Path`, the last
        window's for `Trailing` (as far as the tree has them without a gap), the one state for `Point`.

        Returns a read-only int64 array, in the key's order. Raises StaleBoundaryError if the boundary is gone.
        Cost: O(nodes on the path) or of the window, and one copy of the ids.
        """
        _check_resident(tier)
        boundary = _check_boundary(boundary)
        return np.frombuffer(b"".join(matching.collect(self._state, self._locks, boundary, component, tier)), np.int64)

    def lock(self, boundary: Boundary, tier: Tier = Tier.DEVICE, components: Collection[str] | None = None) -> Receipt:
        """Pin what a boundary needs on one tier until the receipt is released.

        With Tier.HOST the boundary must be covered over device and host together, and the host values along it are pinned;
        what is on device alone is not. The boundary can be named as long as its path is pinned, by the name given as well
        as by `Receipt.boundary`, whatever is cut or evicted around it.

        Args:
            components: pin only these, and the paths they stand on; then only the paths' coverage is checked.

        Raises StaleBoundaryError if the boundary is not covered any more.
        Cost: O(nodes not locked yet); a path that is locked already costs its first node. May split the boundary's node.
        """
        _check_resident(tier)
        for name in components or ():
            self._check_known(name)
        return self._locks.acquire(_check_boundary(boundary), tier, components)

    def unlock(self, receipt: Receipt) -> None:
        """Release a receipt. Raises ReceiptError if it was released before or belongs to another tree."""
        if receipt.locks is not None and receipt.locks is not self._locks:
            raise ReceiptError(f"{receipt} belongs to another tree")
        receipt.release()

    def insert(
        self,
        key: Key,
        pages: Mapping[str, NDArray[np.int64]],
        states: Mapping[str, Mapping[int, int]] | None = None,
        *,
        after: Boundary | None = None,
        without: Collection[str] = (),
        priority: int = 0,
    ) -> InsertResult:
        """Put the pages of a key's tail and states along it into the tree, as far as the tree lacks them.

        Only the key's whole pages count. Values that fill a tombstone, or return a node that lives on host alone to the
        device, are kept; a window is kept only as far back as it can be resumed from, and not at all where that would cost
        the caller a sharer's state (`InsertResult.canonical`).

        Args:
            pages: per component that has pages of its own, the page ids of the key's last pages, int64; as many as the
                caller has. Required paths must reach back to what the tree has on device.
            states: per `Point` component the state pages by the length at which they were saved.
            after: a boundary known to lie on this key, from the match or the insert before: a hint that saves looking
                the way there up again. A wrong one costs time, nothing else.
            without: components that live in the given pages but whose state was not written there.
            priority: of the request, for the policy of that name; higher stays longer.

        Raises InsertError or PageError, with nothing changed, for pages or states that do not fit.
        Cost: as a match, and O(new pages).
        """
        _check_key(key)
        if after is not None:
            after = _check_boundary(after)
        priority = integer(priority, "priority", InsertError, minimum=-MAX_PRIORITY)
        if priority > MAX_PRIORITY:
            raise InsertError(f"priority must lie between -2**53 and 2**53, not {priority}")
        plan = plan_insert(self._state, key, pages, states or {}, after, without, priority)
        if plan is None:
            return InsertResult(NOWHERE, 0, {}, {}, {})
        return Insertion(self._state, plan).run()

    def evict(self, needs: Mapping[str, int], tier: Tier = Tier.DEVICE) -> EvictResult:
        """Free at least so many pages of each named pool, or as many as can be; the result says which.

        Cost: O(log n) a victim, n being the values in its order, and the settings' bounded shares of older debts.
        """
        _check_resident(tier)
        counts = {name: integer(count, f"needs[{name!r}]", ConfigurationError) for name, count in needs.items()}
        return evicting.evict(self._state, counts, tier)

    def invalidate(self, namespace: str | None = None) -> None:
        """Forget all that one namespace holds, or all of them: its state is not valid any more (the weights changed, say).

        No match finds it from now on and boundaries into it are stale; locks on it hold until they are released. Its pages
        stay in the tree until `evict` or `reclaim` hands them back, before anything else. Cost: O(1).
        """
        self._state.retired.retire(self._state, namespace)

    def reclaim(self, node_limit: int) -> EvictResult:
        """Look at up to so many nodes that `invalidate` gave up, and take apart those that nothing holds; their pages are in
        the result. What was locked comes back when it is unlocked.

        Cost: O(node_limit), however many there are.
        """
        return evicting.reclaim(self._state, integer(node_limit, "node_limit", ConfigurationError))

    @property
    def is_reclaimable(self) -> bool:
        """Whether there may be something for `reclaim`. Cost: O(1)."""
        return self._state.retired.is_pending

    def settle(self, limit: int | None = None) -> int:
        """Do what operations have put off: bring the marks of up to `limit` nodes up to date, by default of all.

        When the window of a shared prompt goes, all its continuations are no boundaries any more, and their values stranded.
        An operation marks what it touches and a bounded number besides; the rest waits, a share of every later operation.
        Nothing depends on a mark but who is evicted first. Returns how many nodes were done: all marks are exact if that is
        less than the limit.
        Cost: O(log n) a node.
        """
        return self._state.resumability.settle(EVERYTHING if limit is None else integer(limit, "limit", ConfigurationError))

    def evictable_pages(self, component: str, tier: Tier = Tier.DEVICE) -> int:
        """Pages of a pool that no lock pins. Cost: O(1)."""
        return self.pool(component, tier).evictable_pages

    def protected_pages(self, component: str, tier: Tier = Tier.DEVICE) -> int:
        """Pages of a pool that locks pin. Cost: O(1)."""
        return self.pool(component, tier).protected_pages

    def stranded_pages(self, component: str, tier: Tier = Tier.DEVICE) -> int:
        """Pages of a pool that no boundary at a node's end needs; the first to go. Cost: O(1)."""
        return self.pool(component, tier).stranded_pages

    def pool(self, component: str, tier: Tier = Tier.DEVICE) -> Pool:
        """The books of one component's pages on one tier. Raises UnifiedTreeError for an unknown component."""
        _check_resident(tier)
        self._check_known(component)
        return self._state.pools(tier)[self._state.index[component]]

    def _check_known(self, component: str) -> None:
        if component not in self._state.index:
            raise UnifiedTreeError(f"there is no component {component!r}; there are {', '.join(self._state.index)}")

    def backup_needs(self, boundary: Boundary, components: Collection[str] | None = None) -> dict[str, int]:
        """Host pages by component that a backup of this boundary would take now. Cost: O(nodes on the path)."""
        return self._effects.needs(EffectKind.BACKUP, boundary, components)

    def load_needs(self, boundary: Boundary) -> dict[str, int]:
        """Device pages by component that a load back of this boundary would take now. Cost: O(nodes on the path)."""
        return self._effects.needs(EffectKind.LOAD, boundary, None)

    def backup(self, boundary: Boundary, pages: Supply, components: Collection[str] | None = None) -> Effect:
        """Ask for copies of what a boundary needs and the host lacks, but for what open effects copy already.

        The sources are pinned until the effect ends.

        Args:
            pages: host page ids by component, exactly as many as `backup_needs` says; or a function that is given those
                needs and returns them. It is called when the sources are pinned, so it may evict.
            components: copy only these; then only the paths' coverage is required.

        Raises StaleBoundaryError, EffectError, PageError, or what the function raises, with nothing changed.
        """
        return self._effects.begin(EffectKind.BACKUP, boundary, pages, components)

    def load(self, boundary: Boundary, pages: Supply) -> Effect:
        """Ask for copies of what a boundary needs and the device lacks, from host into device pages; as `backup`."""
        return self._effects.begin(EffectKind.LOAD, boundary, pages, None)

    def pages_with_loads(self, boundary: Boundary, component: str) -> NDArray[np.int64]:
        """As `pages` on device, counting what open loads are bringing as there. Cost: as `pages`, and O(spans) a load."""
        return self._effects.pages_with_loads(boundary, component)

    def lock_present(self, boundary: Boundary) -> Receipt:
        """Lock what of a boundary is on device now, whether or not that covers it. Raises StaleBoundaryError if it is gone."""
        return self._locks.lock_present(_check_boundary(boundary))

    def acknowledge(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """The copies were made: publish them. Returns the target pages that the tree did not need any more, to be freed.

        Raises EffectError if the effect ended before or belongs to another tree.
        """
        return self._effects.acknowledge(effect)

    def abort(self, effect: Effect) -> dict[str, NDArray[np.int64]]:
        """The copies were not made. Returns all target pages, to be freed. Raises as `acknowledge`."""
        return self._effects.abort(effect)

    def host_path_end(self, key: Key, *, limit: int | None = None) -> Boundary:
        """How far every required path lies on host along `key`: where pages from elsewhere can be grafted.

        Not a boundary of a hybrid unless it happens to be one; `lock(..., Tier.HOST, components=paths)` keeps it.
        Cost: as a match.
        """
        _check_key(key)
        return grafting.host_path_end(self._state, key, _limited(key, limit))

    def graft(self, key: Key, pages: Mapping[str, NDArray[np.int64]]) -> GraftResult:
        """Put host pages of a key's tail into the tree that did not come from the device: out of a store, say.

        Args:
            key: only its whole pages count.
            pages: by component the host page ids of the key's last pages, int64: of a path as many as the host lacks, of a
                window those of its last tokens, one state. Required paths must reach back to `host_path_end`.

        Raises InsertError, PageError or InvalidKeyError, with nothing changed. Cost: as an insert.
        """
        _check_key(key)
        return grafting.graft(self._state, key, pages)

    def key_of(self, boundary: Boundary) -> Key:
        """The tokens up to a boundary, and their namespace; of length zero the empty key.

        Raises StaleBoundaryError if its node is gone. Cost: one copy of the tokens.
        """
        node, length = self._locks.find(_check_boundary(boundary))
        return matching.key_of(node, length)

    def is_boundary(self, boundary: Boundary) -> bool:
        """Whether `boundary`, at a node's end, is covered over device and host. Cost: O(1); see `settle`."""
        node = self._state.nodes.get(_check_boundary(boundary).node)
        if node is None or node.end != boundary.length or self._state.retired.holds(node):
            return False
        return not self._state.gated or self._state.resumability.is_covered(node)

    def hits(self, boundary: Boundary) -> int:
        """How many matches ended in the boundary's node since it was made; 0 if it is gone. Cost: O(1)."""
        node = self._state.nodes.get(_check_boundary(boundary).node)
        value = node.device[self._state.required_owned_paths[0]] if node is not None else None
        return value.hits if value is not None else 0

    def boundaries(self) -> list[Boundary]:
        """The boundaries at node ends, of plain paths only those at leaves. Cost: O(tree)."""
        gated, covered = self._state.gated, self._state.resumability.is_covered
        live = (node for node in self._state.nodes if not self._state.retired.holds(node))
        return [Boundary(n.id, n.end) for n in live if (covered(n) if gated else n.first_child is None)]

    def coldest_boundaries(
        self, component: str, page_count: int, *, look_at: int = 64, after: Place | None = None
    ) -> tuple[list[Boundary], Place | None]:
        """Boundaries that would lose their last copy of a component's device pages next, for about so many pages.

        What is locked, on its way to host, copied or stranded is no candidate. Values at which no boundary ends are looked
        at and passed over.

        Args:
            look_at: look at most at so many values of the eviction order.
            after: where the last look got; None to begin with the coldest.

        Returns the boundaries, and where this look got: None at the order's end. Cost: O(log n), and O(1) a value looked at.
        """
        values, place = self.pool(component).coldest_uncopied(page_count, look_at, after)
        found = (Boundary(value.node.id, value.node.end) for value in values)
        return [boundary for boundary in found if self.is_boundary(boundary)], place

    def explain(self, key: Key) -> Explanation:
        """Which component on which tier lost how much of this key. Changes nothing. Cost: a few matches."""
        _check_key(key)
        return explain(self._state, key)

    def check(self) -> list[Violation]:
        """Every broken invariant; empty in a sound tree. Reads everything. Cost: O(tree)."""
        return list(violations(self._state, self._locks))

    def dump(self) -> str:
        """The tree as text, a node a line. Cost: O(tree)."""
        return dump(self._state)


def _check_resident(tier: Tier) -> None:
    if tier is Tier.STORAGE:
        raise UnifiedTreeError("storage is addressed by content, not by the tree; its tiers are DEVICE and HOST")


def _check_boundary(boundary: Boundary) -> Boundary:
    if type(boundary) is Boundary and type(boundary[0]) is type(boundary[1]) is int:
        return boundary
    try:
        node, length = boundary
        return Boundary(NodeId(index(node)), index(length))
    except (TypeError, ValueError):
        raise StaleBoundaryError(f"{boundary!r} is no Boundary; match again") from None


def _limited(key: Key, limit: int | None) -> int:
    return (
        key.length if limit is None else max(0, min(integer(limit, "limit", InvalidKeyError, minimum=-MAX_INTEGER), key.length))
    )


def _check_key(key: object) -> None:
    if not isinstance(key, Key):
        raise InvalidKeyError(f"a Key is needed, not {type(key).__name__}: wrap the tokens, Key(tokens)")
