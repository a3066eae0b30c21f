"""The hybrid cache controller: backs boundaries (lengths one can resume from) up to host and loads them back.

The tree decides what to copy (effects), the pools' allocators where to, and the engine moves the bytes. Completions are applied
in `poll`, on the caller's thread: between two polls no transfer changes the tree.
"""

from __future__ import annotations

from abc import abstractmethod
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from unified_tree.controllers.host.backup_queue import BackupQueue
from unified_tree.controllers.host.host_tier import HostTier, WritePolicy
from unified_tree.controllers.host.open_transfers import Load, OpenTransfer, OpenTransfers
from unified_tree.controllers.pages.shared_tier_pages import SharedTierPages, tier_pages
from unified_tree.controllers.pages.tier_pages import TierPages
from unified_tree.nodes.effect import Effect, EffectKind
from unified_tree.terms.errors import StaleBoundaryError, TransferError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.tier_pages import DevicePages
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree

LOAD: Final = EffectKind.LOAD
WRITE_THROUGH: Final = WritePolicy.WRITE_THROUGH
SELECTIVE: Final = WritePolicy.WRITE_THROUGH_SELECTIVE
"""Members of an Enum are looked up by a Python function, so they are looked up once."""


class BackupListener:
    """Is told of each boundary that was copied to host."""

    @abstractmethod
    def backed_up(self, boundary: Boundary) -> None:
        """A boundary is on host, as of this step."""


