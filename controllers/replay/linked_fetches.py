"""The lookups and retrieves of a linked cache, in steps of the server's clock, and the requests that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.keys import Key

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.prefix_linker import LinkedPrefixes
    from unified_tree.controllers.replay.row_link import RowLink
    from unified_tree.controllers.replay.served_request import ServedRequest

NS_PER_S = 1e9


class LinkedFetches:
    """As Fetches, over a link in place of a store; what has been computed is offered to it as well.

    Args:
        link: of the server's cache.
        row: what it was made of.
        step_ms: of the server.
    """

    is_on = True

    def __init__(self, link: LinkedPrefixes, row: RowLink, step_ms: float) -> None:
        self._link = link
        self._row = row
        self._step_ns = round(step_ms * 1e6)
        self._waiting: list[tuple[float, ServedRequest]] = []  # (when it stops waiting in seconds, request), by arrival

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_transfer(self) -> int | None:
        """The step at which something may end that has taken pages; None if there is no such thing."""
        due_ns = self._row.linker.next_event_ns if self._row.linker.transfers else None
        return None if due_ns is None else -(-due_ns // self._step_ns)

    def begin(self, entry: ServedRequest) -> bool:
        """A request has arrived. Whether it waits here."""
        request = entry.request
        self._link.lookup(request.index, Key(request.tokens()[: entry.target]))
        if self._link.is_ready(request.index):
            return False
        self._waiting.append((self._row.clock.now / NS_PER_S + self._row.wait_s, entry))
        return True

    def poll(self, step: int) -> bool:
        """Bring lookups and transfers up to a step. Whether any transfer has ended."""
        clock, transfers = self._row.clock, self._row.linker.transfers
        clock.advance(max(0, step * self._step_ns - clock.now))
        self._link.poll()
        return self._row.linker.transfers < transfers

    def take_ready(self) -> list[ServedRequest]:
        """Those that need not wait any more, by arrival. To be asked after every poll."""
        ready = [entry for _, entry in self._waiting if self._link.is_ready(entry.request.index)]
        if ready:
            self._waiting = [waiting for waiting in self._waiting if waiting[1] not in ready]
        return ready

    def next_step(self, step: int) -> int | None:
        """The step at which the linker goes on, or somebody stops waiting; None if neither."""
        next_ns = self._row.linker.next_event_ns
        steps = [] if next_ns is None else [max(step + 1, -(-next_ns // self._step_ns))]
        deadline = min((deadline for deadline, _ in self._waiting), default=float("inf"))
        if deadline != float("inf"):
            steps.append(max(step + 1, int(deadline * NS_PER_S) // self._step_ns + 1))
        return min(steps, default=None)

    def checkpoints(self, entry: ServedRequest) -> tuple[int, ...]:
        """Where windows and states should be saved beside the usual places, so that they can be stored."""
        shared = entry.request.shared_tokens
        wanted = {*self._link.checkpoints(shared), *self._link.checkpoints(entry.target)}
        if wanted and not shared:
            wanted.add(entry.target)  # which is the usual place without any
        return tuple(sorted(wanted))

    def fetched_tokens(self, entry: ServedRequest) -> int:
        """By how many tokens the device's prefix became longer for this request."""
        return self._link.retrieved_tokens(entry.request.index)

    def committed(self, entry: ServedRequest, lease: Lease) -> None:
        """Something was computed and published: offer it."""
        self._link.store(entry.request.index, lease)

    def leave(self, entry: ServedRequest) -> None:
        """A request is over."""
        self._link.release(entry.request.index)

    def finish(self) -> None:
        """Let all stores end, as a server does that stops in good order."""
        while (due_ns := self._row.linker.next_event_ns) is not None:
            self._row.clock.advance(max(0, due_ns - self._row.clock.now))
            self._link.poll()
