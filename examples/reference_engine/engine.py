"""Continuous batching on one thread: each step runs one chunk of the prompt, or one token, of every running request.

A scheduler's calls, in order: `prefetch` at arrival; `acquire` once it is `prefetched`; run no token before `compute_from`;
make the lease's `state_copies`; `wait_layer` while it is loading; `allocate` before each chunk; end chunks at `save_at`;
`commit` what is computed; `advance` during decoding; `release`. When pages run out, the youngest request is preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from reference_engine.engine_settings import EngineSettings
from reference_engine.request import Request, Running
from reference_engine.sequence_rows import SequenceRows
from reference_engine.speculation import Speculation
from reference_engine.steps import advance, can_publish_state, not_drafted
from unified_tree.terms.errors import OutOfPagesError, TransferError

if TYPE_CHECKING:
    from reference_engine.model_runner import ModelRunner, Pass
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.pools import DevicePool

Sampler = Callable[[torch.Tensor], int]
"""A token from its logits, [vocabulary]."""


def greedy(logits: torch.Tensor) -> int:
    """The likeliest token."""
    return int(logits.argmax())


class Engine:
    """Serves requests over one prefix cache.

    Args:
        cache: the prefix cache.
        pools: its device pools by component.
        runners: the model of each namespace; replace one (and `invalidate` the namespace) to change weights.
        settings: of the scheduler.
        sampler: picks the next token.
        speculation: a draft model to decode with.

    Attributes:
        waiting, running: requests in the order of their arrival and admission.
    """

    def __init__(
        self,
        cache: PrefixCache,
        pools: Mapping[str, DevicePool],
        runners: Mapping[str, ModelRunner],
        *,
        settings: EngineSettings | None = None,
        sampler: Sampler = greedy,
        speculation: Speculation | None = None,
    ) -> None:
        self.cache = cache
        self.pools = pools
        self.runners = dict(runners)
        self.settings = EngineSettings() if settings is None else settings
        self.sampler = sampler
        self.speculation = speculation
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Queue a request; what a store has of its prompt begins to come to host."""
        self.waiting.append(request)
        self.cache.prefetch(request, request.key())

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        """Admit what fits, then give each running request a chunk of its prompt or a token."""
        self.cache.poll()
        self._admit()
        for request in list(self.running):
            if request.running is not None:
                self._advance(request, request.running)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.settings.max_running:
            request = self.waiting[0]
            if not self.cache.prefetched(request):
                return
            try:
                lease = self._acquire(request)
            except OutOfPagesError:
                if self.running:
                    return
                self.cache.drain()  # transfers under way hold pages, too
                lease = self._acquire(request)
            self.waiting.popleft()
            request.running = Running(lease, self.rows(lease), self.runners[request.namespace], lease.compute_from)
            if self.speculation is not None:
                self.speculation.admit(request.running)
            self.running.append(request)

    def rows(self, lease: Lease) -> SequenceRows:
        """A sequence's state in the pools. Override it where ranks divide the slots of pages."""
        return SequenceRows(lease, self.pools, self.cache.layout)

    def _acquire(self, request: Request) -> Lease:
        may_load = not request.load_failed
        return self.cache.acquire(
            request.key(), request.checkpoints, save_output=request.save_output, may_load=may_load, request=request
        )

    def _advance(self, request: Request, running: Running) -> None:
        try:
            advance(self, request, running)
        except TransferError:  # what it was loading back never came: it starts anew, without
            request.load_failed = True
            self.preempt(request)
            return
        if request.running is not None and request.finished:
            self.finish(request, running)

    def ran(self, request: Request, running: Running, run: Pass) -> None:  # noqa: ARG002
        """Called when a run's state was written. Override it to see every token's logits."""
        running.computed = run.start + len(run.logits)

    def finish(self, request: Request, running: Running) -> None:
        """Publish all that was computed, with the running state if a later prompt may continue from it, and end the request."""
        lease, end = running.lease, running.computed
        states: dict[int, int] = {}
        page = lease.state_page
        if page is not None and lease.state_tokens == end and request.save_output and can_publish_state(self, running):
            states[end] = page
        self.cache.commit(lease, request.tokens[:end], states, without=not_drafted(self, running))
        self._release(request)

    def grow(self, request: Request, end: int) -> bool:
        """Allocate pages for the tokens before `end`. False if the request itself was preempted."""
        assert request.running is not None
        while True:
            try:
                self.cache.allocate(request.running.lease, end)
                return True
            except OutOfPagesError:
                victim = self.running[-1]
                if victim is not self.running[0]:
                    self.preempt(victim)
                    if victim is request:
                        return False
                    continue
            self.cache.drain()  # nobody else is left; transfers under way hold pages, too
            self.cache.allocate(request.running.lease, end)
            return True

    def preempt(self, request: Request) -> None:
        """Preempt a request; it resumes later from what the cache still has then."""
        request.preemptions += 1
        self._release(request)
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        assert request.running is not None
        self.cache.release(request.running.lease)
        request.running = None
        self.running.remove(request)
