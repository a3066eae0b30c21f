"""SGLang changes weights while it serves, by its own class of updates, and tells routers of windows and states.

Run from the repository's root with the engine's python: `ENGINE/bin/python -m pytest -n 0 tests/e2e/sglang/test_changes.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    import event_replay
    import torch
    from model_caches import our_cache
    from scheduler_model import Case, Pools

    from unified_tree.controllers.adapters.sglang.hooks import watch_weights

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def ranks_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.distributed, "barrier", lambda **_: None)


def test_the_calls_that_change_weights_tell_the_cache(tmp_path: Path) -> None:
    """SGLang's own class of these calls, without a model: its runners are stand-ins, and it flushes the real cache."""
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    watch_weights()
    cache = our_cache(Pools(Case()), write_policy="through", files=tmp_path)
    succeeds = True

    def reset(*_: object, **__: object) -> bool:
        cache.reset()
        return True

    updater = SimpleNamespace(
        update_weights_from_disk=lambda *_, **__: (succeeds, "said"),
        begin_weight_update=lambda: None,
        end_weight_update=lambda **_: None,
    )
    manager: Any = object.__new__(SchedulerWeightUpdaterManager)
    manager.tp_worker = SimpleNamespace(weight_update_runners=lambda: [("target", SimpleNamespace(weight_updater=updater))])
    manager.draft_worker = manager.metrics_collector = manager._session = None
    manager.scheduler = SimpleNamespace(tree_cache=cache, record_weight_version_change=lambda **_: None)
    manager.flush_cache, manager.tp_cpu_group = reset, None

    def update(*, flush: bool) -> bool:
        request = io_struct.UpdateWeightFromDiskReqInput(model_path="other", flush_cache=flush, weight_version="5")
        assert manager.update_weights_from_disk(request).success == succeeds
        return cache.enable_storage

    assert cache.enable_storage
    assert not update(flush=False)
    cache.reset()
    assert update(flush=True), "it has flushed by itself"
    succeeds = False
    assert not update(flush=True), "SGLang does not flush where it fails"
    cache.reset()
    assert [cache.enable_storage] == [True]
    for call in ("tensor", "distributed", "ipc"):
        assert hasattr(getattr(SchedulerWeightUpdaterManager, f"update_weights_from_{call}"), "__wrapped__"), call
    began = manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput())
    assert began.success
    assert [cache.enable_storage] == [False]
    assert manager.end_weight_update(io_struct.EndWeightUpdateReqInput()).success
    assert [cache.enable_storage] == [False], "a trainer may have written the weights"
    cache.reset()
    assert [cache.enable_storage] == [True]
    cache.release_host_resources()


@pytest.mark.parametrize("host", [None, "through", "back"])
@pytest.mark.parametrize("name", ["windows", "states", "windows-page16"])
def test_a_router_knows_the_pages_of_each_kind(name: str, host: str | None) -> None:
    index = event_replay.replay(event_replay.CASES[name], host, dynamo=False, requests=30, seed=3)
    assert index.removed_count > 0
