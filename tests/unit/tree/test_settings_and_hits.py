"""Which settings of the tree change what prompts hit: those that their docstring names, and no other."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache
from random import Random

import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Component, Key, OutOfPagesError, TreeSettings
from unified_tree.controllers import PrefixCache

OTHER = {
    "settle_limit": 1,
    "evict_reclaim_limit": 1,
    "max_listed_children": 1,
    "cost_steps": 1,
    "ghost_bytes": 2_000,
    "faded_ghosts": 0,
    "session_texts": 1,
    "remembered_turns": 4,
    "revise_every": 3,
    "listed_places": 1,
    "listed_saves": 1,
    "listed_uses": 1,
}
KINDS: dict[str, tuple[list[Component], dict[str, int]]] = {
    "path": ([FULL], {"full": 200}),
    "window": ([FULL, swa(6)], {"full": 260, "swa": 60}),
    "state": ([FULL, replace(MAMBA, page_bytes=64)], {"full": 260, "mamba": 14}),
}


def hits(kind: str, policy: str, settings: TreeSettings, count: int, seed: int) -> list[int]:
    """What each of some requests of made sessions hits."""
    components, counts = KINDS[kind]
    rng, now = Random(seed), 0.0
    prefixes = PrefixCache(components, 2, counts, policy=policy, settings=settings, time_s=lambda: now)
    sessions: list[list[int]] = []
    found = []
    for turn in range(count):
        now += 1.0
        if turn % 150 == 149:
            prefixes.invalidate("a")
        if not sessions or rng.random() < 0.2:
            sessions.append([*range(rng.choice([2, 10])), *(rng.randint(100, 10**6) for _ in range(rng.randint(2, 30)))])
        text = sessions[max(0, len(sessions) - 1 - int(rng.expovariate(0.15)))]
        if rng.random() < 0.3:
            text = text[: rng.randint(2, len(text))] if len(text) > 60 else list(text)
            sessions.append(text)
        text += [rng.randint(100, 10**6) for _ in range(rng.randint(1, 12))]
        try:
            with prefixes.acquire(Key(text, rng.choice("ab" if turn % 300 > 200 else "b"))) as lease:
                found.append(lease.cached_tokens)
                for end in sorted({*lease.save_at, len(text)}):
                    if end > lease.committed:
                        prefixes.allocate(lease, end)
                        states = {at: page for at, page in lease.save_pages.items() if at <= end}
                        prefixes.commit(lease, text[:end], states)
        except OutOfPagesError:
            found.append(-1)
    return found


def named() -> dict[str, set[str]]:
    """The settings that change hits by the docstring, by the policy; "" for all policies."""
    text = " ".join((TreeSettings.__doc__ or "").split())
    [claim] = re.findall(r"These change what prompts hit: (.*?)\. The others change nothing", text)
    known: dict[str, set[str]] = {}
    names = [field.name for field in fields(TreeSettings)]
    for part in claim.split("; "):
        found = {name for name in re.findall(r"`(\w+)`", part) if name in names}
        for first in re.findall(r"all from `(\w+)` on", part):
            found |= set(names[names.index(first) :])
        for policy in re.findall(r"`(\w+)`", part.partition(" under ")[2]) or [""]:
            known[policy] = known.get(policy, set()) | found
    return known


def test_each_setting_is_tried() -> None:
    assert set(OTHER) == {field.name for field in fields(TreeSettings)}
    assert set(named()) == {"", "cost", "density"}


@cache
def as_by_default(kind: str, policy: str, settings: TreeSettings, count: int, seed: int) -> list[int]:
    return hits(kind, policy, settings, count, seed)


def changes(setting: str, policy: str) -> bool:
    base = TreeSettings(ghost_bytes=2_000) if setting == "faded_ghosts" else TreeSettings()
    other = replace(base, **{setting: OTHER[setting]})
    seldom = {"settle_limit": (600, 4), "evict_reclaim_limit": (500, 4), "listed_uses": (300, 4), "listed_saves": (300, 4)}
    count, seeds = seldom.get(setting, (300, 1))
    return any(
        as_by_default(kind, policy, base, count, seed) != hits(kind, policy, other, count, seed)
        for seed in range(seeds)
        for kind in KINDS
    )


@pytest.mark.parametrize("policy", ["lru", "cost", "density"])
@pytest.mark.parametrize("setting", list(OTHER))
def test_a_setting_changes_hits_where_its_docstring_says_so(setting: str, policy: str) -> None:
    claims = named()
    assert changes(setting, policy) == (setting in claims[""] or setting in claims.get(policy, set()))
