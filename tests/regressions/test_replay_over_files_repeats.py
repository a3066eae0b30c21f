"""A replay with a file store gave other figures on a busier machine: the store evicted by the wall clock, and noted a use
only when a second of that had passed since the one before.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from replay_rows import GIB, figures, host_of, row_of, store_of, wrong_bytes

from unified_tree.components import composition_for
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.workbench.runs.plan import Plan
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.verified_pages import Verification
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload

COMPOSITION = composition_for("gpt-oss-20b")
SLEEP_S = 2.5
"""In all: more than the second after which a use is noted."""


def run(directory: Path) -> list[object]:
    """The figures of two replays, one after the other, over one store, which has far less room than the workload fills."""
    plan = Plan(
        workload=synthetic_workload(
            SyntheticOptions(request_count=60, session_gap_s=4, system_tokens=(500, 3000), max_context_tokens=16_000)
        ),
        composition=COMPOSITION,
        device_bytes=GIB // 2,
        settings=ServerSettings(concurrency=4, chunk_tokens=2048),
        host=host_of(COMPOSITION, 0.5),
        storage=store_of(COMPOSITION, 2, "file", str(directory)),
        verification=Verification.SHRUNK,
    )
    rows = [row_of(plan) for _ in range(2)]
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
