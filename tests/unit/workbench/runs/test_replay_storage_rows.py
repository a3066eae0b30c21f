"""Replays with a store behind the host tier: what it gives back, that a later replay finds it, and that every byte is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_rows import GIB, figures, host_of, page_counts, store_of, wrong_bytes
from replay_rows import row_of as run

from unified_tree.components import composition_for
from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.storage import MemoryStorage, Outcome, StoredPool
from unified_tree.controllers.storage.checked_storage import CheckedStorage
from unified_tree.controllers.storage.file.table_index import shape_within
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.controllers.workbench.report.columns import record
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec, report_specs
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.server.server_settings import ServerSettings, StorageCost, StorageSettings, table_bytes
from unified_tree.controllers.workbench.server.verified_pages import Verification, VerifiedPages
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.declare.keys import Key
from unified_tree.terms.errors import ConfigurationError, StorageError
from unified_tree.terms.tier import Tier

MODELS = {
    "llama-3.1-8b": (3.0, 3.0),
    "gpt-oss-20b": (0.6, 0.9),
    "qwen3-next-80b-a3b": (2.5, 2.0),
    "deepseek-v4-flash": (0.7, 0.5),
}
"""GiB on device and host: less than the workload asks for."""
WORKLOAD = synthetic_workload(
    SyntheticOptions(request_count=60, session_gap_s=4, system_tokens=(500, 3000), max_context_tokens=16_000)
)


def plan_of(model: str = "gpt-oss-20b", verification: Verification = Verification.SHRUNK, **storage: Any) -> Plan:
    composition = composition_for(model)
    device_gib, host_gib = MODELS[model]
    return Plan(
        certify=True,
        workload=WORKLOAD,
        composition=composition,
        device_bytes=int(device_gib * GIB),
        settings=ServerSettings(concurrency=4, chunk_tokens=2048),
        host=host_of(composition, host_gib),
        storage=store_of(composition, storage.pop("store_gib", 40), **storage),
        verification=verification,
    )


def in_files(directory: Path, model: str = "gpt-oss-20b", **given: Any) -> Plan:
    return plan_of(model, engine="file", place=str(directory), **given)


@pytest.mark.parametrize("model", MODELS)
def test_a_later_replay_finds_what_an_earlier_one_has_stored_byte_for_byte(model: str, tmp_path: Path) -> None:
    cold, warm = run(in_files(tmp_path, model)), run(in_files(tmp_path, model))
    assert wrong_bytes(cold) == wrong_bytes(warm) == 0
    assert record(cold)["persisted_boundaries"] > 0
    assert record(cold)["persisted_gib"] > 0
    assert warm.total("storage_hit_tokens") > cold.total("storage_hit_tokens")
    assert warm.hit_rate > cold.hit_rate + 0.05
    assert record(warm)["prefetched_gib"] > record(cold)["prefetched_gib"]
    assert record(warm)["persisted_gib"] < record(cold)["persisted_gib"] / 2, "what is stored is not stored again"
    for row in (cold, warm):
        assert 0 <= row.total("storage_hit_tokens") <= row.total("host_hit_tokens") <= row.hit_tokens <= row.prompt_tokens
        assert (record(row)["quarantined_pages"], record(row)["storage_errors"], row.rejected) == (0, 0, 0)


def test_a_store_gives_back_what_host_has_forgotten() -> None:
    small, behind = replace(plan_of(), storage=None), plan_of()
    without, with_store = run(small), run(behind)
    assert without.traffic is None
    assert with_store.total("storage_hit_tokens") > 0
    assert with_store.hit_tokens >= without.hit_tokens
    assert wrong_bytes(with_store) == 0


@pytest.mark.parametrize("engine", ["file", "memory"])
def test_a_row_repeats_and_bytes_change_nothing(engine: str, tmp_path: Path) -> None:
    kinds = (Verification.OFF, Verification.OFF, Verification.SHRUNK)
    rows = [run(plan_of(verification=kind, engine=engine, place=str(tmp_path / str(i)))) for i, kind in enumerate(kinds)]
    assert figures(rows[0]) == figures(rows[1]) == figures(rows[2])


def test_rows_share_nothing(tmp_path: Path) -> None:
    plan = in_files(tmp_path)
    specs = report_specs(["lru", "cost"], page_counts(plan), plan)
    assert all(spec.kind is not RowKind.UNBOUNDED for spec in specs), "it would begin with nothing where others are warm"
    together = [figures(run_row(plan, spec)) for spec in specs]
    assert {path.name for path in tmp_path.iterdir()} == {spec.store_name for spec in specs}
    alone = run(in_files(tmp_path / "other"), policy="cost")
    assert figures(alone) == together[1]


def test_pages_without_content_another_workload_and_another_model_are_not_found(tmp_path: Path) -> None:
    run(in_files(tmp_path, verification=Verification.OFF))
    with_bytes = run(in_files(tmp_path))
    assert wrong_bytes(with_bytes) == 0
    cold = run(plan_of())
    assert with_bytes.hit_tokens == cold.hit_tokens, "nothing was there to be found"
    renamed = replace(in_files(tmp_path), workload=replace(WORKLOAD, name="another"))
    assert run(renamed).hit_tokens == cold.hit_tokens
    half = replace(in_files(tmp_path), composition=composition_for("gpt-oss-20b", kv_dtype="fp8"))
    assert run(half).hit_rate < 0.999
    assert wrong_bytes(run(in_files(tmp_path))) == 0


def test_true_page_sizes(tmp_path: Path) -> None:
    options = SyntheticOptions(
        request_count=12, system_tokens=(500, 900), turn_tokens=150, output_tokens=9, max_context_tokens=2500
    )
    plan = replace(in_files(tmp_path, verification=Verification.FULL, store_gib=0.5), workload=synthetic_workload(options))
    small = host_of(plan.composition, 0.25)
    spec = RowSpec(kind=RowKind.POLICY, policy="lru", page_counts={"full": 60, "swa": 16})
    rows = [run_row(replace(plan, host=small), spec) for _ in range(2)]
    assert [wrong_bytes(row) for row in rows] == [0, 0]
    assert rows[1].total("storage_hit_tokens") > 0


def test_a_slow_store_makes_requests_wait_and_patience_ends(tmp_path: Path) -> None:
    run(in_files(tmp_path / "a"))
    run(in_files(tmp_path / "b"))
    run(in_files(tmp_path / "c"))
    fast = run(in_files(tmp_path / "a"))
    complete = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE)
    slow = run(in_files(tmp_path / "b", cost=StorageCost(bytes_per_s=5e8), prefetch=complete))
    hasty = run(
        in_files(tmp_path / "c", cost=StorageCost(bytes_per_s=5e6), prefetch=PrefetchPolicy(base_s=0.05, per_token_s=0))
    )
    assert record(fast)["fetch_wait_s_mean"] < record(slow)["fetch_wait_s_mean"]
    assert hasty.cache.drops["prefetch out of time"] > 0
    assert record(hasty)["fetch_wait_s_mean"] < 0.3, "patience, grace and a few steps"
    assert hasty.total("storage_hit_tokens") < fast.total("storage_hit_tokens")
    assert wrong_bytes(hasty) == wrong_bytes(slow) == 0


def test_a_small_store_forgets_and_nothing_is_wrong(tmp_path: Path) -> None:
    for _ in range(2):
        row = run(in_files(tmp_path, store_gib=0.5))
        assert wrong_bytes(row) == 0
    assert row.hit_rate < run(in_files(tmp_path / "large")).hit_rate + 0.2


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 12345])
def test_a_table_has_room_for_nearly_as_many_pages_as_were_asked_for(count: int) -> None:
    pool = StoredPool(name="full", format_digest=bytes(32), value_bytes=128)
    assert count - 32 < shape_within(table_bytes(count, 128), pool).slots <= count


# -- it must be able to fail


def test_a_page_that_is_another_s_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages of a batch change places after they were verified."""
    original = CheckedStorage.get

    def swapped(self: CheckedStorage, pool: str, keys: Any, pages: Any) -> list[Outcome]:
        outcomes = original(self, pool, keys, pages)
        if len(pages) > 1 and outcomes[0] is outcomes[1] is Outcome.DONE:
            first = bytes(pages[0])
            pages[0][:], pages[1][:] = bytes(pages[1]), first
        return outcomes

    run(in_files(tmp_path))
    monkeypatch.setattr(CheckedStorage, "get", swapped)
    assert wrong_bytes(run(in_files(tmp_path))) > 0


