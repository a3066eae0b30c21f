"""The survey against the replay through the real cache, and samples against all."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree.components import Composition, composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, split_for_server
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample, subtrees
from unified_tree.controllers.workbench.sizing.sizes import best_split, path_sizes, sizes_of
from unified_tree.controllers.workbench.sizing.surface import Surface, one_pass, survey
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload

GIB = 1 << 30
SETTINGS = ServerSettings()
WORKLOAD = synthetic_workload(SyntheticOptions(request_count=400, seed=3))


def needs_of(composition: Composition) -> Needs:
    return Needs.of(composition.components, composition.page_size, SETTINGS.chunk_tokens)


def plan_of(model: str, gib: float) -> Plan:
    return Plan(workload=WORKLOAD, composition=composition_for(model), device_bytes=int(gib * GIB), settings=SETTINGS)


@pytest.mark.parametrize(
    ("model", "gib"), [("qwen3-32b", 64), ("gpt-oss-20b", 8), ("gemma-3-27b", 48), ("qwen3-next-80b-a3b", 12)]
)
def test_the_model_hits_what_the_cache_hits_within_a_point(model: str, gib: float) -> None:
    plan = plan_of(model, gib)
    page_counts = split_for_server(plan.composition, plan.device_bytes, SETTINGS)
    needs = needs_of(plan.composition)
    surface = survey(Sample.of(WORKLOAD), needs, SETTINGS, [needs.path_tokens(page_counts)], 1)
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=page_counts))
    assert abs(surface.hit_rate(page_counts) - row.hit_rate) < 0.01


def surface_of(plan: Plan) -> Surface:
    needs = needs_of(plan.composition)
    page_counts = split_for_server(plan.composition, plan.device_bytes, SETTINGS)
    return survey(Sample.of(WORKLOAD), needs, SETTINGS, path_sizes(plan, needs, page_counts), 1)


def test_a_sample_of_all_is_all() -> None:
    assert Sample.of(WORKLOAD, 1.0).workload is WORKLOAD
    composition = composition_for("gemma-3-27b")
    needs = needs_of(composition)
    for tokens in (100_000, None):
        alone = one_pass(Sample.of(WORKLOAD), needs, SETTINGS, tokens)
        surface = survey(Sample.of(WORKLOAD), needs, SETTINGS, [tokens], 1)
        counts = {} if tokens is None else {"full": tokens // composition.page_size}
        assert surface.hit_rate(counts) == alone.hit_rate(float("inf"))


def test_a_sample_has_whole_subtrees_and_larger_ones_have_more() -> None:
    trees, stem_tokens = subtrees(WORKLOAD.requests)
    assert sorted(request.index for tree in trees for request in tree) == list(range(len(WORKLOAD.requests)))
    assert len(trees) > 12, "sessions behind their tenants' system prompts"
    assert stem_tokens > 0
    small, large = Sample.of(WORKLOAD, 0.1), Sample.of(WORKLOAD, 0.4)
    assert 0 < small.trees < large.trees < small.all_trees
    assert 0.02 < small.share < 0.2 < large.share < 0.6

    def first_blocks(sample: Sample) -> set[bytes]:
        return {request.runs.tobytes() for request in sample.workload.requests}

    assert first_blocks(small) <= first_blocks(large)
    chains = {request.chain for request in small.workload.requests}
    kept = [request for request in WORKLOAD.requests if request.chain in chains]
    assert len(kept) == len(small.workload.requests), "no session is torn"
    assert small.scaled(None) is None
    assert small.scaled(10**9) == pytest.approx(small.share * 10**9, rel=0.01)


def test_more_memory_of_any_kind_never_hits_less_and_the_ends_are_the_passes() -> None:
    plan = plan_of("gemma-3-27b", 48)
    surface = surface_of(plan)
    rates = np.array(
        [[surface.hit_rate({"full": full, "swa": swa}) for swa in range(300, 4000, 200)] for full in range(900, 9000, 900)]
    )
    assert (np.diff(rates, axis=1) >= 0).all(), "room for windows"
    assert (np.diff(rates, axis=0) > -0.01).all(), "room for paths"
    largest = surface.passes[-1]
    assert surface.hit_rate({}) == largest.hit_rate(float("inf"))
    for served in surface.passes[:-1]:
        assert served.path_tokens is not None
        counts = {"full": served.path_tokens // plan.composition.page_size}
        assert surface.served_hit_rate(counts) == served.hit_rate(float("inf"))


@pytest.mark.parametrize("model", ["qwen3-32b", "gemma-3-27b", "qwen3-next-80b-a3b", "deepseek-v4-flash"])
def test_the_best_split_fits_and_hits_no_less_than_any_other(model: str) -> None:
    plan = plan_of(model, 48)
    surface = surface_of(plan)
    page_counts = split_for_server(plan.composition, plan.device_bytes, SETTINGS)
    best = best_split(surface, plan.device_bytes, SETTINGS.concurrency)
    assert best is not None
    page_bytes = plan.composition.pool_page_bytes()
    assert set(best) <= set(page_bytes)
    assert sum(count * page_bytes[name] for name, count in best.items()) <= plan.device_bytes
    sizes = sizes_of(plan, surface, page_counts)
    assert sizes.recommended.hit_rate >= sizes.present.hit_rate
    assert sizes.ceiling >= sizes.recommended.hit_rate
    for curve in sizes.curves:
        assert [point.size_bytes for point in curve.points] == sorted(point.size_bytes for point in curve.points)
    host = sizes.curve("host").points
    assert host[0].hit_rate >= sizes.present.hit_rate
    assert host[-1].hit_rate == pytest.approx(sizes.ceiling, abs=0.02)
