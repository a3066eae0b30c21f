"""Continuous batching on one thread: each step gives every running request one chunk of its prompt, or one token.

What the cache wants of a scheduler, in order: `acquire` (and run no token before `compute_from`), copy the state that it names,
wait at the gates of what is loading, `allocate` before each chunk, end chunks where states are to be saved, `commit` what is
computed, `advance` as decoding moves on, and `release`. Pages that run out cost the youngest request its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from unified_tree.controllers.reference_engine.engine_settings import EngineSettings
from unified_tree.controllers.reference_engine.request import Request, Running
from unified_tree.controllers.reference_engine.sequence_rows import SequenceRows
from unified_tree.controllers.reference_engine.speculation import Speculation
from unified_tree.errors import OutOfPagesError, TransferError
from unified_tree.keys import Key

if TYPE_CHECKING:
    from unified_tree.controllers.lease import Lease
    from unified_tree.controllers.pools import DevicePool
    from unified_tree.controllers.prefix_cache import PrefixCache
    from unified_tree.controllers.reference_engine.model_runner import ModelRunner, Pass

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
        """Queue a request."""
        self.waiting.append(request)

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
        while self.waiting and len(self.running) < self.settings.most_running:
            request = self.waiting[0]
            try:
                lease = self._acquire(request)
            except OutOfPagesError:
                if self.running:
                    return
                self.cache.drain()  # transfers under way hold pages, too
                lease = self._acquire(request)
            self.waiting.popleft()
            rows = SequenceRows(lease, self.pools, self.cache.page_size)
            request.running = Running(lease, rows, self.runners[request.namespace], lease.compute_from)
            if self.speculation is not None:
                self.speculation.admit(request.running)
            self.running.append(request)

    def _acquire(self, request: Request) -> Lease:
        key = Key(request.tokens, request.namespace)
        options = {"save_output": request.save_output, "may_load": not request.load_failed}
        return self.cache.acquire(key, request.checkpoints, **options)

    def _advance(self, request: Request, running: Running) -> None:
        try:
            if running.computed < len(request.tokens) - 1 or not request.output:
                self._prefill(request, running)
            else:
                self._decode(request, running)
        except TransferError:  # what it was loading back never came: it starts anew, without
            request.load_failed = True
            self.preempt(request)
            return
        if request.running is not None and request.finished:
            self._finish(request, running)

    def _prefill(self, request: Request, running: Running) -> None:
        tokens, start = request.tokens, running.computed
        end = self._chunk_end(running, len(tokens))
        if not self._grow(request, end):
            return
        run = self._run(running, tokens[start:end], start)
        run.write()
        if self.speculation is not None:
            self.speculation.follow(running, tokens, end)
        self.ran(request, running, run)
        self._publish(request, running, end, wanted=True)
        if end == len(tokens):
            request.output.append(self.sampler(run.logits[-1]))

    def _chunk_end(self, running: Running, length: int) -> int:
        """A replay runs in one piece, and no chunk runs past a place where a state or a window is to be saved."""
        start, lease = running.computed, running.lease
        end = min(length, max(start + self.settings.chunk_tokens, lease.cached_tokens))
        return min([end, *(point for point in lease.save_at if point > start)])

    def _decode(self, request: Request, running: Running) -> None:
        start = running.computed
        if self.speculation is not None and running.drafted >= 0:
            self._decode_drafted(request, running, self.speculation)
            return
        if not self._grow(request, start + 1):
            return
        run = self._run(running, request.tokens[start : start + 1], start)
        run.write()
        self.ran(request, running, run)
        self._publish(request, running, start + 1, wanted=self._is_due(start, start + 1))
        request.output.append(self.sampler(run.logits[-1]))

    def _decode_drafted(self, request: Request, running: Running, speculation: Speculation) -> None:
        """Run a draft's proposals as one chunk and keep those that the model would have said itself."""
        start = running.computed
        count = min(speculation.proposals, request.new_tokens - len(request.output) - 1)
        if not self._grow(request, start + 1 + count):
            return
        tokens = request.tokens
        proposed = speculation.propose(running, tokens, count)
        run = self._run(running, [*tokens[start:], *proposed], start)
        said = [self.sampler(logits) for logits in run.logits]
        agreed = next((i for i, token in enumerate(proposed) if token != said[i]), count)
        end = start + 1 + agreed
        if agreed < count:
            run = self._without_rejected(running, run, [*tokens[start:], *proposed[:agreed]])
        else:
            run.write()
        self.cache.truncate(running.lease, end)
        running.drafted = min(running.drafted, end)
        request.output += said[: agreed + 1]
        speculation.follow(running, request.tokens, end)
        self.ran(request, running, run)
        self._publish(request, running, end, wanted=self._is_due(start, end))

    def _without_rejected(self, running: Running, run: Pass, kept: list[int]) -> Pass:
        """Rows of rejected tokens are not written; a recurrent state is computed again, from where it was."""
        if running.runner.can_cut:
            run.write(run.start + len(kept))
            return run.until(run.start + len(kept))
        run = self._run(running, kept, run.start)
        run.write()
        return run

    def _run(self, running: Running, tokens: list[int], start: int) -> Pass:
        lease = running.lease
        gate = (lambda layer_id: self.cache.wait_layer(lease, layer_id)) if lease.loading or lease.failure else None
        return running.runner.run(running.rows, tokens, start, gate)

    def ran(self, request: Request, running: Running, run: Pass) -> None:  # noqa: ARG002
        """A run's state is written. Whoever wants to see every token's logits overrides this."""
        running.computed = run.start + len(run.logits)

    def _is_due(self, start: int, end: int) -> bool:
        every = self.settings.commit_pages * self.cache.page_size
        return every > 0 and start // every < end // every

    def _publish(self, request: Request, running: Running, end: int, *, wanted: bool) -> None:
        """Save the state where the cache asked for it, and commit; or only say how far the request is."""
        lease = running.lease
        page = lease.save_pages.get(end)
        if end <= lease.committed and end not in lease.save_at:
            self.cache.advance(lease, end)
        elif page is not None:
            assert self.cache.point is not None
            running.rows.save_state(self.cache.point, page)
            self.cache.commit(lease, request.tokens[:end], {end: page}, without=self._not_drafted(running))
        elif wanted:
            self.cache.commit(lease, request.tokens[:end], without=self._not_drafted(running))
        else:
            self.cache.advance(lease, end)

    def _not_drafted(self, running: Running) -> tuple[str, ...]:
        return () if self.speculation is None or running.drafted >= 0 else (self.speculation.component,)

    def _finish(self, request: Request, running: Running) -> None:
        lease, end = running.lease, running.computed
        states: dict[int, int] = {}
        if lease.state_page is not None and request.save_output and self._can_give_state(running):
            states[end] = lease.state_page
        self.cache.commit(lease, request.tokens[:end], states, without=self._not_drafted(running))
        self._leave(request)

    def _can_give_state(self, running: Running) -> bool:
        """Whether the running state is worth publishing as it is, the request having ended."""
        lease, end = running.lease, running.computed
        return end % self.cache.save_grid_tokens == 0 and end > lease.prompt_tokens and end not in lease.saved

    def _grow(self, request: Request, end: int) -> bool:
        """Pages for the tokens before `end`. False if the request had to give up its own for older ones."""
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
        """Take a request's pages; it goes on later from what the cache still has then."""
        request.preemptions += 1
        self._leave(request)
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        assert request.running is not None
        self.cache.release(request.running.lease)
        request.running = None
        self.running.remove(request)
