"""A transfer engine that watches whether its caller keeps the rules, and spoils target pages as soon as it is given them."""

from __future__ import annotations

from collections.abc import Sequence

from page_memory import PageMemory, Place

from unified_tree import Tier, TransferError
from unified_tree.controllers.transfer_engines import Completion, Transfer, TransferEngine
from unified_tree.nodes.effect import EffectKind


class WatchedEngine:
    """A TransferEngine around another one.

    Attributes:
        flights: open transfers by ticket; which pages they read and write is in the memory's `busy`.
        repeats: completions that came again.
        dead: it takes everything and completes it with an error, or `refuses` it.
    """

    def __init__(self, inner: TransferEngine, memory: PageMemory) -> None:
        self._inner = inner
        self._memory = memory
        self.flights: dict[int, Transfer] = {}
        self.repeats = 0
        self.dead = False
        self.refuses = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        if self.refuses:
            raise TransferError("this engine is dead")
        for transfer in transfers:
            self._take_off(transfer)
        self._inner.submit(transfers)
        if self.dead:
            for transfer in transfers:
                self._inner.cancel(transfer.ticket)

    def _take_off(self, transfer: Transfer) -> None:
        busy = self._memory.busy
        sources, targets = _places(transfer)
        for place in targets:
            assert place not in busy, f"{place} is a target, and in another transfer already"
            self._memory.spoil(place[0], place[1], [place[2]])
        for place in sources:
            assert busy.get(place, 1) > 0, f"{place} is a source, and the target of another transfer"
        for place in targets:
            busy[place] = -1
        for place in sources:
            busy[place] = busy.get(place, 0) + 1
        self.flights[transfer.ticket] = transfer

    def _land(self, transfer: Transfer) -> None:
        busy = self._memory.busy
        sources, targets = _places(transfer)
        for place in targets:
            del busy[place]
        for place in sources:
            busy[place] -= 1
            if not busy[place]:
                del busy[place]

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll."""
        completions = self._inner.poll()
        for completion in completions:
            transfer = self.flights.pop(completion.ticket, None)
            if transfer is None:
                self.repeats += 1
                continue
            self._land(transfer)
        return completions

    def die(self, *, refuse: bool) -> None:
        """Fail all that is open; fail or refuse all that comes."""
        self.dead, self.refuses = True, refuse
        for ticket in list(self.flights):
            self._inner.cancel(ticket)

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer."""
        self._inner.wait_layer(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel."""
        self._inner.cancel(ticket)

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._inner.wait(ticket)

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self._inner.drain()

    def close(self) -> None:
        """See TransferEngine.close."""
        self._inner.close()


def _places(transfer: Transfer) -> tuple[set[Place], list[Place]]:
    """Where a transfer reads, and where it writes."""
    origin, goal = Tier.DEVICE, Tier.HOST
    if transfer.kind is EffectKind.LOAD:
        origin, goal = goal, origin
    sources = {(copy.component, origin, page) for copy in transfer.copies for page in copy.source.tolist()}
    targets = [(copy.component, goal, page) for copy in transfer.copies for page in copy.target.tolist()]
    return sources, targets
