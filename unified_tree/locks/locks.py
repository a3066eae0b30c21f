"""Locks: a locked page is never freed, moved or overwritten.

A path, which is prefix-closed on each tier, is locked by counting: a node counts one per receipt that ends there and one per
locked child. So taking a lock stops at the first path node that is locked already. Windows and states may have holes and are
locked one by one: the receipt lists the values, each value its receipts, and a split extends both.

A lock ends at a node's end and splits the node if necessary; the lower part keeps the id. The receipt of a boundary inside the
node therefore has a new name for it. Both names stay valid while the receipt locks a path up to the boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unified_tree.inputs.arguments import items
from unified_tree.inputs.printable import repr_of
from unified_tree.lookup.matching import collect_at, deepest_boundary, path_reach
from unified_tree.nodes.node import Lock, Node, Value, window_values
from unified_tree.state.splitting import cut_window, keep_window, split
from unified_tree.terms.errors import ReceiptError, StaleBoundaryError, UnifiedTreeError
from unified_tree.terms.results import Boundary, checked_boundary
from unified_tree.terms.tier import DEVICE, HOST, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.state.tree_state import TreeState


class Locks:
    """The receipts of one tree.

    Attributes:
        open: receipts not released yet, by serial number.
        renamed: for locked boundaries whose node was split, by their old name, the node where they end now and how many
            receipts lock it.
    """

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self.open: dict[int, Receipt] = {}
        self.renamed: dict[Boundary, tuple[Node, int]] = {}
        self._last_serial = 0
        self._told_path = next(iter(state.layout.required_owned_paths), -1)  # a listener hears each lock once, of this path

    def acquire(self, boundary: Any, tier: Tier, components: Any) -> Receipt:
        """See UnifiedTree.lock."""
        return self.lock(checked_boundary(boundary), tier, self.indices(components, tier))

    def move_to(self, receipt: Receipt, boundary: Any, components: Any) -> None:
        """See Receipt.move."""
        self.move(receipt, checked_boundary(boundary), self.indices(components, receipt.tier))

    def indices(self, components: Any, tier: Tier) -> tuple[int, ...] | None:
        """The components whose values are locked for those named, by index; None for all."""
        if components is None:
            return None
        names = items(components, "components", UnifiedTreeError)
        return tuple([self._locked_as(self._state.layout.index_of(name), tier) for name in names])

    def lock(self, boundary: Boundary, tier: Tier, wanted: tuple[int, ...] | None, *, keeps: bool = True) -> Receipt:
        """As `acquire`, with components by index: those that have pages of their own on the tier; required paths need not be
        named.

        Args:
            keeps: the locked values are spare no more. Else they stay so, and spare windows are only cut where the lock begins.
        """
        node, length = self.locate(boundary, tier, wanted)
        if node is not None and length < node.end:
            node = split(self._state, node, length)
        if node is not None and tier is DEVICE and (keeps or wanted):
            self._cut(node, wanted)
        return self.issue(boundary, tier, node, wanted, keeps=keeps and tier is DEVICE)

    def keep(self, node: Node, wanted: tuple[int, ...] | None) -> None:
        """Keep the spare values that a boundary at a node's end needs. Spare windows are cut where that boundary's begin,
        and those before stay spare.
        """
        state = self._state
        for i in state.layout.on_device.points:
            value = node.device[i]
            if value is not None and value.spare and (wanted is None or i in wanted):
                state.set_spare(value, False)
        for i, window in state.layout.on_device.windows:
            if wanted is None or i in wanted:
                keep_window(state, node, i, window.start(node.end) // state.page_size * state.page_size)

    def _cut(self, node: Node, wanted: tuple[int, ...] | None) -> None:
        """Cut spare windows where what a boundary at a node's end needs begins, so that its lock holds nothing before."""
        state = self._state
        for i, window in state.layout.on_device.windows:
            if wanted is None or i in wanted:
                cut_window(state, node, i, window.start(node.end) // state.page_size * state.page_size)

    def _locked_as(self, component: int, tier: Tier) -> int:
        """The component whose values are locked for a component's pages on a tier."""
        return component if tier is HOST else self._state.layout.owner_of[component]

    def lock_present(self, boundary: Boundary) -> Receipt:
        """Lock the part of a boundary that is on device, covered or not; a load back needs the path above its hole."""
        node, length = self.find(boundary)
        if node is not None and length < node.end:
            node = split(self._state, node, length)
        return self.issue(boundary, DEVICE, node, None)

    def issue(
        self, boundary: Boundary, tier: Tier, node: Node | None, wanted: tuple[int, ...] | None, *, keeps: bool = False
    ) -> Receipt:
        """As `lock`, for a boundary that was just located, and ends where `node` does; None for length zero."""
        self._last_serial += 1
        receipt = Receipt(self, self._last_serial, boundary, tier)
        try:
            self.open[receipt.serial] = receipt
            if node is not None:
                self._name(receipt, node)
                self._lock_all(receipt, node, tier, wanted, node.end)
                if keeps:
                    for value in receipt.values:  # locked, and so in no eviction order
                        self._state.set_spare(value, False)
            return receipt
        except BaseException:
            self._drop(receipt)
            raise

    def _drop(self, receipt: Receipt) -> None:
        """A lock or a release was interrupted, or the tree was deleted: the receipt is released."""
        receipt.paths, receipt.values, receipt.old_name = [], [], None
        self.open.pop(receipt.serial, None)
        receipt.close()
        if not self._state.is_released:
            self.mend()

    def issue_for_effect(self, boundary: Boundary, node: Node | None, wanted: tuple[int, ...] | None) -> Receipt:
        """As `issue`, for what both tiers have: on device of all components, on host of those wanted. `node` may go on behind
        the boundary; then all of it is locked, and the window that the boundary needs above it."""
        self._last_serial += 1
        receipt = Receipt(self, self._last_serial, boundary, DEVICE)
        try:
            self.open[receipt.serial] = receipt
            if node is not None:
                self._name(receipt, node)
                self._lock_all(receipt, node, HOST, wanted, boundary.length)
                self._lock_all(receipt, node, DEVICE, None, boundary.length)
            return receipt
        except BaseException:
            self._drop(receipt)
            raise

    def _name(self, receipt: Receipt, node: Node) -> None:
        """Note under which name the receipt's boundary is known now, if it ends in another node than it says."""
        boundary = receipt.boundary
        if node.id != boundary.node:
            receipt.boundary = Boundary(node.id, boundary.length)
            receipt.old_name = boundary
            self.renamed[boundary] = (node, self.renamed.get(boundary, (node, 0))[1] + 1)

    def move(self, receipt: Receipt, boundary: Boundary, wanted: tuple[int, ...] | None) -> None:
        """As `move_to`, with components by index, as for `lock`."""
        node, length = self.locate(boundary, DEVICE, wanted)
        self._move(receipt, boundary, node, length, wanted)

    def move_to_present(self, receipt: Receipt, boundary: Boundary) -> None:
        """See Receipt.move_to_present."""
        node, length = self.find(boundary)
        self._move(receipt, boundary, node, length, None)

    def _move(
        self, receipt: Receipt, boundary: Boundary, node: Node | None, length: int, wanted: tuple[int, ...] | None
    ) -> None:
        state = self._state
        if node is not None and length < node.end:
            node = split(state, node, length)
        if node is not None and wanted:
            self._cut(node, wanted)
        before, held, name, old_name = receipt.paths, receipt.values, receipt.boundary, receipt.old_name
        try:
            self._forget_name(receipt)
            receipt.boundary = boundary
            receipt.old_name = None
            receipt.paths = []
            receipt.values = []
            if node is not None:
                self._name(receipt, node)
                self._lock_all(receipt, node, receipt.tier, wanted, node.end)
            for value in before:
                self._unlock_path(value)
            if held:
                kept = set(receipt.values)
                self._unlock_values(receipt, [value for value in held if value not in kept] if kept else held)
            if state.layout.is_gated:
                state.resumability.settle_share()
        except BaseException:
            receipt.paths, receipt.values, receipt.boundary, receipt.old_name = before, held, name, old_name
            self.mend()
            raise

    def find(self, boundary: Boundary) -> tuple[Node | None, int]:
        """The node a boundary lies in now, None for length zero. Raises StaleBoundaryError if its node is gone."""
        state = self._state
        if boundary.length == 0:
            return None, 0
        node = state.nodes.get(boundary.node)
        if self.renamed:
            renamed = self.renamed.get(boundary)
            if renamed is not None and renamed[0].parent is not None:
                node = renamed[0]
        gone = node is None or state.nodes.is_retired(node)
        if node is None or gone or not 0 < boundary.length <= node.end or boundary.length % state.page_size:
            raise StaleBoundaryError(f"{boundary} is stale: its node is gone; match again")
        parent = node.parent
        while parent is not None and boundary.length <= parent.end:
            node, parent = parent, parent.parent
        return node, boundary.length

    def locate(self, boundary: Boundary, tier: Tier, wanted: tuple[int, ...] | None) -> tuple[Node | None, int]:
        """As `find`; raises StaleBoundaryError as well if the boundary is not covered on the tier any more."""
        state = self._state
        node, length = self.find(boundary)
        if node is None:
            return None, 0
        device_only = tier is DEVICE
        if wanted is None and state.layout.is_gated and not device_only and length == node.end:
            if not state.resumability.is_covered(node):
                raise self._stale(boundary, tier)
            return node, length
        covered = True
        if state.host_value_count:  # else every node's paths are on device
            covered = path_reach(state, node, length, device_only=device_only)[1] == length
        if covered and wanted is None and state.layout.is_gated:
            covered = deepest_boundary(state, node, length, device_only=device_only).length == length
        if not covered:
            raise self._stale(boundary, tier)
        return node, length

    def pages(
        self, boundary: Boundary, i: int, tier: Tier, pages_of: Callable[[Node, int], bytes] | None = None
    ) -> list[bytes]:
        """The page ids of a component, by index, up to a boundary, in the key's order; see UnifiedTree.pages.

        Args:
            pages_of: which pages a component has at a node; None for those of its value on the tier.
        """
        state = self._state
        node, length = self.find(boundary)
        if node is None:
            return []
        begin = 0
        if not state.layout.is_path[i]:
            begin = state.components[i].coverage.first_page(length, state.page_size) * state.page_size
        return collect_at(state, node, length, i, tier, pages_of, begin=begin)

    def pages_to_pin(self, boundary: Boundary, wanted: tuple[int, ...] | None) -> dict[str, int]:
        """How many device pages of each component a lock would pin that nothing pins yet; changes nothing.

        Args:
            boundary, wanted: as for `lock`.

        Raises StaleBoundaryError if its node is gone. Cost: as the lock.
        """
        state = self._state
        node, length = self.find(boundary)
        counts: dict[str, int] = {}
        if node is None:
            return counts
        behind = (node.end - length) // state.page_size  # pages of the node that a split would leave below
        for i in state.layout.on_device.paths:
            if not (wanted is None or state.components[i].required or i in wanted):
                continue
            count, at = 0, node
            value = at.device[i]
            while value is None and at.parent is not None:
                at = at.parent
                value = at.device[i]
            while value is not None and not value.locks and at.parent is not None:
                count += value.page_count - behind if at is node else value.page_count
                at = at.parent
                value = at.device[i]
            counts[state.components[i].name] = count
        for i in state.layout.on_device.points:
            value = node.device[i] if behind == 0 else None
            if value is not None and not value.locks and (wanted is None or i in wanted):
                counts[state.components[i].name] = value.page_count
        for i, window in state.layout.on_device.windows:
            if wanted is None or i in wanted:
                count, start = 0, window.start(length)
                first = start // state.page_size * state.page_size
                for value in window_values(node, start, i, DEVICE):
                    if not value.locks:
                        pages = max(0, value.page_count - behind) if value.node is node else value.page_count
                        if value.spare:  # what lies before the window is cut off
                            pages = min(pages, (min(value.node.end, length) - first) // state.page_size)
                        count += pages
                counts[state.components[i].name] = count
        return counts

    def _stale(self, boundary: Boundary, tier: Tier) -> StaleBoundaryError:
        return StaleBoundaryError(f"{boundary} is stale: what it needs on {tier.name.lower()} was evicted; match again")

    def _lock_all(self, receipt: Receipt, node: Node, tier: Tier, wanted: tuple[int, ...] | None, length: int) -> None:
        state = self._state
        owned = state.layout.on_host if tier is HOST else state.layout.on_device
        for i in owned.paths:  # a node stays only with its required paths
            if not (wanted is None or state.components[i].required or i in wanted):
                continue
            at: Node | None = node
            while at is not None:
                value = (at.host if tier is HOST else at.device)[i]
                if value is not None:
                    receipt.paths.append(value)
                    self._lock_path(value)
                    break
                at = at.parent
        for i in owned.points:
            value = (node.host if tier is HOST else node.device)[i]
            if value is not None and (wanted is None or i in wanted):
                self._lock_value(receipt, value)
        for i, window in owned.windows:
            if wanted is None or i in wanted:
                for value in window_values(node, window.start(length), i, tier):
                    self._lock_value(receipt, value)

    def _lock_path(self, deepest: Value) -> None:
        state, component, tier = self._state, deepest.component, deepest.tier
        pool = (state.host_pools if tier is HOST else state.device_pools)[component]
        node = deepest.node
        value: Value | None = deepest
        while value is not None:
            value.locks += 1
            if value.locks > 1:
                break
            pool.lock(value)
            assert node.parent is not None
            node = node.parent
            value = (node.host if tier is HOST else node.device)[component]
        if state.lock_listener is not None and tier is DEVICE and component == self._told_path:
            state.lock_listener.locked(deepest.node)

    def _unlock_path(self, deepest: Value) -> None:
        state, component, tier = self._state, deepest.component, deepest.tier
        pool = (state.host_pools if tier is HOST else state.device_pools)[component]
        node = deepest.node
        held_back = bool(state.blocked) or state.nodes.is_retired(node)
        value: Value | None = deepest
        while value is not None:
            value.locks -= 1
            assert value.locks >= 0
            if value.locks:
                break
            pool.unlock(value)
            if held_back:
                self._unlocked(node)
            assert node.parent is not None
            node = node.parent
            value = (node.host if tier is HOST else node.device)[component]
        if state.lock_listener is not None and tier is DEVICE and component == self._told_path:
            state.lock_listener.unlocked(deepest.node)

    def _lock_value(self, receipt: Receipt, value: Value) -> None:
        receipt.values.append(value)
        if value.locked_by is None:
            value.locked_by = {}
            state = self._state
            (state.host_pools if value.tier is HOST else state.device_pools)[value.component].lock(value)
        elif receipt.serial in value.locked_by:
            return  # held by the receipt that moves
        value.locked_by[receipt.serial] = receipt
        value.locks += 1

    def _unlock_values(self, receipt: Receipt, values: list[Value]) -> None:
        state = self._state
        is_blocking = bool(state.blocked)
        for value in values:
            assert value.locked_by is not None
            del value.locked_by[receipt.serial]
            value.locks -= 1
            if not value.locks:
                value.locked_by = None
                (state.host_pools if value.tier is HOST else state.device_pools)[value.component].unlock(value)
                if is_blocking or state.nodes.is_retired(value.node):
                    self._unlocked(value.node)

    def _unlocked(self, node: Node) -> None:
        """A value of a node is evictable again. Path values that had to stay for its sake return to their order."""
        state = self._state
        if state.nodes.is_retired(node):
            state.retired.unlocked(node)
        if node not in state.blocked:
            return
        state.blocked.discard(node)
        layout = state.layout
        for owned, values in ((layout.on_device, node.device), (layout.on_host, node.host)):
            for i in owned.paths:
                value = values[i]
                if value is not None and not (value.is_placed or value.locks or value.children):
                    state.pools(value.tier)[i].add_evictable(value)

    def release(self, receipt: Receipt, component: Any) -> None:
        """See Receipt.release and UnifiedTree.unlock."""
        state = self._state
        if state.is_released:  # the tree was deleted; what kept the receipt, such as a prefetch, outlived it
            self._drop(receipt)
            return
        if component is not None:
            i = state.layout.index.get(component) if isinstance(component, str) else None
            if i is None or all(value.component != i for value in (*receipt.paths, *receipt.values)):
                raise ReceiptError(f"{receipt} locks no component {repr_of(component)}")
            if state.layout.is_path[i] and receipt.values:
                raise ReceiptError(
                    f"{receipt}: a path goes last; release the windows and states that stand on {component!r} first"
                )
            self._release_one(receipt, i)
            if receipt.paths or receipt.values:
                return
        try:
            for value in receipt.paths:
                self._unlock_path(value)
            self._unlock_values(receipt, receipt.values)
            receipt.paths.clear()
            receipt.values.clear()
            del self.open[receipt.serial]
            self._forget_name(receipt)
            receipt.close()
            if state.layout.is_gated:
                state.resumability.settle_share()
        except BaseException:
            self._drop(receipt)
            raise

    def _forget_name(self, receipt: Receipt) -> None:
        if receipt.old_name is None:
            return
        node, count = self.renamed.pop(receipt.old_name)
        if count > 1:
            self.renamed[receipt.old_name] = (node, count - 1)

    def leave_out(self, receipt: Receipt, components: tuple[int, ...]) -> None:
        """Release what a receipt locks of some components, by index. The receipt stays open, whatever is left of it, and its
        boundary may be invalidated. Cost: as the locks.
        """
        for component in components:
            self._release_one(receipt, component)
        if self._state.layout.is_gated:
            self._state.resumability.settle_share()

    def _release_one(self, receipt: Receipt, component: int) -> None:
        paths, values = receipt.paths, receipt.values
        kept_paths = [value for value in paths if value.component != component]
        kept_values = [value for value in values if value.component != component]
        try:
            receipt.paths, receipt.values = kept_paths, kept_values
            for value in paths:
                if value.component == component:
                    self._unlock_path(value)
            self._unlock_values(receipt, [value for value in values if value.component == component])
        except BaseException:
            receipt.paths, receipt.values = kept_paths, kept_values
            self.mend()
            raise

    def mend(self) -> None:
        """A call was interrupted: count anew what the open receipts lock, and put what is evictable into its order.

        Cost: O(tree log n).
        """
        state = self._state
        locks: dict[Value, int] = {}
        locked_by: dict[Value, dict[int, Lock]] = {}
        self.renamed = {}
        for receipt in self.open.values():
            for value in receipt.paths:
                locks[value] = locks.get(value, 0) + 1
            for value in receipt.values:
                locked_by.setdefault(value, {})[receipt.serial] = receipt
            node = state.nodes.get(receipt.boundary.node)
            if receipt.old_name is not None and node is not None:
                self.renamed[receipt.old_name] = (node, self.renamed.get(receipt.old_name, (node, 0))[1] + 1)
        for pool in (*state.device_pools, *state.host_pools):
            pool.clear_orders()
            pool.protected_pages = 0
        for node in sorted(state.nodes, key=_end, reverse=True):
            for tier in (DEVICE, HOST):
                for held in node.values(tier):
                    if held is not None and (tier is HOST or state.layout.owner_of[held.component] == held.component):
                        self._mend_value(held, locks, locked_by.get(held))

    def _mend_value(self, value: Value, locks: dict[Value, int], locked_by: dict[int, Lock] | None) -> None:
        """Count the locks of a value, those of its children being counted, and put it into its order or not."""
        state, node = self._state, value.node
        pool = state.pools(value.tier)[value.component]
        value.leave_order()
        value.locked_by = locked_by
        value.locks = locks.get(value, 0) if locked_by is None else len(locked_by)
        if value.locks:
            pool.protected_pages += value.page_count
            parent = node.parent
            is_below = parent is not None and state.layout.is_path[value.component]
            above = parent.values(value.tier)[value.component] if parent is not None and is_below else None
            if above is not None:
                locks[above] = locks.get(above, 0) + 1
        elif not value.children:
            pool.add_evictable(value)  # one that must stay for another's sake leaves again when its turn comes


class Receipt(Lock):
    """A lock on what a boundary needs on one tier, until it is released, once. That of an open effect, which no caller
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

    def state_page(self, component: int) -> bytes:
        """The page of the state of a component, by index, that it locks; none if it locks none."""
        return b"".join([value.pages for value in self.values if value.component == component])

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
        if self._locks is None or self.tier is not DEVICE:
            raise ReceiptError(f"{self} cannot move to {boundary}")
        return self._locks

    def close(self) -> None:
        """Nothing is locked any more."""
        self._locks = None

    def release(self, component: Any = None) -> None:  # unchecked: compiled code would refuse in its own words
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


def _end(node: Node) -> int:
    return node.end
