"""Shared pools follow traffic that turns from chats to agents, and leave it alone while it stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order, pack_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.workbench.runs.row_result import RowResult

GIB = 1 << 30
BLOCK_TOKENS = 64
TURN_S = 1200.0
"""Chats come before, agents after."""
RECOVERY_S = 600.0
PATH_SHARES = (0.3, 0.45, 0.6)


def chats_then_agents() -> Workload:
    """Twenty minutes of short chats of four turns a minute apart, then twenty of agents of long contexts."""
    draw = np.random.default_rng(5)
    requests: list[Request] = []
    blocks = 0

    def session(start_s: float, first: int, added: int, turns: int, gap_s: float) -> None:
        nonlocal blocks
        context: list[int] = []
        now_s = start_s
        for turn in range(turns):
            count = first if turn == 0 else added
            context += range(blocks, blocks + count)
            blocks += count
            tokens = len(context) * BLOCK_TOKENS
            runs = pack_runs(np.array(context, np.int64))
            requests.append(
                Request(
                    index=0, arrival_s=now_s, runs=runs, block_tokens=BLOCK_TOKENS, prompt_tokens=tokens + 5, output_tokens=20
                )
            )
            now_s += gap_s * float(draw.exponential())

    now_s = 0.0
    while now_s < TURN_S:
        session(now_s, first=12, added=4, turns=4, gap_s=60.0)
        now_s += 2.0
    while now_s < 2 * TURN_S:
        session(now_s, first=200, added=20, turns=12, gap_s=40.0)
        now_s += 40.0
    return Workload(name="chats, then agents", requests=in_arrival_order(requests), block_count=blocks)


def plan() -> Plan:
    return Plan(
        composition=composition_for("gemma-3-27b"),
        device_bytes=24 * GIB,
        settings=ServerSettings(concurrency=16, chunk_tokens=1024, step_ms=100.0),
        workload=chats_then_agents(),
    )


def split(the: Plan, path_share: float) -> dict[str, int]:
    page_bytes = the.composition.pool_page_bytes()
    shares = {"full": path_share, "swa": 1 - path_share}
    return {name: int(share * the.device_bytes / page_bytes[name]) for name, share in shares.items()}


def row_of(the: Plan, page_counts: Mapping[str, int] | None) -> RowResult:
    counts, is_shared = page_counts or {}, page_counts is None
    return run_row(the, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=counts, is_shared=is_shared, is_bounded=False))


def hit_rate(row: RowResult, begin_s: float, end_s: float) -> float:
    served = row.served
    some = served[(served["admitted_s"] >= begin_s) & (served["admitted_s"] < end_s)]
    return float(some["hit_tokens"].sum() / some["prompt_tokens"].sum())


@pytest.fixture(scope="module")
def shared() -> RowResult:
    return row_of(plan(), None)


def test_they_recover_within_ten_minutes_when_chats_turn_to_agents(shared: RowResult) -> None:
    the = plan()
    statics = [row_of(the, split(the, share)) for share in PATH_SHARES]
    before = max(hit_rate(row, RECOVERY_S, TURN_S) for row in statics)
    after = max(hit_rate(row, TURN_S + RECOVERY_S, 2 * TURN_S) for row in statics)
    assert hit_rate(shared, RECOVERY_S, TURN_S) >= 0.98 * before
    assert hit_rate(shared, TURN_S + RECOVERY_S, 2 * TURN_S) >= 0.98 * after
    assert shared.hit_tokens >= max(row.hit_tokens for row in statics)


def test_stationary_traffic_is_not_thrashed(shared: RowResult) -> None:
    """While chats go on as they did, what each kind has of the memory stays within a few percent."""
    residency = shared.residency
    times = np.array(residency.time_s)
    pages = np.array(residency.pages["swa"])[(times > RECOVERY_S) & (times < TURN_S)]
    assert pages.min() > 0
    assert pages.max() - pages.min() <= 0.1 * pages.mean(), pages
