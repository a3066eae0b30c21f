"""What the scheduler of a simulated server tells its cache of sessions, and of requests to come: at any moment, and all of it
may be wrong. It counts what it says: each hint has one outcome, or is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from unified_tree import Key
from unified_tree.controllers import PrefixCache

Prompt = tuple[str, list[int]]
VERBS = ("retain", "pin", "demote", "share", "prefetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScenario:
    """How a server speaks of its sessions.

    Attributes:
        names: of so many sessions; the names of ended ones are used again.
        session_texts: see TreeSettings; `max_sessions`, `max_hints`, `infers`: see PrefixCache.
        talk: the chance that something is said before an action.
        takes_back: the chance that a refused call is made again after all hints and sessions have ended: it is refused again.
        retain_ns: for how long at most something is retained.
    """

    names: int
    session_texts: int
    max_sessions: int
    max_hints: int
    infers: bool
    talk: float
    takes_back: float
    retain_ns: int

    @classmethod
    def of(cls, seed: int, tick_ns: int) -> SessionScenario | None:
        """What a seed decides; None for a server that knows of no sessions."""
        rng = Random(f"sessions {seed}")
        if rng.random() < 0.4:
            return None
        return cls(
            names=rng.choice([1, 3, 8]),
            session_texts=rng.choice([1, 2, 8]),
            max_sessions=rng.choice([1, 2, 100, 100]),
            max_hints=rng.choice([1, 3, 100, 100]),
            infers=rng.random() < 0.5,
            talk=rng.choice([0.1, 0.4, 0.8]),
            takes_back=rng.choice([0.0, 0.2, 1.0]),
            retain_ns=tick_ns * rng.choice([1, 10, 100]),
        )


class SimSessions:
    """The sessions of one cache, and what was said of them.

    Args:
        rng: its own, so that a server does the same whether or not it speaks.

    Attributes:
        given: hints by verb. `asked`: the keys of those that name a prompt.
    """

    def __init__(self, scenario: SessionScenario, cache: PrefixCache, rng: Random) -> None:
        self.scenario = scenario
        self.cache = cache
        self.rng = rng
        self.given: Counter[str] = Counter()
        self.asked: list[Key] = []
        self._last: dict[str, Prompt] = {}
        self._texts: list[Prompt] = []

    def of_prompt(self, namespace: str, tokens: list[int]) -> str | None:
        """Whose turn a prompt is: mostly of a session whose last prompt it continues."""
        rng = self.rng
        before = [name for name, text in self._last.items() if text[0] == namespace and tokens[: len(text[1])] == text[1]]
        name = rng.choice([*before, self._name()]) if before and rng.random() < 0.8 else self._name()
        return name if rng.random() < 0.8 else None

    def admitted(self, namespace: str, tokens: list[int], session: str | None) -> None:
        """A prompt was admitted."""
        if session is not None:
            self._last[session] = namespace, tokens
        self._texts = [*self._texts[-9:], (namespace, tokens)]

    def _name(self) -> str:
        return f"s{self.rng.randrange(self.scenario.names)}"

    def talk(self) -> str:
        """Perhaps say something; what it was."""
        rng, cache = self.rng, self.cache
        if rng.random() >= self.scenario.talk:
            return ""
        name, dice = self._name(), rng.random()
        if dice < 0.15:
            cache.end_session(name)
            assert cache.sessions.find(name) is None
            return "end"
        if dice < 0.25:
            parent = self._name()
            if parent != name and cache.sessions.find(name) is None:
                cache.open_session(name, parent)
            return "open"
        target = self._target()
        if dice < 0.3:
            cache.hints.unpin(target)
            return "unpin"
        return self._hint(rng.choice(VERBS), target)

    def _target(self) -> Hashable | Key:
        """A session, or a prompt or a part of it."""
        rng = self.rng
        if not self._texts or rng.random() < 0.6:
            return self._name()
        namespace, tokens = rng.choice(self._texts)
        key = Key(tokens[: rng.choice([len(tokens), rng.randrange(1, len(tokens) + 1)])], namespace)
        self.asked.append(key)
        return key

    def _hint(self, verb: str, target: Hashable | Key) -> str:
        rng, hints = self.rng, self.cache.hints
        before = self.outcomes(verb)
        self.given[verb] += 1
        seconds = self.scenario.retain_ns * rng.random() / 1e9 + 1e-9
        if verb != "retain":
            is_taken = getattr(hints, verb)(target)
        elif hints.has_one_clock and (isinstance(target, Key) or rng.random() < 0.5):
            is_taken = hints.retain(target, seconds)
        elif isinstance(target, Key):
            self.given[verb] -= 1
            return ""
        else:
            is_taken = hints.retain(target)
        assert self.outcomes(verb)["refused"] - before["refused"] == (not is_taken)
        return f"{verb} {is_taken}"

    def outcomes(self, verb: str) -> Counter[str]:
        """How the hints of a verb ended."""
        return Counter({how: count for (of, how), count in self.cache.stats().hints.items() if of == verb})

    def check(self) -> None:
        """Each hint is open or has one outcome, and what is open is bounded."""
        cache, scenario = self.cache, self.scenario
        ended = {verb: self.outcomes(verb).total() for verb in VERBS}
        assert all(ended[verb] <= self.given[verb] for verb in VERBS), (ended, self.given)
        assert sum(ended.values()) + len(cache.hints) == self.given.total(), (ended, self.given, len(cache.hints))
        assert len(cache.hints) <= scenario.max_hints
        assert len(cache.sessions) <= scenario.max_sessions

    def take_all_back(self) -> None:
        """All sessions end, and with them their hints, and so do those of prompts that may be taken back."""
        for session in list(self.cache.sessions):
            self.cache.end_session(session.name)
        for key in self.asked:
            self.cache.hints.unpin(key)
        self.asked = []
        assert not len(self.cache.sessions)
