"""Random prompts of sessions, documents and forks, and a cache of one small page a token that serves them one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from random import Random

from kinds import FULL, MAMBA, swa

from unified_tree import BlockBudget, Key, TreeSettings
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.policies.density.hit_density import HitDensity
from unified_tree.policies.density.turns import Session, latest, session_of
from unified_tree.policies.eviction_policy import PolicyFactory

PATHS, STATES, WINDOWS = "paths", "states", "windows"
KINDS = {PATHS: [FULL], STATES: [FULL, MAMBA], WINDOWS: [FULL, swa(2)]}
LONGEST, CHUNK = 160, 16


class Served:
    """A cache in which each request runs alone.

    Args:
        kind: PATHS, STATES or WINDOWS.
        tokens: how many fit; `boundaries`: for how many windows or states there is room.
        host: the tier behind it; None for none. has_budget: a token and a state take a block each of as many as tokens fit.
    """

    def __init__(
        self,
        policy: str | PolicyFactory,
        kind: str,
        tokens: int,
        boundaries: int = 0,
        *,
        host: HostTier | None = None,
        has_budget: bool = False,
        **settings: int,
    ) -> None:
        components = KINDS[kind]
        pages = {PATHS: {}, STATES: {"mamba": boundaries + 1}, WINDOWS: {"swa": 2 * boundaries + LONGEST}}[kind]
        names = [component.name for component in components]
        self.cache = PrefixCache(
            components,
            1,
            None if has_budget else {"full": tokens, **pages},
            budget=BlockBudget(block_count=tokens, page_blocks=dict.fromkeys(names, 1)) if has_budget else None,
            policy=policy,
            host=host,
            settings=TreeSettings(**settings),
            time_s=lambda: 0.0,
        )
        self.has_states = kind == STATES

    def serve(self, tokens: Sequence[int], save_at: Sequence[int] = ()) -> int:
        """How many tokens of a prompt are hit. Windows and states are saved at its end, and where it is said."""
        cache, size = self.cache, len(tokens)
        with cache.acquire(Key(tokens), [*save_at, size] if save_at else []) as lease:
            for end in sorted({at for at in (*lease.save_at, size) if lease.committed < at <= size}):
                cache.allocate(lease, end)
                cache.commit(lease, list(tokens[:end]), {at: lease.save_pages[at] for at in lease.save_pages if at <= end})
            return lease.cached_tokens

    def hits(self, prompts: Iterable[list[int]]) -> int:
        """Of all of them."""
        return sum(self.serve(prompt) for prompt in prompts)

    @property
    def policy(self) -> HitDensity:
        """The tree's policy."""
        policy = self.cache.tree.state.policy
        assert isinstance(policy, HitDensity)
        return policy

    def session(self, tokens: Sequence[int]) -> Session:
        """The session of the line that has a text."""
        node = self.cache.tree.state.nodes.get(self.cache.tree.match_prefix(Key(tokens), touch=False).known.node)
        assert node is not None and node.line is not None
        latest(node.line)
        return session_of(node.line)

    def held(self, tokens: Sequence[int]) -> int:
        """How far a text could be resumed."""
        return self.cache.tree.match_prefix(Key(tokens), touch=False).device.length


class Texts:
    """Makes prompts: each token is new, and texts share only what they were made from."""

    def __init__(self, seed: object) -> None:
        self.draw = Random(str(seed))
        self._tokens = count(1)

    def new(self, least: int, most: int) -> list[int]:
        """Of some length."""
        return [next(self._tokens) for _ in range(self.draw.randint(least, most))]

    def traffic(self, requests: int, *, changes: bool = False) -> Iterator[list[int]]:
        """Sessions that go on, documents that are asked about, forks in the middle of texts, and prompts that come once.

        Args:
            changes: in the middle all texts become others, in another mixture.
        """
        for _ in range(1 + changes):
            yield from self._mixture(requests // (1 + changes))

    def _mixture(self, requests: int) -> Iterator[list[int]]:
        draw = self.draw
        recent = draw.choice([1, 2, 4])
        weights = [draw.random() ** 2 for _ in range(4)]
        documents = [self.new(5, 60) for _ in range(draw.choice([3, 30]))]
        sessions = [self.new(5, 20)]
        for _ in range(requests):
            [what] = draw.choices(range(4), weights)
            at = len(sessions) - 1 - int(len(sessions) * draw.random() ** recent)
            if what == 0:
                text = sessions.pop(at) + self.new(3, 8) if len(sessions) > 1 else self.new(5, 20)
            elif what == 1:
                text = draw.choice(documents) + self.new(3, 8)
            elif what == 2:
                text = sessions[at][: draw.randint(1, len(sessions[at]))] + self.new(3, 8)
            else:
                text = self.new(5, 40)
            if len(text) < LONGEST - 8:
                sessions.append(text)
            yield text
