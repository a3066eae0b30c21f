"""A replay with a file store gave other figures on a busier machine: the store evicted by the wall clock, and noted a use
only when a second of that had passed since the one before.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from replay_rows import figures, wrong_bytes

from unified_tree.components import composition_for
from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.replay.budget_split import split_for_server
from unified_tree.controllers.replay.host_settings import HostSettings
from unified_tree.controllers.replay.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.replay.row import run_row
from unified_tree.controllers.replay.server_settings import ServerSettings
from unified_tree.controllers.replay.storage_settings import StorageSettings
from unified_tree.controllers.replay.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.replay.verification import Verification
from unified_tree.controllers.storage import FileStorage

GIB = 1 << 30
COMPOSITION = composition_for("gpt-oss-20b")
SLEEP_S = 2.5
"""In all: more than the second after which a use is noted."""


def plan_over(directory: Path) -> Plan:
    """A store with far less room than the workload fills, behind a host tier that forgets soon."""
    host_bytes, store_bytes, device_bytes = GIB // 2, 2 * GIB, GIB // 2
    options = SyntheticOptions(request_count=60, session_gap_s=4, system_tokens=(500, 3000), max_context_tokens=16_000)
    return Plan(
        workload=synthetic_workload(options),
        composition=COMPOSITION,
        device_bytes=device_bytes,
        settings=ServerSettings(concurrency=4, chunk_tokens=2048),
        host=HostSettings(page_counts=propose_page_counts(COMPOSITION, host_bytes=host_bytes), size_bytes=host_bytes),
        storage=StorageSettings(
            engine="file",
            place=str(directory),
            size_bytes=store_bytes,
            page_counts=propose_page_counts(COMPOSITION, host_bytes=store_bytes),
        ),
        verification=Verification.SHRUNK,
    )


def run(directory: Path) -> list[object]:
    """The figures of two replays, one after the other, over one directory."""
    plan = plan_over(directory)
    page_counts = split_for_server(COMPOSITION, plan.device_bytes, plan.settings)
    spec = RowSpec(kind=RowKind.POLICY, policy="lru", page_counts=page_counts)
    rows = [run_row(plan, spec) for _ in range(2)]
    assert [wrong_bytes(row) for row in rows] == [0, 0]
    return [figures(row) for row in rows]


def test_the_figures_are_those_of_a_store_whose_calls_take_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = run(tmp_path / "quiet")
    choose, left_s = random.Random(1), [SLEEP_S]

    def delayed(call: Any) -> Any:
        def late(*given: Any) -> Any:
            if left_s[0] > 0 and choose.random() < 0.05:
                pause_s = choose.random() * 0.2
                left_s[0] -= pause_s
                time.sleep(pause_s)
            return call(*given)

        return late

    for name in ("get_verified", "put_sealed", "_exists"):
        monkeypatch.setattr(FileStorage, name, delayed(getattr(FileStorage, name)))
    assert run(tmp_path / "slow") == quiet
    assert left_s[0] <= 0, "the store was slow"
