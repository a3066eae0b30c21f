"""The calls of a store, and the copies between device and host, among SGLang's metrics."""

from __future__ import annotations

import dataclasses
import logging
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from sglang_tiers import Served

from unified_tree.controllers.adapters.sglang.metrics import StoreMetrics
from unified_tree.controllers.adapters.sglang.observation import MeteredCounters, Observation
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.settings import MissSettings
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.nodes.effect import EffectKind

LABELS = {"tp_rank": "0"}
PAGE = struct.pack("<2f", 1.0, 2.0)
"""What the first page begins with."""


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """What a scrape gives, by name and labels."""
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


class Families:
    """A collector of families that are given."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


def spoil(files: Path) -> None:
    """Change some bytes of every page in a store, whose pages hold numbers from 1 on in float32."""
    for file in files.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        if PAGE in content:
            file.write_bytes(content.replace(PAGE, bytes(len(PAGE))))


def test_all_that_a_scrape_of_a_prefix_cache_counts_of_a_store_is_counted(tmp_path: Path) -> None:
    registry, served = CollectorRegistry(), Served("full", tmp_path)
    metrics = StoreMetrics(LABELS, 1.0, lambda: 0.0, CacheCounters(), registry)
    storage = served.tiers.storage
    assert storage is not None
    for _ in range(2):
        served.stored()
        served.tiers.counters.count_drop("a reason")
        metrics.tell(served.tiers.counters.drops, storage.stats())
    expected = CollectorRegistry()
    collector = CacheCollector(SimpleNamespace, LABELS)  # type: ignore[arg-type]
    families = [collector.drops(served.tiers.counters.drops), *collector.storage(storage.stats())]
    expected.register(Families([family for family in families if family.type != "histogram"]))
    found = {name: value for name, value in samples(registry).items() if "_created" not in name}
    assert found == samples(expected)
    assert found['unified_tree_drops_total{reason="a reason",tp_rank="0"}'] == 2
    assert found['unified_tree_storage_persisted_boundaries_total{tp_rank="0"}'] >= 1
    served.tiers.close()


def test_corrupt_pages_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Served("full", tmp_path).stored().tiers.close()
    spoil(tmp_path)
    registry, served = CollectorRegistry(), Served("full", tmp_path)
    metrics = StoreMetrics(LABELS, 1.0, lambda: 0.0, CacheCounters(), registry)
    with caplog.at_level(logging.WARNING):
        assert served.found() == 0
    assert served.tiers.storage is not None
    metrics.tell(served.tiers.counters.drops, served.tiers.storage.stats())
    assert samples(registry)['unified_tree_storage_quarantined_total{pool="full",tp_rank="0"}'] > 0
    assert "not what" in caplog.text
    served.tiers.close()


def test_the_figures_are_written_once_an_interval_and_when_a_store_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    now = [100.0]
    monkeypatch.setattr("unified_tree.controllers.adapters.sglang.observation.time.monotonic", lambda: now[0])
    monkeypatch.setattr(StoreMetrics, "tell", told_into(told))
    monkeypatch.setattr(StoreMetrics, "closed", lambda _: told.append("closed"))
    collector = SimpleNamespace(labels=LABELS)
    keys = RequestKeys(is_bigram=False, adapters={})
    observation = Observation(["full"], keys, MissSettings(memory_mib=0), None, 1, collector)
    served = Served("full")
    for step in (0.0, 0.5, 0.4, 0.2):
        now[0] += step
        observation.tell_store(served.tiers)
    assert len(told) == 2
    observation.tell_store(served.tiers, is_last=True)
    assert told[3:] == ["closed"], "the figures of a store that was closed"
    Observation(["full"], keys, MissSettings(memory_mib=0), None, 1).tell_store(served.tiers, is_last=True)
    assert len(told) == 4, "without SGLang's metrics nothing is written"
    served.tiers.close()


def test_the_gauges_of_a_closed_store_do_not_keep_their_last_values(tmp_path: Path) -> None:
    registry, served = CollectorRegistry(), Served("full", tmp_path)
    metrics = StoreMetrics(LABELS, 1.0, lambda: 0.0, CacheCounters(), registry)
    storage = served.tiers.storage
    assert storage is not None
    metrics.tell({}, dataclasses.replace(storage.stats(), boundaries_waiting=3))
    name = 'unified_tree_storage_{}{{tp_rank="0"}}'.format
    before = samples(registry)
    assert (before[name("boundaries_waiting")], before[name("degraded")]) == (3, 0)
    metrics.closed()
    after = samples(registry)
    assert (after[name("boundaries_waiting")], after[name("degraded")]) == (0, 1)
    assert {key: value for key, value in after.items() if "_total" in key} == {
        key: value for key, value in before.items() if "_total" in key
    }
    served.tiers.close()


def told_into(told: list[object]) -> object:
    def tell(self: StoreMetrics, *given: object) -> None:
        told.append(given)
        self._next_s = self._clock() + self._interval_s

    return tell


class Collector:
    """Notes each call, by SGLang's names."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def increment_backup_num_tokens(self, num_tokens: int, pool: str) -> None:
        self.calls.append((f"backup {pool}", num_tokens))

    def increment_backup_num_bytes(self, num_bytes: int) -> None:
        self.calls.append(("backup bytes", num_bytes))

    def increment_load_back_num_tokens(self, num_tokens: int, pool: str) -> None:
        self.calls.append((f"load_back {pool}", num_tokens))

    def increment_load_back_num_bytes(self, num_bytes: int) -> None:
        self.calls.append(("load_back bytes", num_bytes))


def test_each_ended_copy_is_counted_by_pool() -> None:
    collector = Collector()
    counters = MeteredCounters(collector, 16)
    counters.transfers[EffectKind.BACKUP].add({"full": 3, "mamba": 1}, 500, 0.01)
    counters.transfers[EffectKind.LOAD].add({"full": 2, "swa": 1}, 300, 0.02)
    assert collector.calls == [
        ("backup kv", 48),
        ("backup mamba", 1),
        ("backup bytes", 500),
        ("load_back kv", 32),
        ("load_back swa", 16),
        ("load_back bytes", 300),
    ]
    assert counters.transfers[EffectKind.BACKUP].pages == 4
    assert counters.transfers[EffectKind.LOAD].size_bytes == 300
