"""Compares hits of agents in sessions, in the scheduler's model: SGLang's own cache and ours, told of the sessions or not.

Run it with the engine's python: `python tests/e2e/sglang/session_hits.py --seeds 20`. It prints a line for each kind of model
and each cache: the prompt tokens that it had. Pools are small, so that texts of ended sessions are in the way.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hit_comparison import Counting
from model_caches import our_cache
from scheduler_model import Case, Pools
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

VOCABULARY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt of a session, or of none."""

    session: str | None
    prompt: list[int]
    new_tokens: int


@dataclass(slots=True)
class Agent:
    """A session that is open, and the texts from which it may go on."""

    name: str
    texts: list[list[int]]
    turns: int


@dataclass(slots=True)
class Agents:
    """Draws waves by one seed. A session's next turn comes some waves later, and the order of sessions is random.

    Each agent speaks turn by turn; some step back or branch, and end at any time. Others ask once, without a session.

    Args:
        seed: of the draws.
        at_once: sessions that are open at a time.
        turns: of the longest session.
        longest: tokens of a prompt, beyond which a session ends.
        alone: the share of requests without a session, which nothing continues.
    """

    seed: int
    at_once: int = 6
    turns: int = 8
    longest: int = 320
    alone: float = 0.15
    closed: list[str] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _heads: list[list[int]] = field(init=False)
    _open: list[Agent] = field(init=False, default_factory=list)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._random = random.Random(f"agents {self.seed}")
        self._heads = [self._tokens(length) for length in (24, 60, 90)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(VOCABULARY) for _ in range(count)]

    def wave(self) -> list[Ask]:
        """One to three requests of different sessions. `closed` has the sessions that are to be closed before."""
        draw = self._random
        self.closed = []
        for agent in [each for each in self._open if each.turns <= 0 or len(each.texts[-1]) > self.longest]:
            self._open.remove(agent)
            self.closed.append(agent.name)
        while len(self._open) < self.at_once:
            self._count += 1
            text = draw.choice(self._heads) + self._tokens(draw.randint(5, 40))
            self._open.append(Agent(f"a{self.seed}.{self._count}", [text], draw.randint(1, self.turns)))
        asks = []
        for agent in draw.sample(self._open, draw.randint(1, 3)):
            if draw.random() < self.alone:
                asks.append(
                    Ask(session=None, prompt=draw.choice(self._heads) + self._tokens(draw.randint(5, 120)), new_tokens=4)
                )
                continue
            agent.turns -= 1
            text = agent.texts[-1] if draw.random() < 0.85 else draw.choice(agent.texts)
            if draw.random() < 0.1:
                text = text[: draw.randint(len(text) // 2, len(text))]
            asks.append(
                Ask(session=agent.name, prompt=text + self._tokens(draw.randint(3, 40)), new_tokens=draw.randint(1, 24))
            )
        return asks

    def answered(self, ask: Ask, answer: list[int]) -> None:
        """A request has its answer, from which its session may go on."""
        for agent in self._open:
            if agent.name == ask.session:
                agent.texts = [*agent.texts[-3:], ask.prompt + answer]


KINDS = {
    "full": Case(full_tokens=1400),
    "full16": Case(full_tokens=1600, page_size=16),
    "swa": Case(full_tokens=1400, window=31, window_tokens=420),
    "mamba": Case(full_tokens=1600, states=24, chunk=128),
    "mamba_extra": Case(full_tokens=1920, states=34, extra_buffer=True, page_size=16, chunk=128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A cache, and what it is told."""

    is_ours: bool
    has_sessions: bool = False
    infers: bool = False
    policy: str = "lru"


RIVALS = {
    "SGLang": Rival(is_ours=False),
    "SGLang, sessions": Rival(is_ours=False, has_sessions=True),
    "ours": Rival(is_ours=True),
    "ours, inferred": Rival(is_ours=True, infers=True),
    "ours, sessions": Rival(is_ours=True, has_sessions=True),
    "density": Rival(is_ours=True, policy="density"),
    "density, sessions": Rival(is_ours=True, has_sessions=True, policy="density"),
}


def hits(case: Case, rival: Rival, seed: int, waves: int) -> tuple[int, int]:
    """The prompt tokens of a run, and how many of them the cache had."""
    pools = Pools(replace(case, sessions=rival.has_sessions))
    cache: Any = (
        our_cache(pools, policy=rival.policy, infers=rival.infers) if rival.is_ours else UnifiedRadixCache(pools.params)
    )
    scheduler, agents = Counting(pools, cache), Agents(seed)
    for _ in range(waves):
        asks = agents.wave()
        for name in agents.closed if rival.has_sessions else ():
            cache.release_radix_session(name)
        asked = [
            scheduler.submit(list(ask.prompt), ask.new_tokens, session=ask.session if rival.has_sessions else None)
            for ask in asks
        ]
        while scheduler.waiting or scheduler.running or scheduler.prefilling:
            scheduler.step()
        for ask, req in zip(asks, asked, strict=True):
            agents.answered(ask, list(req.output_ids))
    return scheduler.counts.prompt_tokens, sum(scheduler.hits.values())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rivals", default=";".join(RIVALS), help="with semicolons between")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--waves", type=int, default=120)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for kind in given.kinds.split(","):
        for name in given.rivals.split(";"):
            found = [hits(KINDS[kind], RIVALS[name], seed, given.waves) for seed in range(given.seeds)]
            prompts, had = sum(a for a, _ in found), sum(b for _, b in found)
            print(f"{kind:12} {name:18} {had:9,} of {prompts:9,} prompt tokens: {100 * had / prompts:5.1f} %", flush=True)


if __name__ == "__main__":
    main()
