"""The built-in workload: coding agents of several tenants, as multi-turn sessions, made from a seed.

What it has in common with real agent traffic, and why caches differ on it: every session opens with its tenant's system
prompt (a few are popular, most are not); each turn appends tool results and the previous answer to a growing context; think
times are long-tailed, so a session may return after its state has been evicted; some turns are retried or edited, which
branches the context a little before its end; some fan out into sub-agents that share only the system prompt; a context
that has grown too long is compacted to a summary behind the same system prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order, pack_runs
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.random import Generator

BLOCK_TOKENS = 16
PAYING_TENANTS = 3
"""The most popular tenants' requests have a higher priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """The shape of the built-in workload; lengths in tokens, times in seconds.

    Attributes:
        request_count: requests in all.
        seed: of everything that is drawn.
        tenant_count: tenants, the k-th drawn in proportion to 1 / k; each has a system prompt of its own.
        system_tokens: smallest and largest system prompt.
        session_gap_s: mean time between the starts of two sessions.
        mean_turns: mean turns of a session.
        turn_tokens: median of what a turn adds; long-tailed.
        output_tokens: median answer; long-tailed.
        think_s: median time between two turns; long-tailed.
        retry_share, fan_out_share: shares of the turns that branch off an earlier point, or start a sub-agent.
        max_context_tokens: where a context is compacted.
    """

    request_count: int = 6000
    seed: int = 0
    tenant_count: int = 12
    system_tokens: tuple[int, int] = (1_500, 9_000)
    session_gap_s: float = 12.0
    mean_turns: float = 14.0
    turn_tokens: int = 700
    output_tokens: int = 180
    think_s: float = 15.0
    retry_share: float = 0.12
    fan_out_share: float = 0.06
    max_context_tokens: int = 60_000


@dataclass(slots=True)
class _Writer:
    """Makes sessions until there are enough requests."""

    options: SyntheticOptions
    draw: Generator
    next_block: int = 0
    next_chain: int = 0
    requests: list[Request] = field(default_factory=list)

    def fresh(self, tokens: float) -> list[int]:
        """Blocks that nobody has seen, about `tokens` tokens of them."""
        first, count = self.next_block, max(1, round(tokens / BLOCK_TOKENS))
        self.next_block += count
        return list(range(first, first + count))

    def long_tailed(self, median: float, sigma: float) -> float:
        return median * float(np.exp(sigma * self.draw.standard_normal()))

    def session(self, start_s: float, system: list[int], priority: int, depth: int = 0) -> None:
        """One agent from its first turn to its last; a sub-agent is one of half the length."""
        options, draw = self.options, self.draw
        chain, now_s = self.next_chain, start_s
        self.next_chain += 1
        context = system + self.fresh(self.long_tailed(2 * options.turn_tokens, 0.8))
        turn_ends = [len(context)]
        for _ in range(draw.geometric((1 + depth) / options.mean_turns)):
            output_tokens = max(1, round(self.long_tailed(options.output_tokens, 0.9)))
            self._request(now_s, context, output_tokens, chain, priority)
            if depth == 0 and draw.random() < options.fan_out_share:
                self.session(now_s + 1.0, system, priority, depth + 1)
            now_s += self.long_tailed(options.think_s, 1.4)
            if draw.random() < options.retry_share:
                kept = turn_ends[-min(len(turn_ends), int(draw.integers(1, 4)))]
                context, turn_ends = context[:kept], [end for end in turn_ends if end <= kept]
            else:
                context = context + self.fresh(output_tokens)
            context = context + self.fresh(self.long_tailed(options.turn_tokens, 1.1))
            if len(context) * BLOCK_TOKENS > options.max_context_tokens:
                context, turn_ends = system + self.fresh(3 * options.turn_tokens), []
            turn_ends.append(len(context))

    def _request(self, now_s: float, context: list[int], output_tokens: int, chain: int, priority: int) -> None:
        rest_tokens = int(self.draw.integers(BLOCK_TOKENS))
        self.requests.append(
            Request(
                index=0,
                arrival_s=now_s,
                runs=pack_runs(np.array(context, np.int64)),
                block_tokens=BLOCK_TOKENS,
                prompt_tokens=len(context) * BLOCK_TOKENS + rest_tokens,
                output_tokens=output_tokens,
                priority=priority,
                chain=chain,
            )
        )


def synthetic_workload(options: SyntheticOptions | None = None) -> Workload:
    """The built-in workload. The same options give the same requests on every machine."""
    options = options or SyntheticOptions()
    writer = _Writer(options, np.random.default_rng(options.seed))
    low, high = options.system_tokens
    systems = [writer.fresh(tokens) for tokens in np.linspace(low, high, options.tenant_count)]
    popularity = 1 / np.arange(1, options.tenant_count + 1)
    popularity /= popularity.sum()
    start_s = 0.0
    while len(writer.requests) < options.request_count:
        tenant = int(writer.draw.choice(options.tenant_count, p=popularity))
        writer.session(start_s, systems[tenant], priority=int(tenant < PAYING_TENANTS))
        start_s += options.session_gap_s * float(writer.draw.exponential())
    requests = in_arrival_order(writer.requests[: options.request_count])
    name = f"synthetic agents (seed {options.seed})"
    return Workload(name=name, requests=requests, block_count=writer.next_block, notes=(f"{writer.next_chain} agents",))


MULTITURN = "multiturn"
"""The workload's name on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiturnOptions:
    """The parameters of the published benchmark; lengths in tokens.

    Attributes:
        clients: conversations.
        rounds: requests of each.
        parallel: requests out at the same time; clients take turns in a fixed order.
        request_tokens: the first prompt.
        answer_tokens: every answer.
        follow_up_tokens: what each later prompt has behind the conversation so far.
    """

    clients: int = 128
    rounds: int = 3
    parallel: int = 4
    request_tokens: int = 8000
    answer_tokens: int = 200
    follow_up_tokens: int = 128

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be one or more, not {getattr(self, name)}")


def multiturn_workload(options: MultiturnOptions | None = None) -> Workload:
    """The workload, round by round; a client's next request arrives when its last answer has ended and its turn has come."""
    o = options or MultiturnOptions()
    block_tokens = gcd(o.request_tokens, o.answer_tokens, o.follow_up_tokens)
    first, answer, further = (tokens // block_tokens for tokens in (o.request_tokens, o.answer_tokens, o.follow_up_tokens))
    client_blocks = first + o.rounds * (answer + further)
    requests: list[Request] = []
    for turn in range(o.rounds):
        prompt = first + turn * (answer + further)
        for client in range(o.clients):
            begin = client * client_blocks
            requests.append(
                Request(
                    index=len(requests),
                    arrival_s=0.0,
                    runs=np.array([begin, prompt]),
                    answer_runs=np.array([begin + prompt, answer]),
                    block_tokens=block_tokens,
                    prompt_tokens=prompt * block_tokens,
                    output_tokens=o.answer_tokens,
                    chain=client,
                )
            )
    return Workload(
        name=f"{MULTITURN} ({o.clients} clients, {o.rounds} rounds of {o.request_tokens} + {o.follow_up_tokens} tokens)",
        requests=tuple(requests),
        block_count=o.clients * client_blocks,
        notes=(f"answers of {o.answer_tokens:,} tokens; {o.parallel} requests at a time, clients in a fixed order",),
        parallel=o.parallel,
    )
