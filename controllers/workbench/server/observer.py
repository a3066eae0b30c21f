"""Who is told what happens on the simulated server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.workbench.server.served_request import ServedRequest
    from unified_tree.controllers.workbench.traces.workload import Request


class Observer(Protocol):
    """Who is told what happens. Times are in seconds of the virtual clock."""

    def offered(self, request: Request) -> None:
        """A request that was never admitted is about to be offered to the cache; again, if it found no pages before."""

    def fetched(self, request: Request, waited_s: float) -> None:
        """A request that waited for a store since its arrival joins the queue."""

    def admitted(self, request: Request, lease: Lease, now_s: float, fetched_tokens: int) -> None:
        """A request got its lease for the first time; its prefetch had made the prefix on host so much longer."""

    def loaded(self, request: Request, waited_s: float) -> None:
        """What a request resumes from has arrived from host, so long after its admission."""

    def first_token(self, entry: ServedRequest) -> None:
        """A request's prompt has been computed for the first time."""

    def preempted(self, request: Request) -> None:
        """A running request was put back."""

    def ended(self, request: Request, now_s: float, spent_ns: int, *, rejected: bool) -> None:
        """A request finished or was rejected, after so many nanoseconds in the library."""
