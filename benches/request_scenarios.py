"""Whole requests, multi-turn chats over a cache that holds half of them; a commit of one page; a step of a decode batch."""

from __future__ import annotations

from array import array
from time import perf_counter_ns
from typing import Any

import numpy as np

from benches.scenarios import Scenario
from benches.subject import Capacity, Request, Tokens

SYSTEM_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 1024, 128, 200


class ChatRequest(Scenario):
    """Conversations with one system prompt take turns in random order, one request at a time."""

    question = "What does a whole multi-turn chat request cost the scheduler when half of the working set fits?"
    silent_on = "requests that overlap, chunked prefill, aborts"
    warm_up = 0

    def set_up(self) -> None:
        """Conversations and their order; `paths` conversations of ten turns."""
        conversations, turns = self.case.paths, 10
        working_set = SYSTEM_TOKENS + conversations * turns * (TURN_TOKENS + OUTPUT_TOKENS)
        capacity = working_set // 2 // 64 * 64
        self.open(capacity, conversations * turns // 2)
        system = array("q", range(10, 10 + SYSTEM_TOKENS))
        self.histories = [system[:] for _ in range(conversations)]
        self.order = np.repeat(np.arange(conversations), turns)
        self.random.shuffle(self.order)
        self.done = 0
        self.prompt_tokens = self.hit_tokens = 0

    def open(self, full_tokens: int, states: int) -> None:
        """An empty cache that holds half."""
        size = Capacity(full_tokens=full_tokens, window_tokens=full_tokens // 2 // 64 * 64, states=states)
        self.subject.open(self.case.components, self.case.page_size, size)

    def next_request(self) -> tuple[Tokens, Tokens]:
        """The prompt of the next turn, and prompt and output together."""
        history = self.histories[self.order[self.done % len(self.order)]]
        self.done += 1
        history.extend(self.tokens(TURN_TOKENS, 1000))
        prompt = history[:]
        history.extend(self.tokens(OUTPUT_TOKENS, 1000))
        return prompt, history[:]

    def begin(self, prompt: Tokens) -> Request:
        """Admit one request and note its answer."""
        request = self.subject.begin(prompt)
        self.answer(request.cached_tokens)
        self.prompt_tokens += len(prompt)
        self.hit_tokens += request.cached_tokens
        return request

    def end(self, request: Request, tokens: Tokens) -> int:
        """Finish one; returns the time of the whole request."""
        self.subject.finish(request, tokens)
        for name, spent in request.parts_ns.items():
            self.parts_ns.setdefault(name, []).append(spent)
        return sum(request.parts_ns.values())

    def sample(self) -> int:
        """One request from arrival to end."""
        prompt, tokens = self.next_request()
        return self.end(self.begin(prompt), tokens)

    def facts(self) -> dict[str, float]:
        """How much of the prompts was cached."""
        return {"hit_rate": round(self.hit_tokens / max(1, self.prompt_tokens), 4)}


class MixedMultiTurn(ChatRequest):
    """Sixteen requests in flight with their locks held; of four arrivals one is a stranger of 3,000 tokens."""

    question = "The same with sixteen requests in flight, uneven lengths and one-off prompts among the chats?"
    silent_on = "chunked prefill, aborts, preemption"
    max_in_flight = 16

    def set_up(self) -> None:
        """As the chats, and nobody in flight yet."""
        super().set_up()
        self.in_flight = min(self.max_in_flight, max(2, self.case.paths // 8))
        self.running: list[tuple[int, Request, Tokens]] = []

    def next_request(self) -> tuple[Tokens, Tokens]:
        """A turn of uneven length, or a stranger."""
        if self.random.randint(4) == 0:
            prompt = self.tokens(3000, 1000)
            return prompt, prompt + self.tokens(50, 1000)
        busy = {conversation for conversation, _, _ in self.running}
        while (conversation := int(self.order[self.done % len(self.order)])) in busy:
            self.done += 1
        self.done += 1
        self.conversation = conversation
        history = self.histories[conversation]
        history.extend(self.tokens(int(self.random.randint(16, 400)), 1000))
        prompt = history[:]
        history.extend(self.tokens(int(self.random.randint(16, 600)), 1000))
        return prompt, history[:]

    def sample(self) -> int:
        """One request arrives; the one longest in flight ends. The time is that of the one that ends."""
        while True:
            self.conversation = -1
            prompt, tokens = self.next_request()
            self.running.append((self.conversation, self.begin(prompt), tokens))
            if len(self.running) >= self.in_flight:
                _, request, finished = self.running.pop(0)
                return self.end(request, finished)


class CommitPage(Scenario):
    """One lease whose prompt of `length` tokens is committed; a sample is the commit of one page more."""

    question = "What does it cost to commit one page that was computed, by the length of what is committed before it?"
    silent_on = "the page's allocation, evictions, what the first commit behind a long copy finds in the processor's caches"
    warm_up = 20

    def set_up(self) -> None:
        """The prompt, with room for all samples, committed up to `length`."""
        from unified_tree import Key  # a rival's process has no use for it

        case, subject = self.case, self.subject
        self.cache: Any = subject.cache  # type: ignore[attr-defined]  # the contestant is `prefix_cache`
        pages = self.warm_up + case.samples * case.rounds
        self.end = case.length // case.page_size * case.page_size
        prompt = np.frombuffer(self.tokens(self.end + pages * case.page_size), np.int64)
        self.lease = self.cache.acquire(Key(prompt))
        self.cache.allocate(self.lease, self.end)
        self.cache.commit(self.lease, self.end)

    def sample(self) -> int:
        """The next page."""
        cache, lease = self.cache, self.lease
        self.end += self.case.page_size
        cache.allocate(lease, self.end)
        start = perf_counter_ns()
        cache.commit(lease, self.end)
        spent = perf_counter_ns() - start
        self.answer(lease.committed)
        return spent


ROOM_TOKENS = 4096


class DecodeStep(Scenario):
    """`paths` leases of `length` tokens each, which share most of their prompts; a sample is one step of all of them."""

    question = "What does a step cost in which each running request gets a token: pages, windows given back, slots to write to?"
    silent_on = "commits, requests that arrive and end, copies of the tables to a device"
    warm_up = 20

    def set_up(self) -> None:
        """All requests prefilled, and in the batch."""
        from unified_tree import Key  # a rival's process has no use for it

        case, subject = self.case, self.subject
        cache: Any = subject.cache  # type: ignore[attr-defined]  # the contestant is `prefix_cache`
        self.batch = cache.batch(case.paths, case.length + ROOM_TOKENS)
        shared = array("q", range(case.length - 1))
        for path in range(case.paths):
            period = max(case.page_size, cache.layout.save_grid_tokens)  # so that pages end, and states are due, at every step
            kept = case.length - 1 - path % min(period, case.length - 1)
            tokens = np.array([*shared[:kept], case.length + path], np.int64)
            lease = cache.acquire(Key(tokens))
            cache.allocate(lease, len(tokens))
            cache.commit(lease, tokens, dict(lease.save_pages))
            self.batch.add(lease)

    def sample(self) -> int:
        """The requests compute the allocated tokens; each gets a token more, and the slot for it."""
        batch = self.batch
        if batch.lengths.max() == batch.max_tokens:
            batch.truncate(np.full(batch.rows.size, self.case.length))
        start = perf_counter_ns()
        batch.advance()
        batch.allocate()
        for component in batch.tables:
            batch.slots(component)
        spent = perf_counter_ns() - start
        self.answer(int(batch.lengths.sum()))
        return spent
