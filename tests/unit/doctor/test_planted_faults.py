"""Made worlds, each with one known fault: the doctor's first finding names it, and promises what the remedy really brings.

A world serves the same requests with the fault and with the remedy. What the finding says it costs is within a tenth of what
the remedy brings, in tokens of the prompts, or up to twice that where the finding calls it a bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Component, Key, OutOfPagesError
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.cli.diagnosis import diagnosis
from unified_tree.controllers.doctor import Figures, Finding, findings
from unified_tree.controllers.transfer_engines import NullEngine

PATH = replace(FULL, flops_per_token=1e12, page_bytes=64)
Ask = tuple[list[int], str]


def chats(count: int, turns: int, *, first: int = 20, more: int = 8) -> list[Ask]:
    """So many sessions, a turn each in turn; a turn goes on from all of the one before."""
    texts = [list(range(1000 * i, 1000 * i + first)) for i in range(1, count + 1)]
    asked = []
    for turn in range(turns):
        for i, text in enumerate(texts):
            asked.append((list(text), ""))
            text += range(10**6 + 10_000 * i + 100 * turn, 10**6 + 10_000 * i + 100 * turn + more)
    return asked


class World:
    """One server that serves requests one after the other.

    Args:
        device, host: pages by component; None for no end, and no host.
        saves: whether the engine saves the states that are due.
        renamed: what it makes of a request's namespace.
    """

    def __init__(
        self,
        components: Sequence[Component],
        device: dict[str, int] | None = None,
        host: dict[str, int] | None = None,
        *,
        page_size: int = 2,
        saves: bool = True,
        renamed: Callable[[str, int], str] = lambda name, _: name,
    ) -> None:
        tier = None
        if host is not None:
            cost = LoadCost(bytes_per_s=1e12, latency_s=0.0, flops_per_s=1e9)
            tier = HostTier(page_counts=host, engine=NullEngine(), load_cost=cost)
        self.cache = PrefixCache(components, page_size, device, policy="lru", host=tier, time_s=lambda: 0.0)
        self.saves, self.renamed = saves, renamed

    def serve(self, asked: Sequence[Ask]) -> Figures:
        cache, rejected = self.cache, []
        for number, (tokens, name) in enumerate(asked):
            try:
                lease = cache.acquire(Key(np.array(tokens), self.renamed(name, number)))
            except OutOfPagesError:
                rejected.append(len(tokens))
                continue
            with lease:
                while lease.is_loading:
                    cache.poll()
                for end in sorted({*lease.save_at, len(tokens)}):
                    if end > lease.committed:
                        cache.allocate(lease, end)
                        states = {at: page for at, page in lease.save_pages.items() if at <= end} if self.saves else {}
                        cache.commit(lease, tokens[:end], states)
            for _ in range(3):
                cache.poll()
        return Figures.of(cache).with_rejected(rejected)


MANY, LONG = chats(12, 6), chats(12, 6, first=41, more=21)
ROOMY = {"full": 4000}
REPEATED = [([*range(100 * i, 100 * i + 61)], "") for i in range(1, 11)] * 3
BRANCHING = [([*range(40), *range(1000 + 50 * i, 1030 + 50 * i)], "") for i in range(30)]


class Case:
    """A fault and its remedy.

    Args:
        words: of the first finding, in what it says or advises.
        at_most: the finding says that its price is a bound.
    """

    def __init__(
        self,
        fault: Callable[[], World],
        remedy: Callable[[], World],
        asked: Sequence[Ask],
        words: str,
        *,
        at_most: bool = False,
    ) -> None:
        self.fault, self.remedy, self.asked, self.words, self.at_most = fault, remedy, asked, words, at_most


CASES = {
    "short paths": Case(lambda: World([PATH], {"full": 60}), lambda: World([PATH], ROOMY), MANY, "device pool of full"),
    "short windows": Case(
        lambda: World([PATH, swa(6)], {**ROOMY, "swa": 40}),
        lambda: World([PATH, swa(6)], {**ROOMY, "swa": 900}),
        MANY,
        "device pool of swa",
    ),
    "short windows, and paths that they strand": Case(
        lambda: World([PATH, swa(6)], {"full": 420, "swa": 40}),
        lambda: World([PATH, swa(6)], {"full": 420, "swa": 900}),
        MANY,
        "device pool of swa",
    ),
    "short states": Case(
        lambda: World([PATH, MAMBA], {**ROOMY, "mamba": 6}),
        lambda: World([PATH, MAMBA], {**ROOMY, "mamba": 400}),
        MANY,
        "device pool of mamba",
    ),
    "a host pool smaller than the device": Case(
        lambda: World([PATH], {"full": 60}, {"full": 30}),
        lambda: World([PATH], {"full": 60}, {"full": 2000}),
        MANY,
        "host pool of full",
    ),
    "a host pool somewhat larger than the device": Case(
        lambda: World([PATH], {"full": 60}, {"full": 100}),
        lambda: World([PATH], {"full": 60}, {"full": 2000}),
        MANY,
        "host pool of full",
    ),
    "a namespace for each request": Case(
        lambda: World([PATH], ROOMY, renamed=lambda _, number: f"salt {number}"),
        lambda: World([PATH], ROOMY),
        MANY,
        "nearly every request has a namespace of its own",
    ),
    "a namespace for each request, behind one system prompt": Case(
        lambda: World([PATH], {"full": 9000}, renamed=lambda _, number: f"salt {number}"),
        lambda: World([PATH], {"full": 9000}),
        [([*range(30), *tokens], name) for tokens, name in MANY],
        "nearly every request has a namespace of its own",
    ),
    "pages too large": Case(
        lambda: World([PATH], ROOMY, page_size=32),
        lambda: World([PATH], ROOMY, page_size=1),
        REPEATED,
        "Take smaller pages",
        at_most=True,
    ),
    "states that the engine does not save": Case(
        lambda: World([PATH, MAMBA], {**ROOMY, "mamba": 400}, saves=False),
        lambda: World([PATH, MAMBA], {**ROOMY, "mamba": 400}),
        LONG,
        "states that were due were not saved",
    ),
}


def pages_promised(finding: Finding) -> list[tuple[int, float]]:
    """Pages more, and the points that they bring."""
    found = re.findall(r"([\d,]+) pages more(?: \([^)]*\))?, at most, for ([\d.]+) points", finding.advice)
    return [(int(pages.replace(",", "")), float(points)) for pages, points in found]


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding_names_the_fault_and_what_the_remedy_brings(name: str) -> None:
    case = CASES[name]
    told, better = case.fault().serve(case.asked), case.remedy().serve(case.asked)
    brought = better.hit_tokens - told.hit_tokens
    first = findings(told)[0]
    assert case.words in f"{first.what} {first.advice}", diagnosis(told)
    if case.at_most:
        assert "at most" in first.advice and brought <= first.tokens <= 2 * brought, diagnosis(told)
    else:
        assert first.tokens == pytest.approx(brought, rel=0.1), diagnosis(told)
    assert first.share == first.tokens / told.prompt_tokens
    assert all(case.words not in f"{each.what} {each.advice}" for each in findings(better)), diagnosis(better)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "pool of" in case.words])
def test_so_many_pages_more_bring_the_points_that_are_promised(name: str) -> None:
    case = CASES[name]
    before = case.fault()
    told = before.serve(case.asked)
    promised = pages_promised(findings(told)[0])
    assert promised
    for pages, points in promised:
        world = case.fault()
        components, counts = world.cache.layout.components, dict(before_counts(before, "device"))
        host = before_counts(before, "host") or None
        tier, component = case.words.split(" pool of ")
        (counts if tier == "device" else host)[component] += pages  # type: ignore[index]
        better = World(components, counts, host).serve(case.asked)
        gained = 100 * (better.hit_tokens - told.hit_tokens) / told.prompt_tokens
        assert gained >= 0.9 * points - 0.05, (pages, points, gained, diagnosis(told))


def before_counts(world: World, tier: str) -> dict[str, int]:
    stats = world.cache.stats()
    pools = stats.pools if tier == "device" else stats.host_pools
    return {name: pool.total for name, pool in pools.items() if pool.total is not None}


def test_branches_without_a_state_name_checkpoints() -> None:
    world = World([PATH, MAMBA], {**ROOMY, "mamba": 400})
    for tokens, _ in BRANCHING:  # one that leaves no state where the others branch off
        with world.cache.acquire(Key(np.array(tokens))) as lease:
            world.cache.allocate(lease, len(tokens))
            world.cache.commit(lease, tokens)
    first = findings(Figures.of(world.cache))[0]
    assert "never" not in first.what and "state" in first.what


@pytest.mark.parametrize("name", CASES)
def test_no_sentence_has_percentages_of_two_wholes(name: str) -> None:
    """A finding is a share of the prompts; whatever else it counts, it counts in tokens, pages or points of hits."""
    told = CASES[name].fault().serve(CASES[name].asked)
    for finding in findings(told, 99):
        assert "%" not in f"{finding.what} {finding.advice}", finding
        assert f"{finding.tokens:,} tokens" in finding.what or finding.is_urgent
