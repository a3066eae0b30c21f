"""Copies between device and host, counted under SGLang's names."""

from __future__ import annotations

from typing import Any

from unified_tree.controllers.adapters.sglang.observation import MeteredCounters
from unified_tree.nodes.effect import EffectKind


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
