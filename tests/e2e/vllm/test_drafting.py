"""Speculative decoding without a draft model in a real vLLM. Run as test_served_models.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_page_witness import PageWitness
from vllm_served_mix import Engine, mix

pytest.importorskip("vllm", reason="the engine's python runs these")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
SETTINGS = {"host_gib": 0.05, "boundary_tokens": 64, "verify": True}
NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
OUTPUT = 40


class DraftingEngine(Engine):
    """An engine that drafts from n-grams, whose outputs fill more than a block."""

    def add(self, tokens: list[int], *, output_tokens: int = OUTPUT, salt: str | None = None, **more: Any) -> str:
        return super().add(tokens, output_tokens=output_tokens, salt=salt, **more)


@pytest.fixture(scope="module", params=["llama"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp(request.param)
    tiny_models.MODELS[request.param](path)
    made = DraftingEngine(request.param, path, settings=SETTINGS, speculative_config=NGRAMS)
    yield made
    made.core.shutdown()


@pytest.fixture(autouse=True)
def empty(engine: Engine) -> None:
    engine.forget(host=True)
    engine.counters()


def drafted(engine: Engine) -> tuple[int, int]:
    """How many tokens were drafted and accepted since the engine started."""
    found = {metric.name: metric.value for metric in engine.llm.get_metrics() if hasattr(metric, "value")}
    return found["vllm:spec_decode_num_draft_tokens"], found["vllm:spec_decode_num_accepted_tokens"]


def farthest(engine: Engine) -> float:
    """How far what was saved during a request with drafts is from what its tokens give when they are a prompt."""
    prompt = [3, 4, 5] * 20 + [7]
    name = engine.add(prompt, output_tokens=3 * engine.page)
    engine.run()
    tokens = prompt + engine.outputs[name]
    length = len(tokens) // engine.page * engine.page
    if length == len(tokens):
        length -= engine.page
    witness = PageWitness(engine)
    resumed = witness.resumed(tokens, length)
    right = witness.computed(tokens, length)
    assert resumed.keys() == right.keys()
    pairs = [(ours, theirs) for block, held in resumed.items() for ours, theirs in zip(held, right[block], strict=True)]
    return max(float((ours.float() - theirs.float()).abs().max()) for ours, theirs in pairs)


def test_every_output_equals_no_cache(engine: Engine) -> None:
    before = drafted(engine)
    served = mix(engine, 1, REQUESTS)
    counters, after = engine.counters(), drafted(engine)
    print(f"{engine.model} with n-grams: {REQUESTS} requests, {len(served)} not aborted, drafted {before} {after}, {counters}")
    assert counters["loaded_tokens"] > 5 * engine.page
    assert after[0] - before[0] > after[1] - before[1] > 0, "some drafts were accepted, some not"
    assert [output for *_, output in served] == [engine.alone(tokens, salt=salt) for tokens, salt, _ in served]


def test_what_is_saved_is_what_the_accepted_tokens_give(engine: Engine) -> None:
    assert farthest(engine) < 1e-3


def test_blocks_of_rejected_drafts_are_seen(engine: Engine) -> None:
    """Where all scheduled tokens count as computed."""
    from unified_tree.controllers.adapters.vllm.engine_request import ScheduledRequest

    connector = engine.core.scheduler.connector
    right = type(connector)._scheduled

    def all_of_them(self: Any, output: Any) -> Iterator[ScheduledRequest]:
        for step in right(self, output):
            request = self._requests[step.request_id]
            end = request.num_computed_tokens + output.num_scheduled_tokens[step.request_id]
            yield ScheduledRequest(request_id=step.request_id, end_tokens=end, block_table=step.block_table, states=step.states)

    with (
        mock.patch.object(type(connector), "_scheduled", all_of_them),
        pytest.raises((AssertionError, ValueError, RuntimeError)),
    ):
        assert farthest(engine) < 1e-3
