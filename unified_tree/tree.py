"""The radix tree: which state of every cached prefix is on device and on host, for every kind of state."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.checks.dump import dump, owner_of_page
from unified_tree.checks.invariants import Violation, violations
from unified_tree.declare.component import validate_components, validate_device_pools, validate_host_pools
from unified_tree.declare.keys import Key, checked_key, checked_limit
from unified_tree.declare.settings import TreeSettings
from unified_tree.declare.tenants import Tenants
from unified_tree.eviction import evicting
from unified_tree.inputs.arguments import checked_resident, flag, integer, integers, items, request_priority
from unified_tree.inputs.printable import repr_of
from unified_tree.inserts.inserting import insert
from unified_tree.locks.locks import Locks, Receipt
from unified_tree.lookup import matching
from unified_tree.misses.causes import misses
from unified_tree.misses.explain import Explanation, explain
from unified_tree.misses.miss_cause import MissCause
from unified_tree.native.chosen import coarse_monotonic_s
from unified_tree.policies.table import made_policy, policy_factory
from unified_tree.state.tree_state import TreeState
from unified_tree.terms.errors import (
    ConfigurationError,
    InsertError,
    InvalidKeyError,
    PageError,
    ReceiptError,
    UnifiedTreeError,
)
from unified_tree.terms.results import Boundary, Match, checked_boundary
from unified_tree.terms.tier import Tier
from unified_tree.transfers.transfers import Transfers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.block_budget import BlockBudget
    from unified_tree.declare.component import Component
    from unified_tree.misses.causes import Miss
    from unified_tree.policies.eviction_policy import EvictionPolicy, PolicyFactory
    from unified_tree.policies.standard_policy import Standard
    from unified_tree.policies.tree_view import TreeView
    from unified_tree.state.pool import Pool
    from unified_tree.terms.results import EvictResult, InsertResult, Match

EVERYTHING = 1 << 62


class UnifiedTree:
    """One radix tree over the pages of all components. Pure bookkeeping: no tensors, no threads, no I/O. A *boundary* is a
    length one can resume from: every required component is covered there.

    The caller owns the pools: it brings page ids with `insert` and gets them back from `insert` and `evict`. One thread at a
    time may call. Every method that raises leaves the tree unchanged.

    Args:
        components: the kinds of state; at least one required `Path`.
        page_size: tokens a page; a multiple of every component's tokens_per_slot.
        policy: an eviction policy by name (`lru`, `lfu`, `fifo`, `mru`, `filo`, `slru`, `priority`, `cost`, `density`, one of
            an installed package's entry points `unified_tree.policies`, or `module:factory`), or a factory, which is called
            once, with the tree as a policy sees it.
        page_counts: device pages by component, to check ids against; a component left out is unbounded.
        host_page_counts: host pages by component, likewise.
        budget: the device's memory as one budget that all pools share, in place of `page_counts`; for every component with
            device pages of its own. `host_budget` likewise, for every component.
        settings: every bound, with its default.
        time_s: the clock by which evictions are remembered and ages are told, in seconds; one that never goes back. The
            default is the monotonic clock to some milliseconds, which costs least; `time.monotonic` is exact.
        tenants: groups of namespaces, and their shares of every pool on each tier.

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
        budget: BlockBudget | None = None,
        host_budget: BlockBudget | None = None,
        settings: TreeSettings | None = None,
        time_s: Callable[[], float] = coarse_monotonic_s,
        tenants: Tenants | None = None,
    ) -> None:
        components = validate_components(components, page_size)
        page_counts = validate_device_pools({} if page_counts is None else page_counts, budget, components)
        host_page_counts = validate_host_pools({} if host_page_counts is None else host_page_counts, host_budget, components)
        factory = policy_factory(policy)
        self._policy_name = policy if isinstance(policy, str) else None

        def make_policy(view: TreeView) -> EvictionPolicy | Standard:
            return made_policy(factory, policy, view)

        counts, budgets = (page_counts, host_page_counts), (budget, host_budget)
        if tenants is not None and not isinstance(tenants, Tenants):
            raise ConfigurationError(f"tenants must be a Tenants, not {repr_of(tenants)}")
        if settings is not None and not isinstance(settings, TreeSettings):
            raise ConfigurationError(f"settings must be a TreeSettings, not {repr_of(settings)}")
        if not callable(time_s):
            raise ConfigurationError(f"time_s must be a function, not {repr_of(time_s)}")
        bounds = settings or TreeSettings()
        self._state = TreeState(components, page_size, counts, budgets, make_policy, bounds, time_s, tenants)
        self._locks = Locks(self._state)
        self.transfers = Transfers(self._state, self._locks)
        weakref.finalize(self, self._state.release).atexit = False

    @property
    def components(self) -> tuple[Component, ...]:
        """The kinds of state, in the order given."""
        return self._state.components

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self._state.page_size

    @property
    def policy_name(self) -> str:
        """The eviction policy: its name, or its class where it was given as a factory."""
        return self._policy_name or type(self._state.pools(Tier.DEVICE)[0].policy).__name__

    @property
    def node_count(self) -> int:
        """Nodes in the tree, roots not counted."""
        return len(self._state.nodes)

    @property
    def state(self) -> TreeState:
        """The tree's data, for tools such as invariants, dumps and debuggers."""
        return self._state

    @property
    def locks(self) -> Locks:
        """The open receipts, for the same tools."""
        return self._locks

    def match_prefix(self, key: Key, *, limit: int | None = None, touch: bool = True) -> Match:
        """The longest boundaries along `key`, at most `limit` tokens; never changes the structure.

        Args:
            limit: match at most this many elements of the key; a scheduler passes its length less one.
            touch: refresh the recency of what the match used.

        Cost: one look-up and one memory comparison a node on the path, and the nodes of the windows at the boundary.
        """
        checked_key(key)
        return matching.match(self._state, key, checked_limit(key, limit), touch=flag(touch, "touch", UnifiedTreeError))

    def touch(self, boundary: Boundary) -> None:
        """Refresh the recency of what a boundary needs on device, as a match that ends there does, without looking at tokens.

        Raises StaleBoundaryError if its node is gone. Cost: O(nodes of its windows).
        """
        node, length = self._locks.find(checked_boundary(boundary))
        if node is not None:
            matching.touch(self._state, node, length)

    def pages(self, boundary: Boundary, component: str, tier: Tier = Tier.DEVICE) -> NDArray[np.int64]:
        """The page ids a component has for a boundary on one tier: all of [0, length) for `Path`, the
        last ones for a window (as far as the tree has them without a gap), the one state for `Point`.

        Returns a read-only int64 array, in the key's order. Raises StaleBoundaryError if the boundary is gone.
        Cost: O(nodes on the path) or of the window, and one copy of the ids.
        """
        checked_resident(tier)
        boundary = checked_boundary(boundary)
        i = self._state.layout.index_of(component)
        return np.frombuffer(b"".join(self._locks.pages(boundary, i, tier)), np.int64)

    def lock(self, boundary: Boundary, tier: Tier = Tier.DEVICE, components: Collection[str] | None = None) -> Receipt:
        """Lock what a boundary needs on one tier until the receipt is released. Locked pages are not freed, moved or
        overwritten.

        With Tier.HOST the boundary must be covered over device and host together. The host values along it are locked; values
        on device alone are not. While a path is locked up to the boundary, the boundary stays valid, under the given name and
        as `Receipt.boundary`, whatever is split or evicted around it.

        Args:
            components: lock only these, and the required paths; then only the paths' coverage is checked.

        Raises StaleBoundaryError if the boundary is not covered any more.
        Cost: O(nodes not locked yet); a path that is locked already costs its first node. May split the boundary's node.
        """
        checked_resident(tier)
        return self._locks.acquire(boundary, tier, components)

    def unlock(self, receipt: Receipt) -> None:
        """Release a receipt. Raises ReceiptError if it was released before or belongs to another tree."""
        if not isinstance(receipt, Receipt):
            raise ReceiptError(f"a Receipt is needed, not {repr_of(receipt)}")
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
        repeatable: bool = False,
        keep_spare: bool = False,
        ends_spare: bool = False,
    ) -> InsertResult:
        """Put the pages of a key's tail, and states along it, into the tree where the tree lacks them.

        Only the key's whole pages count. Values that fill a tombstone are kept, and so are values that bring a host-only node
        back to the device. A window is kept only as far back as it can be resumed from, and not at all if the caller would lose
        a sharer's state by it (see `InsertResult.canonical`).

        Args:
            pages: per component that has pages of its own, the page ids of the key's last pages, int64; as many as the
                caller has. Required paths must reach back to what the tree has on device.
            states: per `Point` component the state pages by the length at which they were saved.
            after: a boundary on this key, from the previous match or insert: a hint that saves the walk from the root. A wrong
                hint costs time only, unless the key is a `Key.tail`, which has nothing to compare with: its cost does not
                depend on what lies before, and the caller vouches for the boundary, which it keeps locked.
            without: sharers of the given pages whose state was not written there.
            priority: of the request, for the policy of that name; higher stays longer.
            repeatable: keep of windows one page more. A repeat of the key computes its last token, so it resumes a page
                earlier.
            keep_spare: keep all other window pages that are given, too, as spare ones. A key that branches off among them
                resumes there, and keeps its window from then on. Spare pages go before all that is kept for a boundary, and
                are copied nowhere.
            ends_spare: the windows at the key's end are spare as well: a run that goes on there will keep one further on.

        Raises InsertError or PageError, with nothing changed, for pages or states that do not fit.
        Cost: as a match, and O(new pages).
        """
        if after is None or type(key) is not Key:
            checked_key(key)
        if after is not None:
            after = checked_boundary(after)
        states = {} if states is None else states
        for name, given in (("pages", pages), ("states", states)):
            if not isinstance(given, Mapping):
                raise InsertError(f"{name} must be a mapping by component, not {repr_of(given)}")
        return insert(
            self._state,
            key,
            pages,
            states,
            after,
            items(without, "without", InsertError),
            request_priority(priority, InsertError),
            repeatable=flag(repeatable, "repeatable", InsertError),
            keeps_spare=flag(keep_spare, "keep_spare", InsertError),
            ends_spare=flag(ends_spare, "ends_spare", InsertError),
        )

    def evict(self, needs: Mapping[str, int], tier: Tier = Tier.DEVICE, *, cut_pages: int | None = None) -> EvictResult:
        """Free at least so many pages of each named pool, or as many as possible; the result lists them.

        Cost: O(log n) a victim, n being the values in its order, and a share of deferred work that the settings bound; and one
        copy of the edge and the page ids of a leaf that is cut.

        Args:
            cut_pages: a leaf of a path with more pages than are needed is cut, and loses as many as that and at least
                `cut_pages` from its end. None evicts whole leaves. Where windows or states are required leaves go whole, for
                one could not resume from what is left.
        """
        checked_resident(tier)
        counts = integers(needs, "needs", ConfigurationError)
        return evicting.evict(self._state, counts, tier, _checked_cut(cut_pages))

    def evict_blocks(self, block_count: int, tier: Tier = Tier.DEVICE, *, cut_pages: int | None = None) -> EvictResult:
        """Free at least so many blocks of a budget that the pools of a tier share, or as many as possible.

        The victim is at each moment the first of all pools' orders, stranded values first, whatever their kind.

        Raises ConfigurationError where the pools share none. Cost: as `evict`, and O(components) a victim.

        Args:
            cut_pages: see `evict`.
        """
        checked_resident(tier)
        blocks = integer(block_count, "block_count", ConfigurationError)
        return evicting.evict_blocks(self._state, blocks, tier, _checked_cut(cut_pages))

    def evict_over_caps(self, tier: Tier = Tier.DEVICE) -> EvictResult:
        """With tenants, free what groups of namespaces hold beyond their caps, as far as it can be evicted; see `Tenants`.

        Cost: O(1) if no group does; else as `evict`, and O(components) a victim.
        """
        checked_resident(tier)
        return evicting.evict_over_caps(self._state, tier)

    def supersede(self, boundary: Boundary, component: str, later_length: int) -> None:
        """Make the window of a boundary the least recently used, because its run has saved one for a later boundary.

        Values stay as they are that a match has used, or that the later boundary needs, too. A prompt that branches off at the
        boundary finds the window until it is evicted.

        Args:
            boundary: of the run's earlier insert; nothing happens if it is gone.
            component: of the windows.
            later_length: the later boundary's, in tokens.
        """
        i = self._state.layout.index_of(component)
        for owner, window in self._state.layout.on_device.windows:
            if owner == i:
                return matching.supersede(self._state, i, window, boundary, later_length)
        raise ConfigurationError(f"{repr_of(component)} has no windows of its own")

    def invalidate(self, namespace: str | None = None) -> None:
        """Invalidate the state of one namespace, or of all of them: the weights changed, say.

        No match finds it from now on, and its boundaries are stale; its locks stay until they are released. Its pages stay in
        the tree until `evict`, which frees them first, or `reclaim` frees them. Raises ConfigurationError for a namespace that
        is not a string. Cost: O(1).
        """
        if namespace is not None and not isinstance(namespace, str):
            raise ConfigurationError(f"a namespace is named by a string, not by {repr_of(namespace)}")
        self._state.retire(namespace)

    def reclaim(self, node_limit: int) -> EvictResult:
        """Visit up to `node_limit` nodes that `invalidate` retired, and remove those without locks. Their pages are in the
        result; the others are visited again when they are unlocked.

        Cost: O(node_limit).
        """
        return evicting.reclaim(self._state, integer(node_limit, "node_limit", ConfigurationError))

    @property
    def is_reclaimable(self) -> bool:
        """Whether there may be something for `reclaim`. Cost: O(1)."""
        return self._state.retired.is_pending

    def settle(self, limit: int | None = None) -> int:
        """Do deferred work: update the marks of up to `limit` nodes, by default of all.

        A mark says whether a node ends at a boundary, and whether a value is stranded (no boundary needs it). For example, a
        prompt of 1,000 tokens has a window of 100 at its end, and 5,000 continuations of 10 tokens each. When that window is
        evicted, none of these ends at a boundary any more, and all their values are stranded. The eviction marks the nodes that
        it touched and `TreeSettings.settle_limit` more, 16 by default; each later operation marks as many of the rest.

        Marks only affect the order of eviction. Returns how many nodes were updated: all marks are exact if that is less than
        the limit. Cost: O(log n) a node.
        """
        return self._state.resumability.settle(EVERYTHING if limit is None else integer(limit, "limit", ConfigurationError))

    def pool(self, component: str, tier: Tier = Tier.DEVICE) -> Pool:
        """The Pool of one component's pages on one tier. Raises UnifiedTreeError for an unknown component."""
        checked_resident(tier)
        return self._state.pools(tier)[self._state.layout.index_of(component)]

    def key_of(self, boundary: Boundary, begin: int = 0) -> Key:
        """The tokens up to a boundary, and their namespace; of length zero the empty key.

        Args:
            begin: the tokens from there on, as `Key.tail`; at most the boundary's length.

        Raises StaleBoundaryError if its node is gone, and InvalidKeyError for a tail that begins elsewhere. Cost: one copy of
        the tokens from `begin` on.
        """
        node, length = self._locks.find(checked_boundary(boundary))
        if integer(begin, "begin", InvalidKeyError) > length:
            raise InvalidKeyError(f"a tail from element {begin} on was asked of {boundary}")
        return matching.key_of(node, length, begin)

    def misses(
        self,
        key: Key,
        match: Match,
        resumed: int | None = None,
        *,
        unloaded: tuple[MissCause, str | None] = (MissCause.LOAD_REFUSED, None),
    ) -> list[Miss]:
        """Why the tokens of a prompt have to be computed: for each the one cause, ascending and without gaps.

        Args:
            match: of the whole key, made just before with a limit of its length less one.
            resumed: how many tokens need not be computed; by default what the match found on device.
            unloaded: why what lies on host was not loaded.

        Empty if nothing is remembered (`TreeSettings.ghost_bytes` of 0). Changes nothing. Cost: O(1) where little is known
        behind the hit; else as a match.
        """
        checked_key(key)
        if not isinstance(match, Match):
            raise UnifiedTreeError(f"a Match is needed, not {repr_of(match)}")
        known = match.device.length if resumed is None else integer(resumed, "resumed", UnifiedTreeError)
        if self._state.ghosts is None or not key.length:
            return []
        return misses(self._state, key, match, known, unloaded, None)

    def explain(self, key: Key) -> Explanation:
        """Which component lost how much of this key, on which tier. Changes nothing. Cost: a few matches."""
        checked_key(key)
        return explain(self._state, key)

    def check(self) -> list[Violation]:
        """Every broken invariant; empty if the tree is sound. Cost: O(tree)."""
        return list(violations(self._state, self._locks))

    def dump(self, *, tokens: bool = False) -> str:
        """The tree as text: a line `namespace` for each root, with `bigrams` if it has keys of EAGLE, and one for each node.

        A node has its id behind `#`, its range of tokens, and its values as `name:pages`, those on host with `h:` before.
        `resumable` stands where a request can resume at its end over device and host, a `*` for each lock, a `!` for a value
        that is stranded, and a `~` for one that is spare (see `insert`).

        Args:
            tokens: also list the `tokens` of each node (of a bigram the first) and the ids of each value's `pages`.

        Cost: O(tree).
        """
        return dump(self._state, tokens=flag(tokens, "tokens", UnifiedTreeError))

    def owner_of_page(self, component: str, page: int, tier: Tier = Tier.DEVICE) -> tuple[Boundary, Key] | None:
        """The owner of a page: a boundary that ends with it, and the key up to there; None if the tree does not own it.

        Invalidated state that was not reclaimed yet still owns its pages. For debugging. Cost: O(tree).

        >>> import numpy as np
        >>> from unified_tree import Component, Key, Path, UnifiedTree
        >>> tree = UnifiedTree([Component(name="full", coverage=Path())], page_size=2)
        >>> _ = tree.insert(Key([1, 2, 3, 4], "tenant"), {"full": np.array([7, 8])})
        >>> tree.owner_of_page("full", 7)
        (Boundary(node=1, length=2), Key(2 tokens, namespace='tenant'))
        """
        checked_resident(tier)
        return owner_of_page(self._state, self._state.layout.index_of(component), integer(page, "page", PageError), tier)


def _checked_cut(cut_pages: int | None) -> int | None:
    return None if cut_pages is None else integer(cut_pages, "cut_pages", ConfigurationError, minimum=1)
