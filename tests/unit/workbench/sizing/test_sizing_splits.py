"""The best split beside the proposed and the given one, and the gains of one more GiB, over random small cases."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import ConfigurationError
from unified_tree.components import Composition
from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.workbench.runs.plan import GIB, Plan, split_for_server
from unified_tree.controllers.workbench.server.server_settings import HostSettings, ServerSettings
from unified_tree.controllers.workbench.sizing.needs import Needs
from unified_tree.controllers.workbench.sizing.sample import Sample
from unified_tree.controllers.workbench.sizing.size_report import points_text
from unified_tree.controllers.workbench.sizing.sizes import Curve, Sizes, path_sizes, sizes_of
from unified_tree.controllers.workbench.sizing.surface import Rejected, survey
from unified_tree.controllers.workbench.traces.workload import Request, Workload

PAGE = 16


def drawn_plan(rng: Random) -> Plan:
    """Requests in some groups that begin alike, of a model with or without windows and states, on little memory."""
    own_blocks, requests = 1000, []
    for index in range(rng.choice([10, 40])):
        shared, own = rng.choice([2, 10, 40]), rng.choice([0, 1, 8])
        requests.append(
            Request(
                index=index,
                arrival_s=index * rng.choice([0.01, 1.0]),
                runs=np.array([100 * rng.randrange(6), shared, own_blocks, own][: 4 if own else 2], np.int64),
                block_tokens=PAGE,
                prompt_tokens=(shared + own) * PAGE,
                output_tokens=rng.choice([1, 30]),
            )
        )
        own_blocks += own
    kinds = [replace(c, page_bytes=rng.choice([256, 1024, 8192])) for c in rng.choice([[FULL], [FULL, swa(40)], [FULL, MAMBA]])]
    plan = Plan(
        workload=Workload(name="made", requests=tuple(requests), block_count=own_blocks),
        composition=Composition(name="made", components=tuple(kinds), page_size=PAGE),
        device_bytes=rng.choice([60, 150, 400, 1000]) * kinds[0].page_bytes + 9 * kinds[-1].page_bytes,
        settings=ServerSettings(concurrency=rng.choice([1, 4, 32]), chunk_tokens=rng.choice([64, 512])),
    )
    if rng.random() < 0.4:
        size_bytes = 4 * plan.device_bytes
        pages = propose_page_counts(plan.composition, host_bytes=size_bytes)
        plan = replace(plan, host=HostSettings(page_counts=pages, size_bytes=size_bytes))
    return plan


def drawn_sizes(rng: Random) -> tuple[Plan, Sizes] | None:
    """The sizes of a plan, with a split by hand in half of the cases; None where it has no split."""
    plan = drawn_plan(rng)
    try:
        pages = split_for_server(plan.composition, plan.device_bytes, plan.settings)
        if rng.random() < 0.5:
            by_hand = {"full": max(1, round(rng.uniform(0.2, 1.5) * pages["full"]))}
            pages = split_for_server(plan.composition, plan.device_bytes, plan.settings, by_hand)
    except ConfigurationError:
        return None
    needs = Needs.of(plan.composition.components, PAGE, plan.settings.chunk_tokens)
    surface = survey(Sample.of(plan.workload), needs, plan.settings, path_sizes(plan, needs, pages), 1)
    return plan, sizes_of(plan, surface, pages)


def test_the_best_split_of_a_row_is_never_worse_than_the_proposed_one_or_the_given_one() -> None:
    rng, better = Random(7), 0
    for _ in range(40):
        drawn = drawn_sizes(rng)
        if drawn is None:
            continue
        plan, sizes = drawn
        best = {point.size_bytes: point for point in sizes.curve("device", "best").points}
        for proposed in sizes.curve("device", "proposed").points:
            assert best[proposed.size_bytes].hit_rate >= proposed.hit_rate
            better += best[proposed.size_bytes].hit_rate > proposed.hit_rate
        row = best[plan.device_bytes]
        assert row.page_counts == sizes.recommended.page_counts
        assert row.hit_rate == sizes.recommended.hit_rate >= sizes.present.hit_rate
        page_bytes = plan.composition.pool_page_bytes()
        for size_bytes, point in best.items():
            assert sum(count * page_bytes[name] for name, count in point.page_counts.items()) <= size_bytes
        for point in [point for curve in sizes.curves for point in curve.points] + [sizes.present]:
            assert point.hit_rate + point.points_per_gib / 100 <= max(sizes.ceiling, point.hit_rate) + 1e-9
    assert better > 10


def test_of_splits_that_hit_no_less_the_best_one_rejects_the_fewest() -> None:
    """Most of the traffic is short; room for the long requests takes nothing from it."""
    rng, fewer = Random(3), 0
    for _ in range(20):
        drawn = drawn_sizes(rng)
        if drawn is None:
            continue
        proposed, best = (drawn[1].curve("device", split).points for split in ("proposed", "best"))
        least = {point.size_bytes: point.rejected_share for point in proposed}
        for point in best:
            if point.size_bytes in least and point.size_bytes != drawn[0].device_bytes:
                assert point.rejected_share <= least[point.size_bytes]
                fewer += point.rejected_share < least[point.size_bytes]
    assert fewer > 2


def test_one_more_gib_adds_what_the_curve_says_and_no_more_than_there_is() -> None:
    nothing = Rejected(requests=0, token_share=0.0, longest_tokens=1)
    sizes: list[tuple[int, dict[str, int], float, Rejected]] = [
        (GIB // 4, {}, 0.1, nothing),
        (GIB // 2, {}, 0.5, nothing),
        (2 * GIB, {}, 0.8, nothing),
    ]
    curve = Curve.of(sizes, tier="device", ceiling=0.9)
    assert [point.points_per_gib for point in curve.points] == pytest.approx([55, 20, 10])
    alone = Curve.of(sizes[:1], tier="device", ceiling=0.9)
    assert alone.points[0].points_per_gib == 0


def test_points_are_printed_without_an_exponent() -> None:
    for points, text in ((100.0, "100"), (99.6, "100"), (61.4, "61"), (9.97, "10"), (0.0284, "0.028"), (-1e-6, "0")):
        assert points_text(points) == text
