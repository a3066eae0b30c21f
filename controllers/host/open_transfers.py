"""The open effects of a tree in a transfer engine, from their start until they are finished on all ranks.

A transfer is queued, submitted to the engine with all others of its tick in one call, and ends here exactly once: by the
engine's completion, or because no completion can come any more. It is finished when it has ended on every rank and its
dependencies are finished, whatever the order of completions. The engine is not trusted: a transfer that it refuses, in whatever
way, and one that it reports as ended without a completion, fail here.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.transfer_engines import Transfer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import TransferError, words_of
from unified_tree.terms.results import record

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.transfer_engines import TransferEngine
    from unified_tree.locks.locks import Receipt
    from unified_tree.nodes.effect import Effect

WITHOUT_COMPLETION = "the engine said that it had ended, and gave no completion"
UNKNOWN = "cancelled: the controller was closed before it was known how this ended"


class Stage(Enum):
    """Where a transfer is."""

    QUEUED = "queued"
    IN_ENGINE = "in the engine"
    ENDING = "about to end here"
    ENDED = "ended here"


QUEUED: Final = Stage.QUEUED
IN_ENGINE: Final = Stage.IN_ENGINE
ENDING: Final = Stage.ENDING
ENDED: Final = Stage.ENDED
"""Members of an Enum are looked up by a Python function, so they are looked up once."""


class OpenTransfer:
    """One effect that is being copied.

    Attributes:
        ticket: its number for the engine; a dependent transfer has a higher number.
        effect: what is copied.
        number: among those of its kind on all ranks.
        begun_ns: when it was queued.
        error: why it failed here; None if it succeeded or has not ended.
        is_cancelled: it was cancelled.
        loads: the loads that wait for it.
        above: dependent transfers that have ended before it, with their errors; None for none.
    """

    __slots__ = ("above", "begun_ns", "effect", "error", "is_cancelled", "loads", "number", "stage", "ticket")

    def __init__(self, ticket: int, effect: Effect, number: int) -> None:
        self.ticket = ticket
        self.effect = effect
        self.number = number
        self.begun_ns = perf_counter_ns()
        self.stage = QUEUED
        self.error: str | None = None
        self.is_cancelled = False
        self.loads: list[Load] | None = None
        self.above: list[tuple[OpenTransfer, str | None]] | None = None

    def add_load(self, load: Load) -> None:
        """A load waits for it."""
        if self.loads is None:
            self.loads = []
        self.loads.append(load)

    @property
    def kind(self) -> str:
        """Its kind in messages to other ranks."""
        return "backup" if self.effect.kind is EffectKind.BACKUP else "load"


class Load:
    """The transfers that a lease waits for before its boundary is on device: its own, and those of other loads.

    Attributes:
        boundary: where the lease will resume; valid while its lock is held, whatever is split around it.
        tickets: of all transfers it waits for, in the order they were submitted.
        open: those of `tickets` that have not ended.
        laid_out: how many were open when the lease's page tables were last filled.
        changed: where it is put when one of them has ended; None for nobody who wants to know.
        error: why it failed; None if it has not.
        tokens, size_bytes: the tokens gained beyond what was on device; the bytes of its own transfer alone.
    """

    __slots__ = ("_receipt", "boundary", "changed", "error", "laid_out", "open", "size_bytes", "tickets", "tokens")

    def __init__(self, tickets: list[int], receipt: Receipt, tokens: int, size_bytes: int) -> None:
        self.boundary = receipt.boundary
        self.tickets = tickets
        self.open = set(tickets)
        self.laid_out = len(tickets)
        self.changed: deque[Load] | None = None
        self.error: str | None = None
        self._receipt: Receipt | None = receipt
        self.tokens = tokens
        self.size_bytes = size_bytes

    @property
    def has_ended(self) -> bool:
        """Whether no transfer is open any more."""
        return not self.open

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for it any more: its lease has ended, or what it waited for is gone."""
        return self._receipt is None

    @property
    def has_unseen_end(self) -> bool:
        """Whether a transfer has ended since the last `mark_seen`."""
        return self.has_ended or len(self.open) < self.laid_out

    def mark_seen(self) -> None:
        """Mark all transfers that have ended so far as seen by the lease."""
        self.laid_out = len(self.open)

    def transfer_ended(self, ticket: int, error: str | None) -> None:
        """One transfer that it waits for ended."""
        self.open.discard(ticket)
        if self.changed is not None:
            self.changed.append(self)
        if error is not None:
            self.fail(f"the load of {self.boundary} failed: {error}")

    def fail(self, error: str) -> None:
        """Mark it as failed; the first reason is kept."""
        self.error = self.error or error

    def lock(self, receipt: Receipt) -> None:
        """Keep the receipt for what is on device now, then release the one before."""
        before, self._receipt, self.boundary = self._receipt, receipt, receipt.boundary
        if before is not None:
            before.release()

    def release(self) -> None:
        """Release the receipt."""
        if self._receipt is not None:
            self._receipt.release()
            self._receipt = None