def test_a_fetch_that_reads_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(in_files(tmp_path))

    def idle(*given: Any) -> int:
        begin, end = given[-3:-1]
        return int(end - begin)

    monkeypatch.setattr(Fetch, "_read", idle)
    assert wrong_bytes(run(in_files(tmp_path))) > 0


def test_a_page_that_is_wrong_on_host_is_seen_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(in_files(tmp_path))
    original = VerifiedPages.fetched
    wrong: list[int] = []

    def spoiled(self: VerifiedPages, prompt: Any, namespace: str) -> None:
        host = self._host["full"]
        reach = self._cache.tree.transfers.host_path_end(Key(prompt, namespace))
        page = self._cache.tree.pages(reach, "full", Tier.HOST)[-1:]
        before, content = self.wrong_bytes, host.read(page)
        host.write(page, content ^ np.uint8(1))
        original(self, prompt, namespace)
        host.write(page, content)
        wrong.append(self.wrong_bytes - before)

    monkeypatch.setattr(VerifiedPages, "fetched", spoiled)
    row = run(in_files(tmp_path))
    assert wrong
    assert set(wrong) <= {0, 64}
    assert wrong_bytes(row) == sum(wrong) > 0


def test_what_waits_at_the_end_is_stored_before_the_replay_stops(tmp_path: Path) -> None:
    roomy = host_of(composition_for("gpt-oss-20b"), 20)
    quick, slow = in_files(tmp_path / "quick"), in_files(tmp_path / "slow", cost=StorageCost(bytes_per_s=1e5))
    rows = [run(replace(plan, host=roomy)) for plan in (quick, slow)]
    written = [row.traffic.written_bytes for row in rows if row.traffic is not None]
    assert written[0] == written[1] > 1e5 * rows[1].virtual_s, "more than the store takes while the replay lasts"


def test_what_was_prefetched_and_not_loaded_is_no_hit(tmp_path: Path) -> None:
    plan = in_files(tmp_path)
    assert plan.host is not None
    for _ in range(2):
        row = run(replace(plan, host=replace(plan.host, load_cost=LoadCost(bytes_per_s=1e6))))
    assert record(row)["prefetched_tokens"] > 0
    assert row.total("storage_hit_tokens") == row.total("host_hit_tokens") == 0
    assert wrong_bytes(row) == 0


def test_a_store_that_fails_costs_hits_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[Outcome]:
        raise StorageError("no disk")

    for call in ("get", "put"):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStorage, call, broken)
            row = run(plan_of())
        assert row.total("storage_hit_tokens") == 0
        assert row.rejected == 0
        assert wrong_bytes(row) == 0
        assert record(row)["storage_errors"] > 0 or call == "get"


def test_settings_that_no_engine_takes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a=b"):
        StorageSettings(engine="null", place="x", size_bytes=None, page_counts={}).row_options("lru", [], VirtualClock())
    with pytest.raises(ConfigurationError, match="rate"):
        StorageCost(bytes_per_s=0)
