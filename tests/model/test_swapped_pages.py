"""Requests that compute the same prompt at the same time, with and without its optional state.

A commit swaps a lease's pages for the tree's equal ones. Those may lack optional state that its own had: then the lease tells,
or its engine would go on from garbage. `Runner.commit` compares every page before and after.
"""

from __future__ import annotations

from random import Random

import pytest
from kinds import DRAFT, FULL, SETS, swa
from memory_model import Runner

from unified_tree import Component, Path, Trailing
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.page_tables import PageTables

KINDS = {
    "draft": SETS["draft"],
    "two drafts": [FULL, DRAFT, Component(name="head", coverage=Path(), required=False, shares="full")],
    "a carry-over": [FULL, swa(5), Component(name="carry", coverage=Trailing(3), required=False, shares="swa")],
    "a narrow carry-over": [FULL, swa(3), Component(name="carry", coverage=Trailing(1), required=False, shares="swa"), DRAFT],
    "beside a rebuild": SETS["optional beside a rebuild"],
    "drafts of their own": SETS["drafts of their own"],
    "everything": SETS["everything"],
}
SHARING = [name for name, kinds in KINDS.items() if any(not c.required and c.shares for c in kinds)]
SEEDS = 15


def live(kinds: list[Component], seed: int) -> int:
    """Serve a few waves of requests step by step; how many swapped pages were told to lack something."""
    rng = Random(seed)
    runner = Runner(PrefixCache(kinds, 2, {c.name: 200 for c in kinds if c.shares is None}), kinds)
    text = [rng.randrange(3) for _ in range(40)]
    told = 0
    for _ in range(4):
        length = rng.randrange(4, 30)
        wave = [
            (runner.start([*text[:length], *(rng.randrange(3) for _ in range(rng.choice([0, 0, 1, 9])))]), rng.random() < 0.5)
            for _ in range(rng.randrange(2, 5))
        ]
        for _ in range(rng.randrange(2, 7)):
            rng.shuffle(wave)
            for request, leaves_out in wave:
                target = runner.extend(request, rng, longest=rng.choice([4, 30]), letters=1)
                runner.cache.allocate(request.lease, target)
                without = [name for name in runner.optional if leaves_out or rng.random() < 0.05]
                runner.compute(request, target, without)
                before = dict(request.lease.missing)
                if rng.random() < 0.8:
                    runner.commit(request, resumable=rng.choice([None, True, False]), without=without)
                else:
                    runner.advance(request)
                told += request.lease.missing != before
                runner.check()
        for request, _ in wave:
            runner.finish(request)
    return told


@pytest.mark.parametrize("name", KINDS)
def test_a_commit_takes_no_optional_state_away_in_silence(name: str) -> None:
    told = sum(live(KINDS[name], seed) for seed in range(SEEDS))
    assert (told > 0) == (name in SHARING)


@pytest.mark.skipif(not hasattr(PageTables._note_swapped, "__code__"), reason="compiled code does not look its methods up")
@pytest.mark.parametrize("name", SHARING)
def test_a_lease_that_does_not_tell_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageTables, "_note_swapped", lambda *_: None)
    with pytest.raises(AssertionError, match="lost their state"):
        sum(live(KINDS[name], seed) for seed in range(SEEDS))
