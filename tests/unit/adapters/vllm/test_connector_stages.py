"""Pipeline stages, whose workers hold different layers, and draft models, whose blocks depend on the token behind them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from vllm_engine_model import MODELS, PAGE, PROMPT, STAGES, EngineModel, Request, files, traffic

from unified_tree.controllers.adapters.vllm.block_group import NO_LAYER, NO_LAYER_BYTES
from unified_tree.controllers.adapters.vllm.engine_request import TrackedRequest


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "full"])
def test_every_request_resumes_on_what_all_stages_have_computed(kind: str) -> None:
    engine = EngineModel(kind, 1, stages=STAGES[kind], host_bytes=3000)
    traffic(engine, 40)
    assert engine.hit_tokens > 150
    assert engine.side.take_counters().get("evicted_pages", 0)


def test_a_stage_without_layers_of_a_group_keeps_a_mark_of_it() -> None:
    engine = EngineModel("state", 0, stages=STAGES["state"], host_bytes=100_000)
    assert [group.layer_names for group in engine.held[0]] == [(NO_LAYER,), ("state",)]
    assert engine.serve(PROMPT) == 0
    assert engine.serve(PROMPT) == 6 * PAGE
    for worker, held in zip(engine.workers, engine.held, strict=True):
        sizes = {group.index: pages.block_bytes for group, pages in zip(held, worker.pages.values(), strict=True)}
        assert sorted(sizes.values())[0] == NO_LAYER_BYTES
        counts = {index: pages.pool.page_count for index, pages in worker.pages.items()}
        assert counts == {index: pages.pool.page_count for index, pages in engine.workers[0].pages.items()}


def test_nothing_is_offered_before_all_stages_have_saved_it() -> None:
    engine = EngineModel("state", 0, stages=STAGES["state"], host_bytes=100_000)
    engine.serve(PROMPT)
    engine.index_only_forgets()
    worker = engine.workers[0]
    reports: list[Any] = []
    take = worker.take_report
    worker.take_report = lambda: reports.append(take())  # type: ignore[method-assign]
    engine.add(Request("b", "", PROMPT.copy(), 1))
    for _ in range(10):
        engine.step()
    late = Request("c", "", PROMPT.copy(), 1)
    engine.side.begin(late, "")
    assert engine.side.matched_tokens(late, 0) == 0
    for report in filter(None, reports):
        engine.side.complete(report)
    assert engine.side.matched_tokens(late, 0) == 6 * PAGE


@pytest.mark.parametrize("kind", ["state", "drafted"])
def test_stages_resume_on_their_own_files_and_only_if_all_have_them(kind: str, tmp_path: Path) -> None:
    for cleared, hit in ((0, 0), (None, 6 * PAGE), (1, 0), (0, 0)):
        engine = EngineModel(kind, 0, stages=STAGES[kind], host_bytes=100_000, store=files(tmp_path))
        if cleared is not None:
            store = engine.workers[cleared].store
            assert store is not None
            store._tier.engine.clear()
        assert engine.serve(PROMPT) == hit
        engine.close()


def test_stages_that_hold_other_layers_find_nothing(tmp_path: Path) -> None:
    for stages in (STAGES["window"], STAGES["window"][::-1]):
        engine = EngineModel("window", 0, stages=stages, host_bytes=100_000, store=files(tmp_path))
        assert engine.serve(PROMPT) == 0
        engine.close()


# -- drafts


def branching(paired: bool) -> int:
    """Prompts that branch at block ends, behind a draft model; the model of the engine compares what each block holds."""
    engine = EngineModel("drafted", 0, host_bytes=20_000)
    engine.side._has_paired_keys = paired
    pick = random.Random(5)
    for number in range(40):
        head = PROMPT[: pick.randrange(5) * PAGE]
        engine.add(Request(f"r{number}", "", [*head, *(pick.randrange(3) for _ in range(PAGE + 1))], pick.randrange(1, 6)))
        engine.settle()
    return engine.hit_tokens


def test_a_block_of_a_draft_model_is_of_the_token_behind_it_too() -> None:
    assert branching(paired=True) > 100
    with pytest.raises(AssertionError, match="draft: block"):
        branching(paired=False)


def test_keys_of_pairs_are_made_in_parts_as_in_one_piece() -> None:
    request = Request("a", "", list(range(9)), 0)
    tracked = TrackedRequest(request=request, namespace="", prompt_tokens=9, is_paired=True)
    whole = [(at, at + 1) for at in range(12)]

    def pairs(key: Any) -> list[tuple[int, int]]:
        size = key.length * key.width_bytes
        held = memoryview(bytes(key.data[:size])).cast("q").tolist()
        return list(zip(held[::2], held[1::2], strict=True))

    assert pairs(tracked.key(99)) == whole[:8]
    assert pairs(tracked.sought()) == [*whole[:8], (0, 0)]
    request.all_token_ids += [9, 10, 11, 12]
    for length in range(13):
        assert pairs(tracked.key(length)) == whole[:length]
    assert pairs(tracked.key(99)) == whole
    assert pairs(tracked.sought()) == [*whole, (0, 0)]
