"""Replays with a host tier: what comes back, what is moved, and that every byte is the one that was computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_rows import GIB, figures, host_of, wrong_bytes
from replay_rows import row_of as run

from unified_tree import Boundary, Tier
from unified_tree.components import composition_for
from unified_tree.controllers import WritePolicy
from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.pools import PagePair
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.controllers.workbench.runs import row as rows
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload
from unified_tree.locks.locks import Locks
from unified_tree.terms.errors import TransferError

MODELS = {"llama-3.1-8b": 8.0, "gpt-oss-20b": 1.6, "qwen3-next-80b-a3b": 3.0, "deepseek-v4-flash": 1.0}
WORKLOAD = synthetic_workload(SyntheticOptions(request_count=150, session_gap_s=4))


def plan_of(
    model: str = "gpt-oss-20b",
    host_gib: float | None = 60.0,
    verification: Verification = Verification.SHRUNK,
    **settings: Any,
) -> Plan:
    composition = composition_for(model, draft=settings.pop("draft", 0))
    return Plan(
        certify=True,
        workload=WORKLOAD,
        composition=composition,
        device_bytes=int(MODELS[model] * GIB),
        settings=ServerSettings(concurrency=8),
        host=None if host_gib is None else host_of(composition, host_gib, **settings),
        verification=verification,
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", list(WritePolicy))
def test_every_byte_that_comes_back_is_the_one_that_was_computed(model: str, policy: WritePolicy) -> None:
    row = run(plan_of(model, write_policy=policy))
    assert wrong_bytes(row) == 0
    assert row.cache.backed_up.count > 0
    assert row.rejected == 0
    assert 0 <= row.total("host_hit_tokens") <= row.hit_tokens <= row.prompt_tokens == WORKLOAD.prompt_tokens
    for name, pool in row.cache.host_pools.items():
        assert pool.total is not None
        assert pool.used <= row.peak_host_pages[name] <= pool.total


def test_a_draft_in_shared_pages_is_compared_too() -> None:
    row = run(plan_of("qwen3-next-80b-a3b", draft=1))
    assert "draft" in row.cache.host_pools
    assert wrong_bytes(row) == 0


def test_true_page_sizes() -> None:
    options = SyntheticOptions(
        request_count=12, system_tokens=(200, 900), turn_tokens=50, output_tokens=9, max_context_tokens=2000
    )
    plan = replace(plan_of(host_gib=0.25, verification=Verification.FULL), workload=synthetic_workload(options))
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 30, "swa": 8}))
    assert row.cache.loaded.count > 0
    assert wrong_bytes(row) == 0
    assert row.verified is not None
    assert row.verified.checked_bytes % 1_572_864 == 0, "pages of 24 KiB a token"


def test_a_row_repeats_and_bytes_change_nothing() -> None:
    kinds = (Verification.OFF, Verification.OFF, Verification.SHRUNK)
    rows = [run(plan_of(verification=kind)) for kind in kinds]
    assert figures(rows[0]) == figures(rows[1]) == figures(rows[2])


def test_a_large_host_gives_back_what_a_small_device_forgets() -> None:
    without, behind = run(plan_of(host_gib=None)), run(plan_of())
    unbounded = run(plan_of(host_gib=None), RowKind.UNBOUNDED)
    assert behind.cache.loaded.count > 0
    assert without.hit_rate < behind.hit_rate - 0.1
    assert behind.hit_rate > unbounded.hit_rate - 0.03


def test_a_bus_so_slow_that_computing_is_cheaper_is_not_used() -> None:
    row = run(plan_of(load_cost=LoadCost(bytes_per_s=1e6)))
    assert row.cache.loaded.count == row.total("host_hit_tokens") == 0
    assert row.hit_tokens > 0


def test_a_slower_bus_makes_requests_wait_longer() -> None:
    fast, slow = (run(plan_of(load_cost=LoadCost(bytes_per_s=rate, flops_per_s=1e9))) for rate in (1e11, 2e9))
    assert fast.total("load_wait_s") / fast.cache.loaded.count < slow.total("load_wait_s") / slow.cache.loaded.count
    assert fast.virtual_s <= slow.virtual_s


def prompt(index: int, arrival_s: float, *blocks: range) -> Request:
    runs = np.array([(block.start, len(block)) for block in blocks], np.int64).ravel()
    tokens = 64 * sum(map(len, blocks))
    return Request(
        index=index, arrival_s=arrival_s, runs=runs, block_tokens=64, prompt_tokens=tokens, output_tokens=1, chain=NO_CHAIN
    )


def test_what_two_ask_for_at_once_is_loaded_once_and_both_wait_as_long_as_the_bus_takes() -> None:
    common = range(10)
    requests = [
        prompt(0, 0.0, common),
        prompt(1, 10.0, range(100, 131)),  # drives the first from the device
        prompt(2, 100.0, common, range(40, 42)),
        prompt(3, 100.0, common, range(50, 52)),
    ]
    page_bytes = 8 << 20
    cost = LoadCost(bytes_per_s=10 * page_bytes, latency_s=1e-3, flops_per_s=1e9)  # a second for the ten pages
    plan = replace(
        plan_of("llama-3.1-8b", host_gib=1.0, load_cost=cost),
        workload=Workload(name="four", requests=tuple(requests), block_count=200),
    )
    row = run_row(plan, RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 32}))
    assert row.total("host_hit_tokens") == row.hit_tokens == 2 * 640
    assert row.cache.loaded.size_bytes == 10 * page_bytes
    assert row.total("load_wait_s") == pytest.approx(2 * 51 * 0.02), "1.001 s in steps of 20 ms"
    assert row.served["admitted_s"][2:].tolist() == [100.0, 100.0]
    assert wrong_bytes(row) == 0


# -- it must be able to fail


def misplace(original: Callable[..., None]) -> Callable[..., None]:
    """Pages of a copy end up in each other's places."""

    def wrong(self: PagePair, *arguments: Any) -> None:
        *front, source, target = arguments
        original(self, *front, source, np.roll(target, 1))

    return wrong