class HybridCacheController:
    """Moves state between device and host for one tree.

    Args:
        tree: whose boundaries are moved.
        device: the device pools' free lists.
        tier: settings, and the engine, which is closed with the controller.
        counters: counts events.
        ranks: agreement with the other ranks, before an ended copy takes effect.

    Attributes:
        host: the host pools' free lists.
        tier: settings.
        storage: notified of every boundary that was copied to host; None without a store.
    """

    def __init__(
        self, tree: UnifiedTree, device: DevicePages, tier: HostTier, counters: CacheCounters, ranks: RankAgreement
    ) -> None:
        self.host = tier_pages(tree, Tier.HOST, tier.page_counts, counters)
        if tier.tables is not None:
            assert isinstance(self.host, SharedTierPages), "tables are those of a budget"
            self.host.use(tier.tables)
        self.host.other_tier, device.other_tier = device, self.host
        self.storage: BackupListener | None = None
        self._tree = tree
        self._tree_transfers = tree.transfers
        self._effects = tree.transfers.effects
        self._resumability = tree.state.resumability
        self._retired = tree.state.retired
        self._is_path = tree.state.layout.is_path
        self._device = device
        self.tier = tier
        self._write_policy = tier.write_policy
        self._counters = counters
        self._backed_up = counters.transfers[EffectKind.BACKUP]
        self._loaded = counters.transfers[LOAD]
        self._ranks = ranks
        self._backups = BackupQueue(tree, device, self.host, tier, counters)
        self._transfers = OpenTransfers(tier.engine, ranks, counters, self._finished, self._interrupted)
        self._page_bytes = {c.name: c.page_bytes for c in tree.components}
        self._flops_per_token = sum(component.flops_per_token for component in tree.components)
        self._closed = False
        for pool in tree.state.device_pools:
            pool.copied_first = tier.write_policy.is_late
        for pool in tree.state.host_pools:
            pool.copied_first = tier.exclusive

    def is_worth_loading(self, boundary: Boundary, tokens: int) -> bool:
        """Whether loading `boundary` back is faster than computing the `tokens` it would save. Cost: O(nodes on the path)."""
        if self._closed:
            return False
        flops = self._flops_per_token * tokens
        return self.tier.load_cost.prefers_load(tokens=tokens, flops=flops, size_bytes=self._load_bytes(boundary))

    def _load_bytes(self, boundary: Boundary) -> int:
        sizes = dict(self._page_bytes)
        for component in self._tree.components:
            if component.shares is not None:
                sizes[component.shares] += component.page_bytes
        return sum(sizes[name] * pages for name, pages in self._tree_transfers.load_needs(boundary).items())

    def load(
        self, boundary: Boundary, tokens: int, spare: Mapping[str, int], components: Collection[str] | None = None
    ) -> Load:
        """Start to load back what a boundary lacks on device. Pages that other loads are copying are awaited, not copied again.

        Args:
            spare: device pages by component that must remain free.
            components: load only these, which has to be all that a boundary needs; None for all.

        Raises OutOfPagesError or StaleBoundaryError with nothing changed. Raises TransferError if it depends on another load
        that was cancelled but has not ended; pages may have been evicted then. Cost: as a match, and O(pages).
        """

        def supply(needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
            self._device.reserve({**needs, **{name: needs.get(name, 0) + count for name, count in spare.items()}})
            return self._device.allocate_all(needs)

        effect: Effect | None = None
        load: Load | None = None
        try:
            effect = self._tree_transfers.load(boundary, supply, components)
            waited = self._transfers.below(effect)
            if any(opened.is_cancelled for opened in waited):
                raise TransferError(f"{boundary} cannot be loaded before a load under it, which was cancelled, has ended")
            waited.append(self._transfers.begin(effect))
            receipt = self._tree_transfers.lock_present(boundary)
            load = Load([opened.ticket for opened in waited], receipt, tokens, self._size_bytes(effect))
            for opened in waited:
                opened.add_load(load)
            self._counters.loads += 1
            return load
        except BaseException:
            if load is not None:
                self.release(load)
            if effect is not None and effect in self._effects.open:
                begun: object = effect.transfer
                if isinstance(begun, OpenTransfer):
                    self._transfers.cancel(begun)
                else:
                    self._device.free_all(self._effects.abort(effect))
            raise

    def _size_bytes(self, effect: Effect) -> int:
        size_bytes = 0
        for name, count in effect.page_counts.items():
            size_bytes += self._page_bytes[name] * count
        return size_bytes

    def wait_layer(self, load: Load, layer_id: int) -> None:
        """Wait before running a model layer: return once a load has landed for all layers up to this one.

        Raises TransferError if the load failed. See TransferEngine.wait_layer.
        """
        if load.error is not None:
            raise TransferError(load.error)
        if not load.has_ended:
            self._transfers.submit()
            start = perf_counter_ns()
            for ticket in load.tickets:
                opened = self._transfers.get(ticket)
                if opened is not None:
                    self._transfers.wait_layer(opened, layer_id)
            self._counters.load_wait_ns += perf_counter_ns() - start

    def wait(self, load: Load) -> None:
        """Return once a load has succeeded or failed, and apply it. Earlier loads end before it."""
        self._transfers.submit()
        start = perf_counter_ns()
        self._transfers.wait(max(load.open, default=0))
        self._counters.load_wait_ns += perf_counter_ns() - start
        while not load.has_ended:
            assert not self._ranks.is_single_rank, "the engine said that it had ended"
            self._transfers.poll()

    def release(self, load: Load) -> None:
        """Stop waiting for a load; transfers that no other lease waits for are cancelled."""
        for ticket in load.tickets:
            opened = self._transfers.get(ticket)
            loads = None if opened is None else opened.loads
            if opened is not None and loads is not None and load in loads:
                loads.remove(load)
                if not loads:
                    self._transfers.cancel(opened)
        load.release()

    def submit(self) -> None:
        """Submit the loads that were begun to the engine. Applies nothing, and starts no backup."""
        self._transfers.submit()

    def finish_one(self) -> bool:
        """Wait for the oldest copy that no request waits for, and apply it; False if there is none.

        The device pages that it kept can be evicted, or are free, from then on. All ranks have to call it at the same point.
        """
        return self._transfers.finish_oldest_unawaited()

    def poll(self) -> None:
        """Apply ended transfers, start due ones, and submit them to the engine. Never blocks.

        Cost: O(transfers ended and started); far below a microsecond if there are none.
        """
        self._transfers.poll()
        if not self._closed and (self._backups.may_begin or self._transfers.has_queued):
            self._start_backups()
        if self._retired.is_pending:
            self._device.free_evicted(self._tree.reclaim(self.tier.reclaim_limit))

    def _start_backups(self) -> None:
        self._backups.feeds_store = self.storage is not None
        effect: Effect | None = None
        try:
            while (effect := self._backups.begin()) is not None:
                self._transfers.begin(effect)
        except BaseException:
            if effect is not None and effect.transfer is None and effect in self._effects.open:
                self.host.free_all(self._effects.abort(effect))
            self._backups.count_anew()
            raise
        self._transfers.submit()

    def _finished(self, opened: OpenTransfer, error: str | None) -> None:
        """Finish a transfer: publish its pages, or free its targets."""
        effect = opened.effect
        is_load = effect.kind is LOAD
        if error is None:
            size_bytes = self._size_bytes(effect)
            moved = self._loaded if is_load else self._backed_up
            moved.add(effect.page_counts, size_bytes, (perf_counter_ns() - opened.begun_ns) / 1e9)
            observers = self._counters.observers
            if observers.all:
                observers.tell("moved", effect.kind, effect.page_counts, size_bytes)
            unused = self._effects.acknowledge(effect)
            if unused:
                self._free(unused, is_load)
            if is_load:
                self._device.landed(effect.boundary)
            else:
                self.host.landed(effect.boundary)
                if self.storage is not None:
                    self.storage.backed_up(effect.boundary)
        else:
            self._free(self._effects.abort(effect), is_load)
            self._counters.count_drop(f"{effect.kind.name.lower()} {'cancelled' if 'cancel' in error else 'failed'}")
        self._backups.ended(effect)
        for load in opened.loads or ():
            load.transfer_ended(opened.ticket, error)
            try:
                load.lock(self._tree_transfers.lock_present(load.boundary))
            except StaleBoundaryError as stale:
                load.fail(str(stale))
                load.release()

    def _interrupted(self, opened: OpenTransfer, error: str | None) -> None:
        """What `_finished` was interrupted in: free the targets that the tree did not take, and what waits has ended."""
        effect = opened.effect
        is_load = effect.kind is LOAD
        if effect in self._effects.open:
            self._free(self._effects.abort(effect), is_load)
        else:
            pages = self._device if is_load else self.host
            if not effect.receipt.is_released:
                effect.receipt.release()
            for name, ids in effect.unused.items():
                if ids.size and isinstance(pages, TierPages) and pages.has_allocated(name, int(ids[0])):
                    pages.free(name, ids)
        self._backups.count_anew()
        for load in opened.loads or ():
            load.transfer_ended(opened.ticket, error)
            load.fail("a call was interrupted")

    def _free(self, targets: dict[str, NDArray[np.int64]], is_load: bool) -> None:
        """Free targets of a transfer that the tree did not take."""
        if is_load:
            self._device.free_all(targets)
        else:
            self.host.free_all(targets)

    def committed(self, boundary: Boundary) -> None:
        """Tokens were published on device up to this boundary."""
        at_once = self._write_policy is WRITE_THROUGH or self._backups.are_too_late
        if at_once and self._resumability.is_boundary(boundary):
            self._backups.add(boundary)

    def hit(self, boundary: Boundary) -> None:
        """A prompt resumes from a device boundary."""
        self._backups.resumed(boundary)
        selective = self._write_policy is SELECTIVE
        if selective and boundary.length and self._tree_transfers.hits(boundary) >= self.tier.selective_hits:
            self._backups.add(boundary)

    @property
    def writes_late(self) -> bool:
        """Whether boundaries are copied after the requests that used them, so that `left` must be called."""
        return self._backups.is_late

    def left(self, boundary: Boundary, branches: tuple[Boundary, ...] = (), before: Boundary | None = None) -> None:
        """The request that used a boundary last has ended; see IdleBoundaries.add."""
        if boundary.length and not self._closed:
            self._backups.left(boundary, branches, before)

    def is_shared(self, boundary: Boundary) -> bool:
        """Whether several prompts have resumed from a window or a state on device. Cost: O(components)."""
        node = self._tree.state.nodes.get(boundary.node)
        if node is None or node.end != boundary.length:
            return False
        values = [value for value in node.device if value is not None and not self._is_path[value.component]]
        return max([value.hits for value in values], default=0) > 1

    @property
    def is_busy(self) -> bool:
        """Whether any transfer is open."""
        return bool(self._transfers)

    def drain(self) -> None:
        """Finish and apply everything that was started or queued. Failed transfers are not retried here."""
        if self._closed:
            if self._transfers:  # its `close` was interrupted
                self._transfers.close()
            return
        self.poll()
        while self._transfers:
            self._transfers.drain()
            self._start_backups()

    def flush(self) -> None:
        """Back up every boundary that is on device and not on host, as far as the host has room. Blocks until done.

        The queue is filled as often as its limit demands, and emptied in between.
        """
        for boundary in [] if self._closed else self._tree_transfers.boundaries():
            if self._backups.is_full:
                self.drain()
            self._backups.add(boundary)
        self.drain()

    def close(self) -> None:
        """Stop the engine and free the pages of open transfers, without waiting for other ranks. Idempotent."""
        if not self._closed:
            self._closed = True
            self._transfers.close()
