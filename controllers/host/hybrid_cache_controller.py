"""The hybrid cache controller: backs boundaries up to host, loads them back, and applies what the transfer engine reports.

The tree says what to copy (effects), the pools' allocators say where to, the engine moves the bytes. Everything is applied in
`poll`, on the caller's thread: between two polls nothing in the tree changes because of a transfer. A tick's transfers go to
the engine in one call. What stands on another transfer is acknowledged after it, whatever the order an engine tells them in.
An engine is not believed more than it must be: what it does not take, in whatever way it says so, and what it says has ended
without a completion, ends here as failed, and its pages come home.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING

from unified_tree.controllers.host.backup_queue import BackupQueue
from unified_tree.controllers.host.host_tier import HostTier, WritePolicy
from unified_tree.controllers.host.load import Load
from unified_tree.controllers.host.tier_pages import TierPages
from unified_tree.controllers.transfer_engines import Transfer
from unified_tree.effect import Effect, EffectKind
from unified_tree.errors import StaleBoundaryError, TransferError
from unified_tree.node import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.stats import Counters
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier import StorageController
    from unified_tree.controllers.transfer_engines import Completion
    from unified_tree.receipt import Boundary
    from unified_tree.tree import UnifiedTree

WITHOUT_COMPLETION = "the engine said that it had ended, and gave no completion"
UNKNOWN = "cancelled: the controller was closed before it was known how this ended"


class HybridCacheController:
    """Moves state between device and host for one tree.

    Args:
        tree: whose boundaries are moved.
        device: the device pools' free lists.
        tier: settings, and the engine, which is closed with the controller.
        counters: where figures go.
        ranks: what must be heard before an ended copy counts.
    """

    def __init__(self, tree: UnifiedTree, device: TierPages, tier: HostTier, counters: Counters, ranks: RankAgreement) -> None:
        self.tree = tree
        self.device = device
        self.host = TierPages(tree, Tier.HOST, tier.page_counts, counters)
        self.host.other, device.other = device, self.host
        self.tier = tier
        self.backups = BackupQueue(tree, device, self.host, tier, counters)
        self._engine = tier.engine
        self._counters = counters
        self._numbers = count(1)
        self._ranks = ranks
        self._open: dict[int, Effect] = {}
        self._of_kind: dict[int, int] = {}
        self._flying: set[int] = set()
        self._ended: dict[int, str | None] = {}
        self._behind: dict[int, list[tuple[int, str | None]]] = {}
        self._tickets: dict[Effect, int] = {}
        self._loads: dict[int, list[Load]] = {}
        self._cancelled: set[int] = set()
        self._outbox: list[Transfer] = []
        self._page_bytes = {c.name: c.page_bytes for c in tree.components}
        self._closed = False
        self.storage: StorageController | None = None
        for pool in tree.state.device_pools:
            pool.copied_first = tier.write_policy is WritePolicy.WRITE_BACK
        for pool in tree.state.host_pools:
            pool.copied_first = tier.exclusive

    def worth_loading(self, boundary: Boundary, tokens: int) -> bool:
        """Whether loading `boundary` back beats computing the `tokens` it would spare. Cost: O(nodes on the path)."""
        if self._closed:
            return False
        flops = sum(component.flops_per_token for component in self.tree.components) * tokens
        return self.tier.load_cost.prefers_load(tokens=tokens, flops=flops, size_bytes=self._load_bytes(boundary))

    def _load_bytes(self, boundary: Boundary) -> int:
        sizes = dict(self._page_bytes)
        for component in self.tree.components:
            if component.shares is not None:
                sizes[component.shares] += component.page_bytes
        return sum(sizes[name] * pages for name, pages in self.tree.load_needs(boundary).items())

    def load(self, boundary: Boundary, tokens: int, spare: Mapping[str, int]) -> Load:
        """Start to load back what a boundary lacks on device. What other loads bring already is waited for, not repeated.

        Args:
            spare: device pages by component that must be free afterwards.

        Raises OutOfPagesError or StaleBoundaryError with nothing changed, and TransferError where a part is what another
        load was bringing that was cancelled and has not ended; pages may have been evicted then. Cost: as a match, and
        O(pages).
        """

        def supply(needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
            self.device.reserve({**needs, **{name: needs.get(name, 0) + count for name, count in spare.items()}})
            return self.device.allocate_all(needs)

        effect = self.tree.load(boundary, supply)
        standing_on = self._standing_on(effect)
        if not self._cancelled.isdisjoint(standing_on):
            self.device.give_back(self.tree.abort(effect))
            raise TransferError(f"{boundary} cannot be loaded before a load under it, which was cancelled, has ended")
        ticket = self._submit(effect)
        tickets = [*sorted(standing_on), ticket]
        size_bytes = self._size_bytes(effect)
        load = Load(tickets, self.tree.lock_present(boundary), tokens, size_bytes)
        for waited in tickets:
            self._loads.setdefault(waited, []).append(load)
        self._counters.loads += 1
        return load

    def _standing_on(self, effect: Effect) -> set[int]:
        """Tickets of the open transfers that bring the rest of what an effect's boundary needs."""
        found: set[int] = set()
        pending = list(effect.after)
        while pending:
            other = pending.pop()
            ticket = self._tickets.get(other)
            if ticket is not None and ticket not in found:
                found.add(ticket)
                pending.extend(other.after)
        return found

    def _submit(self, effect: Effect) -> int:
        ticket = next(self._numbers)
        self._outbox.append(Transfer(ticket=ticket, kind=effect.kind, copies=effect.copies))
        self._open[ticket] = effect
        self._of_kind[ticket] = self._ranks.begin(_kind(effect))
        self._tickets[effect] = ticket
        return ticket

    def _size_bytes(self, effect: Effect) -> int:
        return sum(self._page_bytes[copy.component] * copy.source.size for copy in effect.copies)

    def wait_layer(self, load: Load, layer_id: int) -> None:
        """The gate before a model layer: return once all that a load brings for the layers up to this one is there.

        Raises TransferError if it cannot come any more. See TransferEngine.wait_layer.
        """
        if load.error is not None:
            raise TransferError(load.error)
        if not load.ended:
            self._hand_over()
            start = perf_counter_ns()
            for ticket in load.tickets:
                self._wait_layer(ticket, layer_id)
            self._counters.load_wait_ns += perf_counter_ns() - start

    def _wait_layer(self, ticket: int, layer_id: int) -> None:
        """The gate of one transfer; an engine may have forgotten those whose completion it has given."""
        if ticket in self._flying:
            self._engine.wait_layer(ticket, layer_id)
        elif (error := self._ended.get(ticket)) is not None:
            raise TransferError(f"transfer {ticket}: layer {layer_id} will not come: {error}")

    def wait(self, load: Load) -> None:
        """Return once a load has ended, well or not, and apply it. Loads that were begun before it end before it."""
        self._hand_over()
        start = perf_counter_ns()
        last = max(load.open, default=0)
        waited = sorted(t for t in self._flying if t <= last and self._open[t].kind is EffectKind.LOAD)
        for ticket in waited:
            self._engine.wait(ticket)
        self._counters.load_wait_ns += perf_counter_ns() - start
        self._apply()
        self._fail(waited, WITHOUT_COMPLETION)
        while not load.ended:
            assert not self._ranks.is_alone, "the engine said that it had ended"
            self._apply()

    def drop(self, load: Load) -> None:
        """Nobody waits for this load any more; transfers that no one else waits for are cancelled."""
        for ticket in load.tickets:
            waiting = self._loads.get(ticket, [])
            if load in waiting:
                waiting.remove(load)
                if not waiting:
                    del self._loads[ticket]
                    if ticket in self._open:
                        self._cancelled.add(ticket)
                        self._cancel(ticket)
        load.let_go()

    def _cancel(self, ticket: int) -> None:
        """Have an open transfer end soon; one that the engine was not given yet ends here, for it need not take it."""
        if ticket in self._flying:
            self._engine.cancel(ticket)
        elif ticket not in self._ended:
            self._outbox = [transfer for transfer in self._outbox if transfer.ticket != ticket]
            self._end(ticket, "cancelled")

    def poll(self) -> None:
        """Apply what has ended, start what is due, hand it to the engine. Never blocks.

        Cost: O(what ended and what starts); a few microseconds if there is nothing.
        """
        self._apply()
        if not self._closed:
            if self.backups.due():
                self.backups.add_coldest()
            self._start_backups()
        if self.tree.is_reclaimable:
            self.device.take_in(self.tree.reclaim(self.tier.reclaim_limit))

    def _start_backups(self) -> None:
        for effect in self.backups.begin():
            self._submit(effect)
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the engine this tick's transfers, loads and backups in one call."""
        if not self._outbox:
            return
        transfers, self._outbox = self._outbox, []
        tickets = [transfer.ticket for transfer in transfers]
        self._flying.update(tickets)
        try:
            self._engine.submit(transfers)
        except TransferError as error:
            self._fail(tickets, str(error))
            raise
        except BaseException as error:  # raised on; whether the engine has taken some of them is not known
            try:
                self._cancel_and_wait(tickets)
            finally:
                self._fail(tickets, f"{type(error).__name__}: {error}")
            raise

    def _cancel_and_wait(self, tickets: Sequence[int]) -> None:
        """Apply how these ended, as far as the engine knows of them; what it moves of them ends before this returns."""
        for ticket in tickets:
            self._engine.cancel(ticket)
            with suppress(TransferError):  # it was not taken
                self._engine.wait(ticket)
        for completion in self._engine.poll():
            self._complete(completion)

    def _fail(self, tickets: Iterable[int], error: str) -> None:
        """Of these, what the engine was given and said nothing of will never be heard of again."""
        for ticket in sorted(tickets):
            if ticket in self._flying:
                self._end(ticket, error)

    def _apply(self) -> None:
        for completion in self._engine.poll():
            self._complete(completion)
        if not self._closed:
            self._ranks.tick()

    def _complete(self, completion: Completion) -> None:
        if completion.ticket not in self._flying:
            self._counters.drop("completion not expected")
            return
        self._end(completion.ticket, completion.error)

    def _end(self, ticket: int, error: str | None) -> None:
        """A transfer ended here; it is finished when it has ended on every rank."""
        self._flying.discard(ticket)
        self._ended[ticket] = error
        self._ranks.end(_kind(self._open[ticket]), self._of_kind[ticket], error, partial(self._finish, ticket))

    def _finish(self, ticket: int, error: str | None) -> None:
        """A transfer ended: publish or drop what it copied, once what it stands on has ended, too."""
        effect = self._open[ticket]
        below = next((self._tickets[other] for other in effect.after if other in self._tickets), None)
        if below is not None:
            self._behind.setdefault(below, []).append((ticket, error))
            return
        del self._open[ticket]
        self._ended.pop(ticket, None)
        del self._of_kind[ticket]
        if not self._ranks.is_alone:
            self._ranks.note(f"{effect.boundary} {error is None}")
        self._cancelled.discard(ticket)
        del self._tickets[effect]
        pages = self.device if effect.kind is EffectKind.LOAD else self.host
        if error is None:
            pages.give_back(self._acknowledged(effect))
            if self.storage is not None and effect.kind is EffectKind.BACKUP:
                self.storage.backed_up(effect.boundary)
        else:
            pages.give_back(self.tree.abort(effect))
            self._counters.drop(f"{effect.kind.name.lower()} {'cancelled' if 'cancel' in error else 'failed'}")
        self.backups.ended(effect)
        for load in self._loads.pop(ticket, []):
            self._arrived(load, ticket, error)
        for above, its_error in self._behind.pop(ticket, []):
            self._finish(above, its_error)

    def _acknowledged(self, effect: Effect) -> Mapping[str, NDArray[np.int64]]:
        size_bytes = self._size_bytes(effect)
        page_count = sum(copy.source.size for copy in effect.copies)
        self._counters.moved(effect.kind, page_count, size_bytes)
        return self.tree.acknowledge(effect)

    def _arrived(self, load: Load, ticket: int, error: str | None) -> None:
        """One transfer that a load waits for ended: hold on to what it brought."""
        load.open.discard(ticket)
        if error is not None and load.error is None:
            load.error = f"the load of {load.boundary} failed: {error}"
        try:
            load.hold(self.tree.lock_present(load.boundary))
        except StaleBoundaryError as stale:
            load.error = load.error or str(stale)
            load.let_go()

    def committed(self, boundary: Boundary) -> None:
        """Tokens were published on device up to here."""
        if self.tier.write_policy is WritePolicy.WRITE_THROUGH and self.tree.is_boundary(boundary):
            self.backups.add(boundary)

    def hit(self, boundary: Boundary) -> None:
        """A prompt goes on from a device boundary."""
        selective = self.tier.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        if selective and boundary.length and self.tree.hits(boundary) >= self.tier.selective_hits:
            self.backups.add(boundary)

    def drain(self) -> None:
        """Finish all that has been started or queued and can be, and apply it. What fails is not tried again here."""
        self.poll()
        while self._open:
            self._engine.drain()
            self._apply()
            self._fail(list(self._flying), WITHOUT_COMPLETION)
            self._start_backups()

    def flush(self) -> None:
        """Back up every boundary that is on device and not on host, as far as the host has room, and finish it.

        The queue is filled as often as its limit demands, and emptied in between.
        """
        for boundary in [] if self._closed else self.tree.boundaries():
            if self.backups.is_full:
                self.drain()
            self.backups.add(boundary)
        self.drain()

    def close(self) -> None:
        """Stop the engine and give back what it was working on; the other ranks are not asked. Twice is as good as once."""
        if self._closed:
            return
        self._closed = True
        self._outbox.clear()
        try:
            self._engine.close()
        finally:
            self._finish_all()

    def _finish_all(self) -> None:
        """What the engine has told ends that way, all else as cancelled."""
        outcomes = dict(self._ended) if self._ranks.is_alone else {}
        for completion in self._engine.poll():
            if completion.ticket in self._flying:
                self._flying.discard(completion.ticket)
                outcomes[completion.ticket] = completion.error
            else:
                self._counters.drop("completion not expected")
        self._flying.clear()
        self._behind.clear()
        for ticket in sorted(self._open):  # what stands on another has the higher number
            self._finish(ticket, outcomes.get(ticket, UNKNOWN))


def _kind(effect: Effect) -> str:
    """What the other ranks know such a copy as."""
    return "backup" if effect.kind is EffectKind.BACKUP else "load"
