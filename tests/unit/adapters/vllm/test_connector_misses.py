"""Why a request computes what neither vLLM's cache nor the host tier has."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_engine_model import PAGE, EngineModel, Request, prompt

from unified_tree.controllers.adapters.vllm import HostIndex, SchedulerSide
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings

LENGTH = 5 * PAGE + 1


def serve(engine: EngineModel, tokens: list[int], namespace: str = "") -> dict[str, int]:
    """Serve a prompt; what it computed by cause, but for the last token, and the counters with other labels."""
    engine.side.take_counters()
    engine.serve(tokens, namespace)
    counters = engine.side.take_counters()
    assert counters["prompt_tokens"] == len(tokens)
    assert counters.pop("miss_tokens/last_token") == 1
    return {name.removeprefix("miss_tokens/"): count for name, count in counters.items() if "/" in name}


def test_a_prompt_is_new_and_then_known() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    assert serve(engine, prompt()) == {"never_seen": LENGTH - 1}
    assert serve(engine, prompt()) == {}
    assert engine.hit_tokens == LENGTH - 1


def test_other_tokens_behind_a_prefix_have_diverged() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    serve(engine, prompt())
    assert serve(engine, prompt(length=2 * PAGE) + prompt(500, PAGE + 2)) == {"diverged": PAGE, "page_remainder": 1}


def test_a_starved_host_pool_is_named() -> None:
    engine = EngineModel("full", 0, host_bytes=8 * PAGE * 8)
    serve(engine, prompt())
    serve(engine, prompt(100))
    causes = serve(engine, prompt())
    assert causes["evicted"] == causes["evicted_miss_tokens/group0"] > 0


@pytest.mark.parametrize("kind", ["window", "state"])
def test_what_no_request_can_resume_from_was_never_saved(kind: str) -> None:
    engine = EngineModel(kind, 0, host_bytes=100_000)
    serve(engine, prompt(length=20 * PAGE + 1))
    causes = serve(engine, prompt(length=3 * PAGE) + prompt(500, PAGE + 1))
    assert causes.get("never_saved", 0) + engine.hit_tokens == 3 * PAGE
    assert causes["diverged"] == PAGE


def test_another_namespace_knows_the_prompt() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    serve(engine, prompt(), "a")
    assert serve(engine, prompt(), "b") == {"other_namespace": LENGTH - 1}


def test_after_a_reset_the_weights_are_others() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    serve(engine, prompt())
    engine.side.reset()
    assert serve(engine, prompt()) == {"other_weights": LENGTH - 1}


def test_a_load_that_failed_is_named() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000, verify=True)
    serve(engine, prompt())
    engine.workers[0].pages[0].hosts[0][:] = 7
    assert serve(engine, prompt()) == {"load_failed": LENGTH - 1}


def test_two_requests_compute_one_prompt() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    for name in "ab":
        engine.add(Request(name, "", prompt(), 1))
    engine.settle()
    counters = engine.side.take_counters()
    assert counters["miss_tokens/never_seen"] == counters["miss_tokens/in_flight"] == LENGTH - 1


def test_a_hit_too_short_to_load_is_named() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    serve(engine, prompt())
    side = engine.side
    side._min_load_tokens = 1000
    assert serve(engine, prompt()) == {"load_refused": LENGTH - 1}


def test_an_aborted_request_is_in_flight_no_more() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    engine.add(Request("a", "", prompt(), 9))
    engine.step()
    engine.abort(engine.running[0])
    engine.settle()


def test_nothing_is_kept_without_memory() -> None:
    def side(**options: Any) -> SchedulerSide:
        return SchedulerSide(HostIndex(EngineModel("full", 0).groups, PAGE, {"group0": 9}, "lru", **options))

    assert side().misses is None
    assert side(ghost_bytes=1).misses is not None
    assert ConnectorSettings.of({"miss_memory_mib": 0}).miss_memory_mib == 0
