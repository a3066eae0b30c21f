"""A draft's state through every tier, on one rank and on ranks that divide pages: exact where it is, and never in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from oracle.context_ranks import HAPPENS, Layout, serve_on_ranks
from oracle.families import DRAFT, DRAFT_OF_WINDOWS, FAMILIES, LLAMA
from oracle.mix import Bench, Tiers, serve_mix
from oracle.oracle_engine import WrongLogitsError
from oracle.reference import Reference, Tally
from oracle.tiny_model import SINGLE, Family

from reference_engine import EngineSettings, ModelRunner, Request, Speculation
from reference_engine.engine import greedy
from reference_engine.request import Running
from unified_tree.components import Composition
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.page_tables import PageTables
from unified_tree.controllers.pools.page_pair import PagePair
from unified_tree.inserts.inserting import Insertion


class ComparedDraft(Speculation):
    """Drafts for most requests; the others are computed without.

    Attributes:
        tally: what was compared.
        resumed, lacking: requests that hit, and had all of the draft's state there, or had to decode without.
    """

    def __init__(self, bench: Bench, *, skips: float = 0.2) -> None:
        super().__init__(ModelRunner(bench.draft, bench.composition, full="draft"), proposals=3)
        self.tally = Tally()
        self.resumed = self.lacking = 0
        self._random, self._skips, self._tolerance = bench.random, skips, bench.precision.tolerance
        self._reference = Reference()
        self._text: list[int] = []

    def admit(self, running: Running) -> None:
        """See Speculation.admit."""
        super().admit(running)
        if running.lease.cached_tokens:
            self.resumed += running.drafted >= 0
            self.lacking += running.drafted < 0
        if self._random.random() < self._skips:
            running.drafted = -1

    def follow(self, running: Running, tokens: Sequence[int], end: int) -> None:
        """See Speculation.follow."""
        self._text = list(tokens[:end])
        super().follow(running, tokens, end)

    def propose(self, running: Running, tokens: Sequence[int], count: int) -> list[int]:
        """See Speculation.propose."""
        self._text = list(tokens)
        return super().propose(running, tokens, count)

    def _run(self, running: Running, tokens: Sequence[int]) -> torch.Tensor:
        start = running.drafted
        text = self._text = [*self._text[:start], *tokens]
        run = self.draft.run(running.rows, tokens, start)
        run.write()
        running.drafted += len(tokens)
        said = self._reference.logits(self.draft.model, text)[start:]
        difference = self.tally.add(run.logits, said, self._tolerance, partial(self._rounded, text, start))
        if difference > self._tolerance:
            raise WrongLogitsError(f"the draft is {difference:.3g} off at the tokens [{start}, {len(text)}) of {running.lease}")
        return run.logits[-1]

    def _rounded(self, text: list[int], start: int) -> list[torch.Tensor]:
        return [logits[start:] for logits in self._reference.rounded(self.draft.model, text)]


PROMPT = [Random(6).randrange(96) for _ in range(64)]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank's life came to."""

    hits: dict[str, int]
    drafted: int
    resumed: int
    lacking: int
    without: dict[str, int]
    output: tuple[int, ...] = ()


def over(directory: Path | None, **room: Any) -> Tiers:
    """Pools with little room, and a store."""
    options = {"directory": directory, "capacity_bytes": 1 << 28, "shares": 4}
    storage = None if directory is None else {"name": "file", "options": options}
    return Tiers(storage=storage, **{"paths": 3.0, "windows": 3.0, "states": 9, **room})


def a_mix(bench: Bench) -> Seen:
    """Random requests; now and then all of the draft's state is lost, and nothing else."""
    draft = bench.engine.speculation = ComparedDraft(bench)
    cache = bench.cache
    hits = serve_mix(bench, 12, {**HAPPENS, "lose": 0.05}).hits
    return Seen(
        hits=hits,
        drafted=draft.tally.tokens,
        resumed=draft.resumed,
        lacking=draft.lacking,
        without=dict(cache.stats().hit_tokens_without),
    )


def a_prompt(bench: Bench) -> Seen:
    """One request."""
    draft = bench.engine.speculation = ComparedDraft(bench, skips=0.0)
    request = bench.serve(Request(prompt=[*PROMPT, 3, 1, 4], new_tokens=8, checkpoints=[64]))
    bench.cache.flush()
    without = dict(bench.cache.stats().hit_tokens_without)
    hits = bench.close().hits
    return Seen(
        hits=hits,
        drafted=draft.tally.tokens,
        resumed=draft.resumed,
        lacking=draft.lacking,
        without=without,
        output=tuple(request.output),
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "draft"), [("Llama", DRAFT_OF_WINDOWS), ("GPT-OSS", DRAFT)])
def test_a_mix_with_a_draft_over_a_store(name: str, draft: Family, ranks: int, tmp_path: Path, record_property: Any) -> None:
    seen: list[Seen] = []
    for seed in range(5, 9):  # what is in the store when a request comes hangs on threads
        for _ in range(2):
            ranked = serve_on_ranks(FAMILIES[name], Layout(ranks=ranks), over(tmp_path / str(seed)), seed, a_mix, draft=draft)
            assert all(each == ranked[0] for each in ranked), "ranks hit the same, drafts included"
            seen.append(ranked[0])
        drafted, resumed, lacking = (sum(getattr(each, what) for each in seen) for what in ("drafted", "resumed", "lacking"))
        store = sum(each.hits["store"] for each in seen)
        without = sum(sum(each.without.values()) for each in seen)
        if min(drafted, resumed, lacking, store, without):
            break
    record_property("operations", drafted)
    assert min(drafted, resumed, lacking, store, without) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_draft_that_one_rank_did_not_store_shortens_no_hit(ranks: int, tmp_path: Path, monkeypatch: Any) -> None:
    """What is said is the same; all ranks decode without the draft, though the first of two has its part of it."""
    layout, outputs = Layout(ranks=ranks, names=("full", "draft")), set()
    for stores_all in (True, False):
        directory = tmp_path / str(stores_all)
        with monkeypatch.context() as patch:
            if not stores_all:
                patch.setattr(Composition, "writes", lambda self, name: name != "draft" or self.rank < ranks - 1)
            served = [
                serve_on_ranks(LLAMA, layout, over(directory), 7, a_prompt, draft=DRAFT, sampler=greedy) for _ in range(2)
            ]
        first, again = served
        assert [seen.hits["store"] for seen in first + again] == [0] * ranks + [64] * ranks
        assert [(seen.resumed, seen.lacking) for seen in again] == [(int(stores_all), int(not stores_all))] * ranks
        assert [seen.without for seen in again] == [{"draft": 0 if stores_all else 64}] * ranks
        outputs |= {seen.output for seen in first + again}
    assert len(outputs) == 1


