"""Ranks that divide the tokens of each page: a store written by a group is read back by the same layout, and by no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from oracle.context_ranks import Layout, serve_a_mix, serve_on_ranks
from oracle.families import FAMILIES, RECENT
from oracle.mix import Bench, Tiers
from oracle.oracle_engine import WrongLogitsError
from oracle.reference import Tally

from reference_engine import Request
from unified_tree.components import Composition
from unified_tree.controllers.pools import format_header
from unified_tree.controllers.pools.format_header import FormatHeader

ALL = {**FAMILIES, **RECENT}
LAYOUTS = {
    "Llama": Layout(ranks=2),
    "GLM-4.7-Flash": Layout(ranks=4, interleave=2),
    "GPT-OSS": Layout(ranks=2, interleave=4),
    "DeepSeek-V3.2": Layout(ranks=2),
    "Falcon-H1": Layout(ranks=2, interleave=2),
    "DeepSeek-V4": Layout(ranks=2, names=("c4",)),
}
"""Heads; latents; whole windows beside; whole index keys in the same pages; whole states beside; compressed entries."""


T = TypeVar("T")


def lives(name: str, layouts: Sequence[Layout], directory: Path, serve: Callable[[Bench], T], seed: int = 5) -> list[list[T]]:
    """Servers one after the other, over one store and with the same requests, as each of the layouts."""
    options = {"directory": directory, "capacity_bytes": 1 << 28, "shares": 8}
    tiers = Tiers(paths=3.0, windows=3.0, states=10, storage={"name": "file", "options": options})
    return [serve_on_ranks(ALL[name], layout, tiers, seed, serve) for layout in layouts]


def found_of_a_prompt(bench: Bench) -> int:
    """How much of a prompt was in the store; afterwards all of it is."""
    random = Random(11)
    prompt = [random.randrange(bench.vocabulary) for _ in range(70)]
    bench.serve(Request(prompt=prompt, new_tokens=3, checkpoints=[64]))
    bench.cache.flush()
    return bench.close().hits["store"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_group_reads_back_what_a_group_of_its_layout_wrote(name: str, tmp_path: Path, record_property: Any) -> None:
    layout, total = LAYOUTS[name], Tally()
    for seed in range(5, 9):  # what is in the store when a request comes hangs on threads
        for tallies in lives(name, [layout, layout], tmp_path / str(seed), serve_a_mix, seed):
            assert len(tallies) == layout.ranks
            assert all(tally.hits == tallies[0].hits for tally in tallies), "ranks hit the same"
            total += tallies[0]
        if total.hits["store"]:
            break
    record_property("operations", total.runs)
    assert total.hits["store"]
    assert total.deviation > 0.3


@pytest.mark.parametrize("name", ["Llama", "DeepSeek-V3.2"])
def test_layouts_share_a_store_and_no_pages(name: str, tmp_path: Path) -> None:
    layouts = [Layout(ranks=2), Layout(ranks=2, interleave=4), Layout(ranks=4), Layout(ranks=1)]
    found = lives(name, layouts * 2, tmp_path, found_of_a_prompt)
    assert found[:4] == [[0] * layout.ranks for layout in layouts]
    assert found[4:] == [[64] * layout.ranks for layout in layouts]


def test_what_only_one_rank_stored_is_no_hit(tmp_path: Path, monkeypatch: Any) -> None:
    """One writer for latents of which every rank keeps a part, as in SGLang #37149: no wrong hit, and no hit."""
    monkeypatch.setattr(Composition, "writes", lambda self, _: self.rank == 0)
    assert lives("GLM-4.7-Flash", [Layout(ranks=2)] * 2, tmp_path, found_of_a_prompt) == [[0, 0], [0, 0]]


def _without(field: str) -> Callable[[Any], None]:
    """Keys that do not tell one thing of a page's division."""
    encode = FormatHeader.encode

    def forgetful(self: FormatHeader) -> bytes:
        context = replace(self.format.context, **{field: {"index": 0, "interleave": 1}[field]})
        return encode(replace(self, format=replace(self.format, context=context)))

    def plant(patch: Any) -> None:
        patch.setattr(FormatHeader, "encode", forgetful)
        patch.setattr(format_header, "_division", lambda _: [])

    return plant


@pytest.mark.parametrize(
    ("field", "name", "layouts"),
    [
        ("index", "Llama", [Layout(ranks=2)] * 2),
        ("interleave", "DeepSeek-V3.2", [Layout(ranks=2), Layout(ranks=2, interleave=2)]),
    ],
)
def test_keys_that_forget_the_division_are_seen(
    field: str, name: str, layouts: list[Layout], tmp_path: Path, monkeypatch: Any
) -> None:
    """Attention without an indexer would not see tokens of one page change places: their keys are rotated before."""
    _without(field)(monkeypatch)
    with pytest.raises(WrongLogitsError):
        lives(name, layouts, tmp_path, found_of_a_prompt)
