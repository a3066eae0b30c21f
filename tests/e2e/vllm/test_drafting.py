"""Speculative decoding in a real vLLM: from n-grams, by a draft model, by EAGLE heads, by MTP. Run as test_served_models.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_page_witness import PageWitness
from vllm_served_mix import SETTINGS, STEP_TOKENS, Engine, mix

pytest.importorskip("vllm", reason="the engine's python runs these")
REQUESTS = int(os.environ.get("REQUESTS", "40"))
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    "draft_model": {"num_speculative_tokens": 3},
    "eagle": {"num_speculative_tokens": 2},
    "eagle3": {"num_speculative_tokens": 2},
    "mtp": {"num_speculative_tokens": 1},
}
DRAFTS = {"draft_model": tiny_models.save_draft, "eagle": tiny_models.save_eagle, "eagle3": tiny_models.save_eagle3}
TARGETS = {"mtp": tiny_models.save_mimo}
"""The Llama if left out."""
HEADS = ("eagle", "eagle3", "mtp")
"""Methods whose draft reads a token with the one behind it."""
RANDOM = ("eagle", "eagle3")
"""Methods whose draft has random weights, so that what it guesses may never be right."""
OUTPUT = 40


class DraftingEngine(Engine):
    """An engine that drafts, whose outputs fill more than a block."""

    method: str

    def add(self, tokens: list[int], *, output_tokens: int = OUTPUT, salt: str | None = None, **more: Any) -> str:
        return super().add(tokens, output_tokens=output_tokens, salt=salt, **more)


@pytest.fixture(scope="module", params=os.environ.get("METHODS", ",".join(METHODS)).split(","))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraftingEngine]:
    path = tmp_path_factory.mktemp("target")
    TARGETS.get(request.param, tiny_models.save_llama)(path)
    drafting: dict[str, Any] = {"method": request.param, **METHODS[request.param]}
    if request.param in DRAFTS:
        drafting["model"] = str(tmp_path_factory.mktemp(request.param))
        DRAFTS[request.param](Path(drafting["model"]))
    made = DraftingEngine("llama", path, settings=SETTINGS, speculative_config=drafting)
    made.method = request.param
    yield made
    made.core.shutdown()


@pytest.fixture(autouse=True)
def empty(engine: DraftingEngine) -> None:
    engine.forget(host=True)
    engine.counters()


def drafted(engine: DraftingEngine) -> tuple[int, int]:
    """How many tokens were drafted and accepted since the engine started."""
    found = {metric.name: metric.value for metric in engine.llm.get_metrics() if hasattr(metric, "value")}
    return found["vllm:spec_decode_num_draft_tokens"], found["vllm:spec_decode_num_accepted_tokens"]


def farthest(engine: DraftingEngine) -> float:
    """How far what was saved during a request with drafts is from what its tokens give when they are a prompt.

    A head's last place before the end of a step is not compared: in the midst of a prompt vLLM fills it from the
    prompt's last token instead of the next one.
    """
    prompt = [3, 4, 5] * 20 + [7]
    name = engine.add(prompt, output_tokens=6 * engine.page)
    engine.run()
    tokens = prompt + engine.outputs[name]
    length = len(tokens) // engine.page * engine.page
    if length == len(tokens):
        length -= engine.page
    witness = PageWitness(engine)
    resumed = witness.resumed(tokens, length)
    right = witness.computed(tokens[:length], length)  # of a longer prompt no step may end there
    assert resumed.keys() == right.keys()
    if engine.method in HEADS:
        for (group, index), held in resumed.items():
            if (index + 1) * engine.page % STEP_TOKENS["llama"] == 0:
                del held[-1], right[group, index][-1]
    pairs = [(ours, theirs) for block, held in resumed.items() for ours, theirs in zip(held, right[block], strict=True)]
    return max(float((ours.float() - theirs.float()).abs().max()) for ours, theirs in pairs)


def test_every_output_equals_no_cache(engine: DraftingEngine) -> None:
    before = drafted(engine)
    served = mix(engine, 1, REQUESTS)
    counters, after = engine.counters(), drafted(engine)
    print(f"{engine.method}: {REQUESTS} requests, {len(served)} not aborted, drafted {before} {after}, {counters}")
    assert counters["loaded_tokens"] > 3 * engine.page
    assert after[0] - before[0] > after[1] - before[1] >= (engine.method not in RANDOM), "some drafts were accepted, some not"
    assert [output for *_, output in served] == engine.right((tokens, salt) for tokens, salt, _ in served)


def test_what_is_saved_is_what_the_accepted_tokens_give(engine: DraftingEngine) -> None:
    assert farthest(engine) < 1e-3


def test_blocks_of_rejected_drafts_are_seen(engine: DraftingEngine) -> None:
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