class OpenTransfers:
    """The open transfers.

    Args:
        engine: moves the bytes; closed with this.
        ranks: agreement with the other ranks, before an ended copy takes effect.
        counters: counts events.
        finished: called once with every transfer and its error when it is finished; it acknowledges or aborts the effect.
        interrupted: called if `finished` raised; it does what is left to do.
    """

    def __init__(
        self,
        engine: TransferEngine,
        ranks: RankAgreement,
        counters: CacheCounters,
        finished: Callable[[OpenTransfer, str | None], None],
        interrupted: Callable[[OpenTransfer, str | None], None],
    ) -> None:
        self._engine: Any = engine  # of another package, maybe: compiled code would refuse in its own words what it reports
        self._poll_engine: Any = self._engine.poll  # to look it up takes as long as an idle engine's answer
        self._ranks = ranks
        self._is_single_rank = ranks.is_single_rank
        self._counters = counters
        self._finished = finished
        self._interrupted = interrupted
        self._last_ticket = 0
        self._open: dict[int, OpenTransfer] = {}
        self._queue: list[OpenTransfer] = []
        self._unfinished: list[Any] = []
        self._to_finish: list[tuple[OpenTransfer, str | None]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def get(self, ticket: int) -> OpenTransfer | None:
        """An open transfer by its number."""
        return self._open.get(ticket)

    def begin(self, effect: Effect) -> OpenTransfer:
        """Queue an effect's copies for the next `submit`. Cost: O(components)."""
        ticket = self._last_ticket + 1
        opened = OpenTransfer(ticket, effect, 0)
        if not self._is_single_rank:
            opened.number = self._ranks.begin(opened.kind)
        try:
            self._last_ticket = ticket
            self._open[ticket] = effect.transfer = opened
            self._queue.append(opened)
            return opened
        except BaseException:
            self._open.pop(ticket, None)
            if opened in self._queue:
                self._queue.remove(opened)
            effect.transfer = None
            raise

    def below(self, effect: Effect) -> list[OpenTransfer]:
        """The open transfers that copy the rest of what an effect's boundary needs, in the order in which they started."""
        found: dict[int, OpenTransfer] = {}
        pending = list(effect.after)
        while pending:
            other = pending.pop().transfer
            if isinstance(other, OpenTransfer) and other.ticket not in found:
                found[other.ticket] = other
                pending.extend(other.effect.after)
        return [found[ticket] for ticket in sorted(found)]

    def submit(self) -> None:
        """Submit this tick's transfers to the engine, loads and backups in one call.

        Raises what the engine raises; transfers that it did not accept have failed then.
        """
        if not self._queue:
            return
        queue = self._queue
        try:
            self._queue = []
            transfers: list[Transfer] = []
            for opened in queue:
                opened.stage = IN_ENGINE
                transfers.append(record(Transfer, (opened.ticket, opened.effect.kind, opened.effect.copies)))
            self._engine.submit(transfers)
        except TransferError as error:
            self._fail(queue, str(error))
            raise
        except BaseException as error:  # raised on; whether the engine has taken some of them is not known
            self._queue = []
            for opened in queue:
                if opened.stage is QUEUED:
                    opened.stage = IN_ENGINE
            try:
                self._cancel_and_wait(queue)
            finally:
                self._fail(queue, words_of(error))
            raise

    def _cancel_and_wait(self, queue: list[OpenTransfer]) -> None:
        """Cancel these transfers in the engine, wait until none of them moves any more, and apply how they ended."""
        for opened in queue:
            self._engine.cancel(opened.ticket)
            with suppress(TransferError):  # it was not taken
                self._engine.wait(opened.ticket)
        self._apply_completions()

    @property
    def has_queued(self) -> bool:
        """Whether `submit` has something to do."""
        return bool(self._queue)

    def poll(self) -> None:
        """Apply what has ended here and on the other ranks. Never blocks. Cost: O(transfers ended)."""
        self._apply_completions()
        if not (self._is_single_rank or self._closed):
            self._ranks.tick()

    def _apply_completions(self) -> None:
        if self._to_finish:  # a call was interrupted
            self._finish_next()
        completions = self._poll_engine()
        if completions or self._unfinished:
            self._unfinished += completions  # each stays here until it is applied, should a call be interrupted
            while self._unfinished:
                completion = self._unfinished[0]
                opened = self._expected(completion)
                if opened is not None:
                    self._end(opened, _said(completion))
                del self._unfinished[0]

    def _expected(self, completion: Any) -> OpenTransfer | None:
        """The transfer of a completion, which has left the engine; None for an unexpected completion, which is counted."""
        opened = self._open.get(completion.ticket)
        if opened is not None and opened.stage is ENDING:
            return opened
        if opened is None or opened.stage is not IN_ENGINE:
            self._counters.count_drop("completion not expected")
            return None
        return opened

    def cancel(self, opened: OpenTransfer) -> None:
        """Cancel a transfer; one that was not submitted yet ends here."""
        opened.is_cancelled = True
        if opened.stage is IN_ENGINE:
            self._engine.cancel(opened.ticket)
        elif opened.stage is QUEUED:
            self._queue.remove(opened)
            self._end(opened, "cancelled")

    def wait_layer(self, opened: OpenTransfer, layer_id: int) -> None:
        """Wait for a layer of one load; see TransferEngine.wait_layer. The engine may have forgotten a completed one."""
        if opened.stage is IN_ENGINE:
            self._engine.wait_layer(opened.ticket, layer_id)
        elif opened.error is not None:
            raise TransferError(f"transfer {opened.ticket}: layer {layer_id} will not come: {opened.error}")

    def wait(self, last: int) -> None:
        """Return when the engine has ended every load up to this ticket, and apply them."""
        waited = [opened for opened in self._all_in_engine() if opened.ticket <= last and opened.effect.kind is EffectKind.LOAD]
        for opened in waited:
            self._engine.wait(opened.ticket)
        self.poll()
        self._fail(waited, WITHOUT_COMPLETION)

    def finish_oldest_unawaited(self) -> bool:
        """Return when the oldest transfer that no load waits for has ended on all ranks and is applied; False if there is none.

        Those are backups, and loads that were cancelled. Cost: O(open transfers), and the wait.
        """
        for opened in self._open.values():
            if not opened.loads:
                break
        else:
            return False
        assert opened.stage is not QUEUED, (
            "backups are submitted when they begin, and a cancelled load that was not ends at once"
        )
        if opened.stage is IN_ENGINE:
            self._engine.wait(opened.ticket)
        self.poll()
        self._fail([opened], WITHOUT_COMPLETION)
        while opened.ticket in self._open:
            assert not self._is_single_rank, "what has ended here is finished"
            self.poll()
        return True

    def drain(self) -> None:
        """Return when the engine has ended all submitted transfers, and apply them."""
        self._engine.drain()
        self.poll()
        self._fail(self._all_in_engine(), WITHOUT_COMPLETION)

    def _all_in_engine(self) -> list[OpenTransfer]:
        """What the engine has, by ticket."""
        return [opened for opened in self._open.values() if opened.stage is IN_ENGINE or opened.stage is ENDING]

    def _fail(self, transfers: list[OpenTransfer], error: str) -> None:
        """Fail those of these transfers, given by ticket, that are still in the engine."""
        for opened in transfers:
            if opened.stage is IN_ENGINE or opened.stage is ENDING:
                self._end(opened, error)

    def _end(self, opened: OpenTransfer, error: str | None) -> None:
        """End a transfer here; it is finished when it has ended on every rank. Idempotent until it has."""
        opened.stage = ENDING
        opened.error = error
        if self._is_single_rank:
            self._finish(opened, error)
        else:
            self._ranks.end(opened.kind, opened.number, error, self._finish, opened)
        opened.stage = ENDED

    def _finish(self, opened: OpenTransfer, error: str | None) -> None:
        """Finish a transfer that has ended on all ranks, once its dependencies are finished, and those that waited for it.
        Idempotent.
        """
        self._to_finish.append((opened, error))
        self._finish_next()

    def _finish_next(self) -> None:
        """Finish the transfers that have ended, the last first. Their dependents may be a long chain, so without recursion."""
        pending = self._to_finish
        while pending:
            opened, error = pending[-1]  # it stays there until it is finished, should a call be interrupted
            if opened.ticket not in self._open or self._stands_on_open(opened, error):
                del pending[-1]
                continue
            try:
                self._open.pop(opened.ticket, None)
                opened.effect.transfer = None
                if not self._is_single_rank:
                    boundary = opened.effect.boundary
                    self._ranks.record(f"{boundary.node} {boundary.length} {error is None}")
                self._finished(opened, error)
            except BaseException:
                self._open.pop(opened.ticket, None)
                opened.effect.transfer = None
                self._interrupted(opened, error)
                raise
            finally:
                if opened.above is not None:
                    pending.extend(reversed(opened.above))
                    opened.above = None

    def _stands_on_open(self, opened: OpenTransfer, error: str | None) -> bool:
        """Whether a transfer stands on one that is open; then it is finished after that one."""
        for other in opened.effect.after:
            below = other.transfer
            if isinstance(below, OpenTransfer):
                if below.above is None:
                    below.above = []
                below.above.append((opened, error))
                return True
        return False

    def close(self) -> None:
        """Stop the engine, without waiting for other ranks. Transfers without a completion end as cancelled."""
        self._closed = True
        self._queue.clear()
        try:
            self._engine.close()
        finally:
            self._finish_all()

    def _finish_all(self) -> None:
        outcomes: dict[OpenTransfer, str | None] = {}
        if self._is_single_rank:
            outcomes = {
                opened: opened.error for opened in self._open.values() if opened.stage is ENDED or opened.stage is ENDING
            }
        for completion in self._engine.poll():
            opened = self._expected(completion)
            if opened is not None:
                opened.stage = ENDED
                outcomes[opened] = _said(completion)
        for opened in self._open.values():
            opened.above = None
        for ticket in sorted(self._open):
            self._finish(self._open[ticket], outcomes.get(self._open[ticket], UNKNOWN))


def _said(completion: Any) -> str | None:
    """Why a transfer failed, in words, whatever an engine of another package puts there."""
    error: object = completion.error
    return error if error is None or isinstance(error, str) else repr(error)
