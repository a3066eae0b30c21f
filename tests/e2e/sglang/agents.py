"""Agents in sessions: each speaks turn by turn, some step back or branch, and end at any time; others ask once, without one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

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
