"""Ranks that divide the tokens of each page (`--dcp-size`), over SGLang's real pools and allocators, without a model.

SGLang starts no such server without a GPU. Run from the repository's root with the engine's python, as
`test_scheduler_model.py`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    from rank_processes import Life
    from scheduler_model import Case

    from unified_tree.controllers.adapters.sglang import assembly
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineMover, RankParts
    from unified_tree.controllers.pools.format_header import FormatHeader
    from unified_tree.controllers.ranks.rank_agreement import SingleRank
    from unified_tree.declare.page_format import EVERY_SLOT, ContextShard

pytestmark = pytest.mark.filterwarnings("ignore")
DRAWN = int(os.environ.get("DRAWN", "8"))
CASES = {
    "page2": Case(page_size=2, division=2, full_tokens=700, chunk=256),
    "page32": Case(page_size=32, division=2, full_tokens=1440, chunk=512),
    "page3": Case(page_size=3, division=3, full_tokens=699, chunk=255),
    "index_keys": Case(page_size=128, division=2, full_tokens=1408, chunk=256, index_keys=True),
    "mamba_extra": Case(page_size=32, division=2, full_tokens=1440, states=60, extra_buffer=True, chunk=128),
    "drafted": Case(page_size=32, division=2, full_tokens=1440, drafted=True, chunk=512),
}


@pytest.mark.parametrize("write_policy", [None, "through", "back"])
@pytest.mark.parametrize("name", CASES)
def test_every_rank_reads_its_tokens_of_every_page(name: str, write_policy: str | None, tmp_path: Path) -> None:
    case = CASES[name]
    counts = Life(case=case, ranks=case.division, write_policy=write_policy, requests=100).serve(tmp_path)
    assert counts.cached_tokens > 0.05 * counts.prompt_tokens
    assert counts.loaded_tokens or write_policy is None
    assert not counts.lost_draft_tokens


def drawn(rng: random.Random) -> Case:
    """Pools for one request or a few, of ranks and pages of any size."""
    division, own = rng.choice([2, 2, 3, 4]), rng.choice([1, 1, 2, 5, 16])
    size, running = division * own, rng.choice([1, 2, 3, 5])
    pages = rng.randrange(100, 500) // size + 3
    return Case(
        page_size=size, division=division, full_tokens=pages * size, running=running, chunk=max(size, rng.choice([32, 128]))
    )


@pytest.mark.parametrize("seed", range(DRAWN))
def test_any_ranks_and_pages_serve_all_requests_alike(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    case = drawn(rng)
    life = Life(
        case=case,
        ranks=case.division * rng.choice([1, 1, 2]),
        write_policy=rng.choice([None, "through", "back", "selective", "back_selective"]),
        requests=40,
        seed=seed,
        policy=rng.choice(["lru", "density", "cost"]),
        longest=max(20, int(case.full_tokens * rng.choice([0.5, 0.9]))),
        waiting=12,
        plant=rng.choice([None, late]),
    )
    (meeting := tmp_path / "ranks").mkdir()
    if life.write_policy is not None and rng.random() < 0.5:
        life = replace(life, files=tmp_path / "files")
    counts = life.serve(meeting)
    assert counts.finished + counts.aborts == 40


@pytest.mark.parametrize("name", CASES)
def test_pages_of_a_life_before_are_the_right_ones(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for write_policy in ("through", "back"):
        (meeting := tmp_path / write_policy).mkdir()
        life = Life(case=case, ranks=case.division, write_policy=write_policy, files=tmp_path / "files", seed=3)
        counts = life.serve(meeting)
    assert counts.prefetched_tokens
    assert counts.loaded_tokens


def test_two_groups_of_ranks_share_what_one_of_them_stored(tmp_path: Path) -> None:
    files = tmp_path / "files"
    for write_policy, ranks in (("through", 4), ("back", 4), ("back", 2)):
        (meeting := tmp_path / f"{write_policy}{ranks}").mkdir()
        counts = Life(case=CASES["page32"], ranks=ranks, write_policy=write_policy, files=files, seed=3).serve(meeting)
        assert counts.prefetched_tokens or write_policy == "through"
    assert len(list(files.glob("*.pages"))) == CASES["page32"].division, "files of a part of each page"


WRITES = """
import torch
from types import SimpleNamespace
from scheduler_model import Case, Pools
from sglang.srt.runtime_context import get_parallel

for rank in range(2):
    with get_parallel().override(attn_dcp_size=2, attn_dcp_rank=rank, dcp_enabled=True):
        pools = Pools(Case(page_size=32, division=2, full_tokens=128), rank, 2)
        slots = torch.arange(37, 90)
        latents, positions = torch.rand(53, 1, 2), torch.rand(53, 1, 1)
        pools.kv.set_mla_kv_buffer(SimpleNamespace(layer_id=1), slots, latents, positions)
        wanted = torch.zeros_like(pools.kv.kv_buffer[1])
        places = pools.places(slots)
        wanted[places[places >= 0]] = torch.cat([latents, positions], -1)[places >= 0]
        assert torch.equal(pools.kv.kv_buffer[1], wanted), rank
"""


def test_the_model_reads_where_sglangs_kernel_writes() -> None:
    paths = os.pathsep.join([*sys.path[:3], str(Path(__file__).parents[3])])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITES], check=False, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def late(rank: int) -> None:
    """The copies of the second rank take a while."""
    load, backup = EngineMover.load_layers, EngineMover.backup

    def slow(copy: Callable[..., None], *arguments: Any) -> None:
        time.sleep(0.005 * rank)
        copy(*arguments)

    EngineMover.load_layers = lambda *arguments: slow(load, *arguments)  # type: ignore[method-assign]
    EngineMover.backup = lambda *arguments: slow(backup, *arguments)  # type: ignore[method-assign]


def test_ranks_whose_copies_end_at_different_times_agree(tmp_path: Path) -> None:
    counts = Life(case=CASES["page32"], write_policy="back", plant=late).serve(tmp_path)
    assert counts.loaded_tokens


def agree_alone(rank: int) -> None:
    late(rank)
    assembly.rank_agreement = lambda *_: SingleRank()


def have_all_tokens(_: int) -> None:
    """Pages of the tree are taken for as many rows of each rank."""
    parts = RankParts.of
    RankParts.of = lambda *given, **named: replace(parts(*given, **named), context=EVERY_SLOT)  # type: ignore[method-assign]


def share_pages_with_other_tokens(_: int) -> None:
    """All ranks of a group store and find the same pages."""
    encode = FormatHeader.encode

    def first(self: FormatHeader) -> bytes:
        count = self.format.context.count
        shard = ContextShard(0, count) if count > 1 else EVERY_SLOT
        return encode(replace(self, format=replace(self.format, context=shard)))

    FormatHeader.encode = first  # type: ignore[method-assign]
    RankParts.place = property(lambda _: 0)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (agree_alone, "the ranks differ"),
        (have_all_tokens, "out of bounds"),
        (share_pages_with_other_tokens, "full attention reads a wrong page"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_planted_defect_is_seen(plant: Callable[[int], object], seen: str, tmp_path: Path) -> None:
    life = Life(case=CASES["page32"], write_policy="back", seed=3, requests=120)
    (meeting := tmp_path / "first").mkdir()
    if plant is share_pages_with_other_tokens:
        life = replace(life, files=tmp_path / "files")
    with pytest.raises(AssertionError, match=seen):
        replace(life, plant=plant).serve(meeting)
