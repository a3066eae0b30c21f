"""The multi-turn benchmark that caches behind device memory are measured with, as a workload.

Each client sends a long request, and then, again and again, all of the conversation so far with a short question behind it. No
two clients share a token. A number of requests are out at a time, the other clients wait for their turn: so many conversations
lie between two turns of one that device memory does not hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from unified_tree.controllers.workbench.traces.workload import Request, Workload
from unified_tree.errors import ConfigurationError

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
