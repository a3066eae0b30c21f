"""PrefixCache as a small continuous-batching scheduler drives it, with every byte checked."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from kinds import SETS
from memory_model import Request, Runner

from unified_tree import OutOfPagesError
from unified_tree.controllers import PrefixCache

PAGE_SIZE = 4
CHUNK_TOKENS = 12
MAX_RUNNING = 5


class Scheduler:
    """First come, first served; a step is one prefill chunk or one decoded token a request; the youngest is preempted."""

    def __init__(self, runner: Runner, prompts: list[tuple[list[int], list[int]]]) -> None:
        self.runner = runner
        self.cache = runner.cache
        self.waiting = deque(prompts)
        self.running: list[tuple[Request, list[int]]] = []
        self.finished = 0
        self.preemptions = 0

    def step(self) -> None:
        while self.waiting and len(self.running) < MAX_RUNNING and self.admit():
            pass
        for request, output in list(self.running):
            if request in self.runner.requests:
                self.advance(request, output)
        self.runner.check()

    def admit(self) -> bool:
        prompt, output = self.waiting[0]
        try:
            request = self.runner.start(prompt)
        except OutOfPagesError:
            return False
        self.waiting.popleft()
        self.running.append((request, output))
        return True

    def advance(self, request: Request, output: list[int]) -> None:
        lease = request.lease
        done = len(request.tokens) - lease.prompt_tokens
        if request.prefilled and done == len(output):
            self.finish(request, output)
            return
        if request.prefilled:
            request.tokens.append(output[done])
        target = min(len(request.tokens), request.computed + CHUNK_TOKENS)
        while True:
            try:
                self.cache.allocate(lease, target)
                break
            except OutOfPagesError:
                victim, rest = self.running[-1]
                self.preempt(victim, rest)
                if victim is request:
                    return
        self.runner.compute(request, target)
        if target <= lease.prompt_tokens or target % PAGE_SIZE == 0:
            self.runner.commit(request)
        else:
            self.cache.advance(lease, target)

    def preempt(self, request: Request, output: list[int]) -> None:
        """Back to the queue with what it has said so far as part of its prompt; what it published stays."""
        assert len(self.running) > 1, "one request alone must fit"
        said = len(request.tokens) - request.lease.prompt_tokens
        self.leave(request, output)
        self.waiting.appendleft((request.tokens, output[said:]))
        self.preemptions += 1

    def finish(self, request: Request, output: list[int]) -> None:
        self.runner.commit(request)
        self.leave(request, output)
        self.finished += 1

    def leave(self, request: Request, output: list[int]) -> None:
        self.runner.finish(request)
        self.running.remove((request, output))


@pytest.mark.parametrize("policy", ["lru", "cost"])
@pytest.mark.parametrize("kinds", SETS)
def test_all_requests_finish_and_all_pages_come_home(kinds: str, policy: str) -> None:
    rng = Random(kinds)
    system = [rng.randrange(50) for _ in range(17)]
    turns = [[*system, *(rng.randrange(50) for _ in range(rng.randrange(3, 30)))] for _ in range(6)]
    prompts = []
    for _ in range(30):
        turn = rng.randrange(len(turns))
        output = [rng.randrange(50) for _ in range(rng.randrange(1, 15))]
        prompts.append((turns[turn], output))
        turns[turn] = [*turns[turn], *output, *(rng.randrange(50) for _ in range(4))][:90]
    components = SETS[kinds]
    counts = {c.name: 44 if c.name in ("full", "packed", "draft") else 24 for c in components if c.shares is None}
    cache = PrefixCache(components, PAGE_SIZE, counts, policy=policy)
    scheduler = Scheduler(Runner(cache, components), prompts)
    steps = 0
    while scheduler.waiting or scheduler.running:
        scheduler.step()
        steps += 1
        assert steps < 3000, "no progress"
    stats = cache.stats()
    assert scheduler.finished == 30
    assert scheduler.preemptions > 0
    assert stats.evictions > 0
    assert stats.hit_tokens > stats.prompt_tokens // 5
    scheduler.runner.end()
