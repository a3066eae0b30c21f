"""From the same device pools ours has at least as many hits as SGLang's own cache, over mixes of one kind of model.

Run from the repository's root with the engine's python, as `test_scheduler_model.py`. A single mix may go either way: the two
caches do not count the same uses as recent, and which of two prompts comes back is chance.
"""

from __future__ import annotations

import os
import random

import pytest
import sglang_engine

with sglang_engine.imports():
    import torch
    from hit_comparison import CROWD_POOLS, CROWDS, KINDS, crowd, crowd_hits, in_turn, totals
    from scheduler_model import Case

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = range(int(os.environ.get("SEEDS", "8")))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["full", "full-small", "full16", "swa", "swa-small"])
def test_mixes_of_a_kind_have_more_hits(name: str) -> None:
    found = totals(KINDS[name], SEEDS)
    assert sum(ours for _, ours in found) > sum(theirs for theirs, _ in found), found
    for seed, (theirs, ours) in zip(SEEDS, found, strict=True):
        assert KINDS[name].window is not None or ours >= 0.95 * theirs, f"seed {seed}: {ours}, {theirs} with SGLang's cache"


@pytest.mark.parametrize("kind", CROWDS)
def test_a_crowd_of_one_kind_of_requests_has_as_many_hits(kind: str) -> None:
    """Over pools with room and without; one pool may go either way."""
    theirs = ours = 0
    for case in CROWD_POOLS:
        for seed in range(2):
            waves = crowd(kind, case.page_size, random.Random(f"{kind} {case.page_size} {seed}"), requests=60)
            theirs += crowd_hits(case, waves, builtin=True)
            ours += crowd_hits(case, waves, builtin=False)
    assert ours >= theirs > 0


def test_a_branch_at_the_end_of_a_chunk_is_kept_where_windows_are_short() -> None:
    """The second prompt shows where texts branch off, and the third resumes there, as with SGLang's cache."""
    case = Case(full_tokens=1024, page_size=16, window=31, window_tokens=608)
    one, other, last = ([1] * case.chunk + [token] * 40 for token in (2, 3, 4))
    prompts = [
        *([token] * 96 for token in range(10, 24)),
        one,
        *([token] * 120 for token in range(30, 38)),
        other,
        [5] * 120,
        last,
    ]
    assert in_turn(case, prompts, builtin=False)[-3:] == [0, 0, case.chunk]


def test_a_repeat_is_kept_where_its_window_ends_a_chunk() -> None:
    """The window pages of the chunks before go first, but for those where a repeat resumes: a page before the prompt's end."""
    case = Case(full_tokens=1024, page_size=16, window=31, window_tokens=608)
    prompts = [[token] * 96 for token in range(10, 23)]
    assert in_turn(case, [*prompts, *reversed(prompts[4:])], builtin=False)[len(prompts) :] == [80] * 9


def test_each_order_can_have_fewer_hits_than_the_other() -> None:
    """When a prompt branches off inside another, SGLang's cache counts the other's rest as used, too; ours does not."""
    head, rest, other, branch, new = ([token] * 100 for token in range(1, 6))
    before = [head + rest, other, head + branch, new]  # the last one needs room
    for asked, theirs, ours in ((head + rest, 199, 120), (other, 0, 99)):
        hits = [in_turn(Case(full_tokens=420, chunk=256), [*before, asked], builtin=builtin)[-1] for builtin in (True, False)]
        assert hits == [theirs, ours]
