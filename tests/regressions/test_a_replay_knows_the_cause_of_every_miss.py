"""A replay called what had been evicted long ago unknown, as a server with bounded memory has to. It must not rank otherwise
than such a server either, for the policy `density` learns from that memory.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Component, Key, Path, TreeSettings
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.workload import Request, Workload
from unified_tree.memory.archive import Archive

BLOCK = 2
KINDS: dict[str, tuple[list[Component], dict[str, int]]] = {
    "path": ([FULL], {"full": 120}),
    "window": ([FULL, swa(6)], {"full": 160, "swa": 40}),
    "state": ([FULL, MAMBA], {"full": 160, "mamba": 9}),
}


def sessions(seed: int, count: int = 250) -> list[list[int]]:
    """Prompts of blocks, each of which stands behind one prefix; some go on from an earlier one, at its end or before."""
    rng, prompts, block = Random(seed), list[list[int]](), 0
    for _ in range(count):
        before = rng.choice(prompts[-60:]) if prompts and rng.random() < 0.8 else []
        kept = len(before) if rng.random() < 0.7 else rng.randint(0, len(before))
        prompt = before[:kept]
        for _ in range(rng.randint(0, 8)):
            block += 1
            prompt = [*prompt, block]
        prompts.append(prompt or [0])
    return prompts


Cause = tuple[str, int, int, int | None]


def served(kind: str, policy: str, settings: TreeSettings, seed: int, *, archived: bool) -> list[tuple[int, list[Cause]]]:
    """What each prompt hits, and the causes of the rest; whether other tokens came behind a known prefix is left out, for an
    archive knows no texts that went on from one. What several evictions took from one pool is told together, for an archive may
    know a later one of them.
    """
    components, counts = KINDS[kind]
    cache = PrefixCache(components, BLOCK, counts, policy=policy, settings=settings, time_s=lambda: 0.0)
    ghosts = cache.tree.state.ghosts
    assert ghosts is not None
    if archived:
        ghosts.archive = Archive(BLOCK)
    found = []
    for number, prompt in enumerate(sessions(seed)):
        tokens = np.append(np.repeat(np.array(prompt), BLOCK), 10**6 + number)
        with cache.acquire(Key(tokens)) as lease:
            causes: list[Cause] = []
            for miss in lease.misses:
                label = miss.cause.label.replace("diverged", "never_seen")
                pool = None if miss.eviction is None else miss.eviction.component
                goes_on = bool(causes) and (label, pool) == (causes[-1][0], causes[-1][3])
                begin = causes.pop()[1] if goes_on else miss.begin
                causes.append((label, begin, miss.end, pool))
            found.append((lease.cached_tokens, causes))
            for end in sorted({*lease.save_at, len(tokens)}):
                if end > lease.committed:
                    cache.allocate(lease, end)
                    cache.commit(lease, end, {at: page for at, page in lease.save_pages.items() if at <= end})
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ghost_bytes", "faded"), [(1, 0), (1_500, 3), (6_000, 40)])
def test_with_an_archive_a_small_memory_says_what_an_endless_one_says(kind: str, ghost_bytes: int, faded: int) -> None:
    small, endless = TreeSettings(ghost_bytes=ghost_bytes, faded_ghosts=faded), TreeSettings(ghost_bytes=1 << 40)
    for seed in range(3):
        told = served(kind, "lru", small, seed, archived=True)
        assert told == served(kind, "lru", endless, seed, archived=False)
        assert any(cause[0] == "evicted" for _, causes in told for cause in causes)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_changes_nothing_that_is_hit(kind: str) -> None:
    small = TreeSettings(ghost_bytes=1_500, faded_ghosts=3, remembered_turns=32, revise_every=16)
    for seed in range(3):
        with_it = served(kind, "density", small, seed, archived=True)
        without = served(kind, "density", small, seed, archived=False)
        assert [hit for hit, _ in with_it] == [hit for hit, _ in without]
        assert not any(cause[0] == "unknown" for _, causes in with_it for cause in causes)


@pytest.mark.parametrize("policy", ["lru", "density"])
def test_nothing_is_unknown_to_a_replay_of_more_than_its_cache_remembers(policy: str) -> None:
    """Sixteen million tokens, of which a cache remembers eight; then the first prompts come back."""
    block, blocks = 512, 400
    firsts = [i * blocks for i in range(80)] + [0, blocks]
    requests = tuple(
        Request(
            index=index,
            arrival_s=float(index),
            runs=np.array([first, blocks], np.int64),
            block_tokens=block,
            prompt_tokens=block * blocks + 1,
            output_tokens=1,
        )
        for index, first in enumerate(firsts)
    )
    composition = Composition(
        name="made", components=(Component(name="full", coverage=Path(), page_bytes=64),), page_size=block
    )
    plan = Plan(
        workload=Workload(name="made", requests=requests, block_count=80 * blocks),
        composition=composition,
        device_bytes=1000 * 64,
        settings=ServerSettings(concurrency=1),
    )
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy=policy, page_counts={"full": 1000}, is_bounded=False))
    assert (row.miss_tokens["unknown"], row.miss_tokens["evicted"]) == (0, 2 * block * blocks)
    assert row.figures.pools[0].evicted_tokens == 2 * block * blocks
