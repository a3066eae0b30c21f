"""The bench of samples notes what each request hits, and compares it with its share alone."""

from __future__ import annotations

import numpy as np
import pytest

from benches import sampling
from benches.sampling import Noted, off_by, rows
from unified_tree.controllers.cli.arguments import Arguments
from unified_tree.controllers.cli.commands import replay_command
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.sizing.sample import subtrees


@pytest.fixture(scope="module")
def plan() -> Plan:
    options = ["--requests", "300", "--model", sampling.MODEL, "--device-gib", "20"]
    made: Plan = Arguments(replay_command.make_context("replay", options).params).plan()
    return made


def test_what_is_noted_is_what_a_cache_hits(plan: Plan) -> None:
    noted = Noted(plan, None)
    noted.run()
    row = run_row(plan, RowSpec(kind=RowKind.UNBOUNDED, policy="lru", page_counts={"full": 1 << 20}, is_bounded=False))
    assert noted.tokens.sum(axis=1).tolist() == [row.prompt_tokens, row.hit_tokens]


def test_all_of_it_is_off_by_nothing_and_less_by_more(plan: Plan) -> None:
    noted = Noted(plan, 100_000)
    noted.run()
    trees, _ = subtrees(plan.workload.requests)
    assert set(off_by(noted.tokens, trees, 1.0)) == {0.0}
    assert max(off_by(noted.tokens, trees, 0.05)) > max(off_by(noted.tokens, trees, 0.5)) > 0


def test_a_sample_is_asked_for_its_own_requests(plan: Plan) -> None:
    trees, _ = subtrees(plan.workload.requests)
    tokens = np.zeros((2, len(plan.workload.requests)), np.int64)
    tokens[0] = 1
    tokens[1, [request.index for request in trees[0]]] = 1
    expected = 100 * len(trees[0]) / len(plan.workload.requests)
    assert any(off > 50 or off == pytest.approx(expected) for off in off_by(tokens, trees, 0.001))


def test_a_row_has_a_figure_for_each_share(plan: Plan) -> None:
    [line] = rows("made", plan, (None,))
    assert line.count("|") == sampling.HEADS.count("|")
