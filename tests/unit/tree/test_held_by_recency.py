"""What recency would hold, beside trees that evict by recency, where sessions fork off one another anywhere."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree import Component, Key, Path, TreeSettings, UnifiedTree
from unified_tree.policies import HitDensity
from unified_tree.reuse import BY_RECENCY, Reuse
from unified_tree.visit import Visit

FULL = Component(name="full", coverage=Path(), page_bytes=64)


class Tree:
    """Evicts by recency, as it never trusts what it learns, and has the simulation beside it."""

    def __init__(self, pages: int, **settings: int) -> None:
        self.tree = UnifiedTree([FULL], 1, policy="density", page_counts={"full": pages}, settings=TreeSettings(**settings))
        self.free = list(range(pages))
        policy = self.tree.state.policy
        assert isinstance(policy, HitDensity)
        self.reuse = policy.learner()
        assert self.reuse._recency is not None
        self.recency = self.reuse._recency
        self.reuse._sessions.is_trusted = False
        self.hit = self.by_recency = 0.0

    def serve(self, prompt: list[int]) -> None:
        key = Key(prompt)
        found = self.tree.match_prefix(key)
        lock, missing = self.tree.lock(found.device), len(prompt) - found.device.length
        if len(self.free) < missing:
            self.free += self.tree.evict({"full": missing - len(self.free)}, cut_pages=1).freed["full"].tolist()
        self.tree.insert(key, {"full": np.array(self.free[:missing], np.int64)})
        del self.free[:missing]
        self.tree.unlock(lock)
        sessions = self.reuse._sessions
        sessions._compared = 0  # it never looks whether to trust
        assert self.reuse.mode == BY_RECENCY
        self.hit, self.by_recency = self.hit + sessions._hit, self.by_recency + sessions._by_recency
        sessions._hit = sessions._by_recency = 0.0


def forking(draw: Random, requests: int, documents: int, turns: float) -> list[list[int]]:
    """Prompts: a session goes on, or a question about a document or about the middle of a session begins a new one."""
    token = iter(range(1, 1 << 40))

    def fresh(count: int) -> list[int]:
        return [next(token) for _ in range(count)]

    texts = [fresh(draw.randrange(5, 60)) for _ in range(documents)]
    sessions: list[list[int]] = []
    prompts = []
    for _ in range(requests):
        chosen = draw.random()
        if sessions and chosen < turns:
            at = len(sessions) - 1 - int(len(sessions) * draw.random() ** 3)
            text = sessions.pop(at) + fresh(draw.randrange(1, 8))
        elif sessions and chosen < turns + (1 - turns) / 4:
            other = draw.choice(sessions[-30:])
            text = other[: draw.randrange(1, len(other) + 1)] + fresh(draw.randrange(1, 8))
        else:
            text = texts[int(len(texts) * draw.random() ** 2)] + fresh(draw.randrange(1, 8))
        if len(text) < 200:
            sessions.append(text)
        prompts.append(text)
    return prompts


@pytest.mark.parametrize("pages", [400, 1_000, 4_000])
@pytest.mark.parametrize(
    ("documents", "turns", "error"), [(1, 0.9, 0.02), (60, 0.5, 0.06), (200, 0.2, 0.15)], ids=["chats", "both", "documents"]
)
def test_it_hits_about_what_a_tree_hits_that_evicts_by_recency(documents: int, turns: float, error: float, pages: int) -> None:
    """If places where sessions fork off had no pieces it would be up to 70 % less."""
    tree = Tree(pages)
    for prompt in forking(Random(f"{documents} {pages}"), 6_000, documents, turns):
        tree.serve(prompt)
    assert tree.recency.pieces.is_bounded
    assert tree.by_recency == pytest.approx(tree.hit, rel=error)


def known(reuse: Reuse) -> list[Visit]:
    """All last visits of sessions, and of places where sessions fork off, as long as there are few."""
    sessions = [visit for visit in reuse._sessions._visits if visit is not None and visit.by is None]
    places = [*reuse._forks._visits, *reuse._places._visits]
    return sessions + [place for place in places if place is not None and place.lent]


@pytest.mark.parametrize("listed_forks", [1, 3, 16])
def test_no_piece_is_held_twice_or_left_behind(listed_forks: int) -> None:
    """What is held are the pieces of visits that are known, each of its own size, whatever is forgotten between."""
    tree = Tree(2_000, listed_forks=listed_forks)
    pieces = tree.recency.pieces
    for number, prompt in enumerate(forking(Random(listed_forks), 3_000, 30, 0.4)):
        tree.serve(prompt)
        if number % 100 == 0:
            sizes = [(visit.entry, visit.lent if visit.is_fork else visit.room - visit.lent) for visit in known(tree.reuse)]
            held = dict(size for size in sizes if size[0] >= pieces._first)
            assert all(pieces.holds(entry) == tokens for entry, tokens in held.items())
            assert sum(held.values()) == pieces.held <= pieces._room