def _holes_untold(patch: Any) -> None:
    """A lease does not tell which of its pages lack the draft."""
    patch.setattr(PageTables, "_note_missing", lambda *_: None)


def _not_drafted_published(patch: Any) -> None:
    """Commits do not tell that there was no draft."""
    commit = PrefixCache.commit

    def commit_all(self: PrefixCache, *args: Any, **options: Any) -> Any:
        return commit(self, *args, **{**options, "without": ()})

    patch.setattr(PrefixCache, "commit", commit_all)


def _loads_of_the_first_page(patch: Any) -> None:
    """A load brings the first page of the draft again and again, and the right ones of the model. Another order of the right
    ones could not be seen: keys hold their positions.
    """
    load_layers = PagePair.load_layers

    def load(self: PagePair, layer_ids: tuple[int, ...], source: Any, target: Any) -> None:
        is_draft = self.device.format.component == "draft"
        load_layers(self, layer_ids, np.full_like(source, source[0]) if is_draft else source, target)

    patch.setattr(PagePair, "load_layers", load)


def _pages_swapped_for_less(patch: Any) -> None:
    """An insert swaps the tree's pages for given ones that lack the draft."""
    patch.setattr(Insertion, "_carries_more", lambda *_: True)


def _swaps_untold(patch: Any) -> None:
    """A lease does not tell which of the pages that a commit has put in place of its own lack the draft."""
    patch.setattr(PageTables, "_note_swapped", lambda *_: None)


class InTurn(ComparedDraft):
    """Drafts for those requests, in the order of their admission, for which that is said."""

    def __init__(self, bench: Bench, drafted: Sequence[bool]) -> None:
        super().__init__(bench, skips=0.0)
        self._drafted = list(drafted)

    def admit(self, running: Running) -> None:
        """See Speculation.admit."""
        super().admit(running)
        if not self._drafted.pop(0):
            running.drafted = -1


def mixes() -> None:
    """Random requests."""
    for seed in range(6):
        serve_on_ranks(LLAMA, Layout(ranks=1), over(None, paths=4.0), seed, a_mix, draft=DRAFT)


def in_turn(drafted: Sequence[bool], new_tokens: Sequence[int], *, loads: bool = False) -> ComparedDraft:
    """Requests of one prompt at the same time, then another that goes on from it."""
    settings = EngineSettings(chunk_tokens=64, max_running=2)
    bench = Bench(LLAMA, SINGLE, Tiers(host=loads), Random(12), settings=settings, sampler=greedy, draft=DRAFT)
    draft = bench.engine.speculation = InTurn(bench, drafted)
    requests = [Request(prompt=PROMPT[:48], new_tokens=count) for count in new_tokens]
    for request in requests:
        bench.engine.submit(request)
    bench.engine.run()
    assert len({tuple(request.output[: min(new_tokens)]) for request in requests}) == 1, "a draft changes nothing"
    if loads:
        bench.cache.flush()
        bench.evict()
    bench.serve(Request(prompt=[*PROMPT[:48], 3, 1, 4], new_tokens=6))
    bench.close()
    return draft


def loaded() -> None:
    """A drafted prompt comes back from host."""
    assert in_turn([True, True], [6], loads=True).resumed == 1


def drafted_behind() -> None:
    """The second computes a prompt with a draft while the first, without, holds its pages: it decodes without one, too."""
    draft = in_turn([False, True, True], [6, 6])
    assert (draft.tally.tokens, draft.resumed, draft.lacking) == (48, 0, 1), "it drafted until its commit"


def undrafted_behind() -> None:
    """The second computes a prompt without a draft which the first, with one, has left: what is cached is not swapped."""
    assert in_turn([True, False, True], [1, 6]).resumed == 1


@pytest.mark.parametrize("world", [mixes, loaded, drafted_behind, undrafted_behind])
def test_what_a_draft_says_is_right(world: Callable[[], None]) -> None:
    world()


@pytest.mark.parametrize(
    ("plant", "world"),
    [
        (_holes_untold, mixes),
        (_not_drafted_published, mixes),
        (_loads_of_the_first_page, loaded),
        (_pages_swapped_for_less, undrafted_behind),
        (_swaps_untold, drafted_behind),
    ],
)
def test_a_defect_of_the_drafts_state_is_seen(
    plant: Callable[[Any], None], world: Callable[[], None], monkeypatch: Any
) -> None:
    plant(monkeypatch)
    with pytest.raises(WrongLogitsError, match="the draft is"):
        world()
