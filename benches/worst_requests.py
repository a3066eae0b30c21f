"""A coding agent's session through `PrefixCache`: which single call is the longest?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from benches.serving_scenarios import CHUNK_TOKENS, TRACES
from benches.shapes import FULL, Int64s, window
from benches.worst_case import Call, WorstCase
from unified_tree import Key
from unified_tree.controllers import PrefixCache

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.traces.workload import Request

WINDOW_TOKENS = 512
LONG_TOKENS = 100_000
MAX_TURNS = 40
MAX_ANSWER_TOKENS = 100
TRACE = TRACES / "kv-cache-tester" / "claude_code.runs.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, then its answer."""

    tokens: Int64s
    prompt_tokens: int

    def cut(self, prompt_tokens: int) -> Turn:
        """The same with a shorter prompt."""
        answer = self.tokens[self.prompt_tokens :]
        return Turn(np.concatenate((self.tokens[:prompt_tokens], answer)), prompt_tokens)


class AgentRequests(WorstCase):
    """An agent's last turns whose prompts stay below the size, and the next one cut to it, as a scheduler serves them."""

    question = (
        "How long is the longest call of serving an agent's session with prompts of up to so many tokens, full and window?"
    )
    silent_on = "requests that overlap, other tiers"
    components = "full_swa"
    variants = ("page 64", "page 1", "page 1, decoding")
    varied = "prompt tokens"
    sizes = (1_000, 10_000, 100_000)
    smoke_sizes = (300, 900)
    names_calls = True

    @classmethod
    def page(cls, variant: str) -> int:
        """As the variant says."""
        return int(variant.partition(",")[0].split()[1])

    @classmethod
    def prepare(cls) -> None:
        """Read the trace."""
        turns_of_trace()

    def build(self) -> None:
        """The turns, out of the trace if it is there; an empty cache. Decoding is with a window pool that is always short."""
        turns = stand_in(self.size) if self.smoke else turns_of_trace() or stand_in(self.size)
        within = list(takewhile(lambda turn: turn.prompt_tokens <= self.size, turns))
        self.turns = [*within[-MAX_TURNS:], *(turn.cut(self.size) for turn in turns[len(within) :][:1])]
        self.decoding = "decoding" in self.variant
        counts = {"swa": 2 * CHUNK_TOKENS} if self.decoding else {}
        self.cache = PrefixCache([FULL, window(WINDOW_TOKENS)], self.page(self.variant), counts)

    def calls(self) -> Iterator[Call]:
        """Acquire, allocate and commit chunk by chunk, the answer in one piece or token by token, release."""
        cache = self.cache
        for turn in self.turns:
            lease = None

            def acquire(turn: Turn = turn) -> int:
                nonlocal lease
                lease = cache.acquire(Key(turn.tokens[: turn.prompt_tokens]))
                return lease.cached_tokens

            yield acquire
            assert lease is not None
            ends = [*range(lease.compute_from + CHUNK_TOKENS, turn.prompt_tokens, CHUNK_TOKENS), turn.prompt_tokens]
            step = 1 if self.decoding else max(1, turn.tokens.size - turn.prompt_tokens)
            for end in [*ends, *range(turn.prompt_tokens + step, turn.tokens.size + 1, step)]:
                tokens = end if end <= turn.prompt_tokens else turn.tokens[:end]

                def allocate(lease=lease, end=end) -> None:
                    cache.allocate(lease, end)

                def commit(lease=lease, tokens=tokens) -> None:
                    cache.commit(lease, tokens)

                yield allocate
                yield commit

            def release(lease=lease) -> None:
                cache.release(lease)

            yield release


@lru_cache(maxsize=1)
def turns_of_trace() -> tuple[Turn, ...]:
    """The turns of the agent with most of them among those whose prompts grow long; none where the trace is not there."""
    from unified_tree.controllers.workbench.traces.trace import read_trace

    if not TRACE.exists():
        return ()
    agents: dict[int, list[Request]] = {}
    for request in read_trace(TRACE).requests:
        agents.setdefault(request.chain, []).append(request)
    long = [turns for turns in agents.values() if max(turn.prompt_tokens for turn in turns) >= LONG_TOKENS]
    turns = max(long, key=len, default=[])
    return tuple(Turn(turn.tokens()[: turn.prompt_tokens + MAX_ANSWER_TOKENS], turn.prompt_tokens) for turn in turns)


def stand_in(size: int) -> tuple[Turn, ...]:
    """Turns that grow evenly up to `size` tokens, each going on from the answer before."""
    whole = np.arange(size + 100, dtype=np.int64)
    prompts = [size * turn // 20 for turn in range(1, 21)]
    return tuple(Turn(whole[: prompt + 40], prompt) for prompt in prompts)
