"""Whole requests as schedulers serve them: chats, agents with long prompts, answers token by token, traces."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import numpy as np

from benches.contestants import ROOT
from benches.scenarios import Scenario
from benches.serving import SERVED_PARTS, ServingSubject
from benches.subject import Capacity, Request, Tokens, UnsupportedError

CHUNK_TOKENS = 8192
DECODED_TOKENS = 64
MAX_ANSWER_TOKENS = 200
STAND_IN_TOKENS = 1024
STATE_TOKENS = 512
"""A state's share of the capacity: so many tokens a state."""
TRACES = Path(os.environ.get("UNIFIED_TREE_TRACES", ROOT.parent / "shared" / "traces"))


class Serve(Scenario):
    """One request after another, each from arrival to end, over a cache that holds a part of them."""

    silent_on = "requests that overlap, aborts, what the model computes"
    warm_up = 0
    singly: ClassVar[bool] = False

    repeats = True

    def begin_round(self) -> None:
        """An empty cache, and the same requests from the first on."""
        self.random = self.new_random()
        self.prompt_tokens = self.hit_tokens = self.requests_served = 0
        size = self.capacity_tokens()
        capacity = Capacity(full_tokens=size, window_tokens=size // 2 // 64 * 64, states=max(64, size // STATE_TOKENS))
        self.subject.open(self.case.components, self.case.page_size, capacity)
        self.coming = self.requests()

    def capacity_tokens(self) -> int:
        """What the pool of full attention holds."""
        raise NotImplementedError

    def requests(self) -> Iterator[tuple[Tokens, int]]:
        """Prompt and answer of each, and how long the prompt is."""
        raise NotImplementedError

    def sample(self) -> int:
        """One request."""
        tokens, prompt_tokens = next(self.coming)
        request = self.serve(tokens, prompt_tokens)
        self.answer(request.cached_tokens)
        self.prompt_tokens += prompt_tokens
        self.hit_tokens += request.cached_tokens
        for name in SERVED_PARTS:
            best, spent = self.parts_ns.setdefault(name, []), request.parts_ns.get(name, 0)
            if len(best) == self.requests_served:
                best.append(spent)
            best[self.requests_served] = min(best[self.requests_served], spent)
        self.requests_served += 1
        return sum(request.parts_ns.values())

    def serve(self, tokens: Tokens, prompt_tokens: int) -> Request:
        """From arrival to end."""
        subject = cast(ServingSubject, self.subject)
        request = subject.begin(tokens[:prompt_tokens])
        subject.prefill(request, CHUNK_TOKENS)
        if len(tokens) > prompt_tokens:
            subject.decode(request, len(tokens) - prompt_tokens, singly=self.singly)
        subject.finish(request, tokens)
        return request

    def facts(self) -> dict[str, float]:
        """How much of the prompts was cached."""
        return {
            "hit_rate": round(self.hit_tokens / max(1, self.prompt_tokens), 4),
            "hit_tokens": self.hit_tokens,
            "prompt_tokens": self.prompt_tokens,
        }


class ServeChats(Serve):
    """Chats with one system prompt, turns in random order; half of them fit."""

    question = "What does a chat's turn cost the scheduler, 128 new tokens and 200 of answer, when half of the chats fit?"
    system_tokens, turn_tokens, output_tokens, turns = 1024, 128, 200, 10

    def capacity_tokens(self) -> int:
        """Half of all tokens."""
        return (self.system_tokens + self.case.paths * self.turns * (self.turn_tokens + self.output_tokens)) // 128 * 64

    def requests(self) -> Iterator[tuple[Tokens, int]]:
        """Turn by turn; in rounds without end."""
        system = array("q", range(10, 10 + self.system_tokens))
        while True:
            histories = [system[:] for _ in range(self.case.paths)]
            order = np.repeat(np.arange(self.case.paths), self.turns)
            self.random.shuffle(order)
            for chat in order:
                history = histories[chat]
                history.extend(self.tokens(self.turn_tokens, 1000))
                prompt_tokens = len(history)
                history.extend(self.tokens(self.output_tokens, 1000))
                yield history[:], prompt_tokens


class ServeChatsDecoding(ServeChats):
    """The same, each token of the answer by itself."""

    question = "What does the same turn cost when its 200 tokens of answer come one by one?"
    singly = True


class ServeAgents(ServeChats):
    """Agents whose prompts grow up to `length` tokens, a result of a tool at each turn; half of them fit."""

    question = "What does an agent's turn cost, 2,500 new tokens after up to 110,000, when half of the agents fit?"
    system_tokens, turn_tokens, output_tokens = 12_000, 2_500, 100

    def set_up(self) -> None:
        """As many turns as the longest prompt has room for."""
        self.system_tokens = min(self.system_tokens, self.case.length // 2)
        self.turns = max(1, (self.case.length - self.system_tokens) // (self.turn_tokens + self.output_tokens))


class ServeNextPage(Serve):
    """Prompts of one known text of `length` tokens and a page that is new; then 64 tokens of answer, one by one."""

    question = "What does each step of a request cost by the length of what is cached: one new page, 64 tokens of answer?"
    silent_on = "evictions, chunks"
    singly = True

    def capacity_tokens(self) -> int:
        """Room for all."""
        return 2 * self.case.length + self.case.samples * 4 * (self.case.page_size + DECODED_TOKENS) + (1 << 16)

    def begin_round(self) -> None:
        """The text becomes known."""
        super().begin_round()
        self.text = self.tokens(self.case.length, 1000)
        self.serve(self.text, len(self.text))

    def requests(self) -> Iterator[tuple[Tokens, int]]:
        """All go on from the text."""
        while True:
            tokens = self.text + self.tokens(self.case.page_size + DECODED_TOKENS, 200_000, 1 << 30)
            yield tokens, len(tokens) - DECODED_TOKENS


class KeyFromList(Scenario):
    """A list of tokens becomes a key."""

    question = "What does it cost to make a prompt's key of a list of integers?"
    silent_on = "keys of arrays, which `serve_next_page` counts"

    def set_up(self) -> None:
        """The list."""
        self.list = self.tokens(self.case.length).tolist()

    def sample(self) -> int:
        """One key."""
        return cast(ServingSubject, self.subject).key(self.list)


class ServeTrace(Serve):
    """The first requests of a recorded trace in order of arrival, one at a time; small cases do without it."""

    file: ClassVar[str]

    def set_up(self) -> None:
        """The trace must be there."""
        self.trace = TRACES / self.file
        self.is_small = self.case.length <= STAND_IN_TOKENS
        if not self.is_small and not self.trace.exists():
            raise UnsupportedError(f"there is no {self.file} in the folder that UNIFIED_TREE_TRACES names")

    def capacity_tokens(self) -> int:
        """As the case says."""
        return max(self.case.length, 4 * STAND_IN_TOKENS)

    def requests(self) -> Iterator[tuple[Tokens, int]]:
        """As recorded; answers are cut to 200 tokens."""
        count = self.case.samples
        if self.is_small:
            for turn in range(1, count + 1):
                prompt_tokens = STAND_IN_TOKENS * turn // count
                yield array("q", range(prompt_tokens + 40)), prompt_tokens
            return
        from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace

        for request in read_trace(self.trace, TraceOptions(max_requests=count)).requests:
            end = request.prompt_tokens + min(request.output_tokens, MAX_ANSWER_TOKENS)
            yield array("q", request.tokens()[:end].tobytes()), request.prompt_tokens


class ServeConversationTrace(ServeTrace):
    """Mooncake's conversations."""

    question = "What does a request of recorded chats cost (Mooncake's conversation trace, mean prompt 12,000 tokens)?"
    file = "mooncake/conversation_trace.jsonl.gz"


class ServeAgentTrace(ServeTrace):
    """Coding agents' sessions."""

    question = "What does a request of recorded coding agents cost (kv-cache-tester, sessions interleaved)?"
    file = "kv-cache-tester/claude_code.runs.jsonl.gz"