@pytest.mark.parametrize("name", ["backup", "load_layers"])
def test_a_wrong_copy_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePair, name, misplace(getattr(PagePair, name)))
    assert wrong_bytes(run(plan_of())) > 0


@pytest.mark.parametrize("component", ["full", "swa", "mamba"])
def test_a_wrong_copy_of_one_component_is_seen(component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PagePair.backup

    def wrong(self: PagePair, source: Any, target: Any) -> None:
        name = self.device.format.component
        original(self, source - (source > 0) if name == component else source, target)

    monkeypatch.setattr(PagePair, "backup", wrong)
    assert wrong_bytes(run(plan_of("qwen3-next-80b-a3b" if component == "mamba" else "gpt-oss-20b"))) > 0


@pytest.mark.parametrize("host_gib", [None, 60.0])
def test_pages_handed_out_in_the_wrong_order_are_seen(host_gib: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Locks.pages

    def turned(self: Locks, boundary: Boundary, i: int, tier: Tier, *pages_of: Any) -> list[bytes]:
        ids = np.frombuffer(b"".join(original(self, boundary, i, tier, *pages_of)), np.int64)
        return [(ids[::-1] if i == 0 else ids).tobytes()]

    monkeypatch.setattr(Locks, "pages", turned)
    assert wrong_bytes(run(plan_of(host_gib=host_gib))) > 0


def broken(*_: Any) -> None:
    raise TransferError("no bus")


def test_loads_that_fail_are_tried_again_and_end_in_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePair, "load_layers", broken)
    row = run(plan_of())
    assert row.cache.drops["load failed"] > 0
    assert row.cache.loaded.count == row.total("host_hit_tokens") == 0
    assert row.rejected > 0
    assert wrong_bytes(row) == 0


def test_backups_that_fail_lose_hits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePair, "backup", broken)
    row = run(plan_of())
    assert row.cache.drops["backup failed"] > 0
    assert (row.cache.backed_up.count, row.cache.loaded.count, row.rejected) == (0, 0, 0)
    assert wrong_bytes(row) == 0


def test_an_engine_that_says_too_early_that_it_is_done_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CpuEngine", lambda _: NullEngine())
    assert wrong_bytes(run(plan_of())) > 0
