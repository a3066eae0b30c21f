"""One request on its way through the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.workbench.server.timed_cache import Stopwatch

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request


class ServedRequest:
    """A request in the queue or at work; it keeps its figures through preemptions.

    Attributes:
        target: prefilled up to here and then decoded; after a preemption, up to where the answer had come.
        arrived, queued: the steps at which it arrived, and joined the queue.
        started, computing: those at which it last got a place, and all that it resumes from was on device.
        has_computed, had_token: whether it has ever computed some of its prompt, and whether its first token has come.
        computed, granted: tokens computed, and tokens that there are pages for.
        decoding_from: the step at which `computed` was `target`; None before.
        event_number: its one valid event.
        fetched_tokens: by how many tokens its prefetch made the prefix on host longer.
        failed_loads: how often what it was loading back did not come.
        loading_from: the step since which it waits for what its lease loads back; None when it does not.
        missing_tokens: what it lacked when it was last offered to the cache; not worth another try with less room.
        spent: time inside the library for it.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "computed",
        "computing",
        "decoding_from",
        "event_number",
        "failed_loads",
        "fetched_tokens",
        "granted",
        "had_token",
        "has_computed",
        "lease",
        "loading_from",
        "missing_tokens",
        "queued",
        "request",
        "spent",
        "started",
        "target",
        "tokens",
    )

    def __init__(self, request: Request, arrived: int = 0) -> None:
        self.request = request
        self.arrived = self.queued = self.started = self.computing = arrived
        self.has_computed = self.had_token = False
        self.target = request.prompt_tokens
        self.admitted = False
        self.missing_tokens = 0
        self.failed_loads = 0
        self.fetched_tokens = 0
        self.spent = Stopwatch()
        self.stop()

    def start(self, lease: Lease, tokens: Int64s) -> None:
        """It was admitted: `tokens` are its prompt and answer, what the lease does not resume is to be computed."""
        self.admitted = True
        self.lease: Lease | None = lease
        self.tokens: Int64s | None = tokens
        self.computed = self.granted = lease.compute_from

    def stop(self) -> None:
        """It lost its place; nothing of it is computed any more, as far as it knows."""
        self.lease = None
        self.tokens = None
        self.computed = self.granted = 0
        self.decoding_from: int | None = None
        self.loading_from: int | None = None
        self.event_number = 0

    def stalled(self, steps: int) -> None:
        """It had no pages for so many steps; while it decodes, they give no tokens."""
        if self.decoding_from is not None:
            self.decoding_from += steps

    def decoded_to(self, step: int) -> None:
        """It has decoded one token a step until `step`."""
        assert self.decoding_from is not None
        self.computed = max(self.computed, self.target + step - self.decoding_from)

    def prompt(self) -> Int64s:
        """Token ids of what is prefilled, shape [target]."""
        return self.request.tokens()[: self.target]

    def at_work(self) -> tuple[Lease, Int64s]:
        """Its lease, and its tokens, prompt and answer; it has a place."""
        assert self.lease is not None
        assert self.tokens is not None
        return self.lease, self.tokens

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.request.prompt_tokens + self.request.output_tokens

    def __lt__(self, other: ServedRequest) -> bool:
        return self.request.index < other.request.index


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
