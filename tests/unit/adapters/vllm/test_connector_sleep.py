"""Sleep and wake: the host tier lives on with the same weights, and no wrong page is loaded. Loads that are told late."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from vllm_engine_model import MODELS, PAGE, EngineModel, Request

from unified_tree.controllers.adapters.vllm import StepReport, weight_digests
from unified_tree.controllers.adapters.vllm.messages import PageCopies
from unified_tree.controllers.adapters.vllm.worker_side import WorkerSide
from unified_tree.terms.errors import ConfigurationError


def sleepy_traffic(engine: EngineModel, sleeps: int) -> int:
    """Requests, and sleeps at random moments; how many kept the weights. Every page that is loaded is checked by the model."""
    pick, past, kept = engine.random, [[0, 1, 2] * 8, [2, 1, 0] * 8], 0
    for number in range(sleeps):
        head = pick.choice(past)
        tokens = [*head[: pick.randrange(len(head) + 1)], *(pick.randrange(3) for _ in range(pick.randrange(1, 12)))]
        request = Request(f"r{number}", pick.choice(["", "salt"]), tokens[:40], pick.randrange(1, 8))
        engine.add(request)
        past = [*past[-5:], request.all_token_ids]
        for _ in range(pick.randrange(12)):
            engine.step()
        if pick.random() < 0.2:
            engine.settle()
        changes = pick.random() < 0.2
        engine.sleep(weights=(engine.weights + changes) % 2, is_rebuilt=pick.random() < 0.3)
        kept += not changes
        engine.step()
        while len(engine.running) + len(engine.waiting) > 3:
            engine.step()
    engine.settle()
    return kept


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_sleeps_at_random_moments_lose_nothing_and_no_wrong_page_is_loaded(kind: str, workers: int) -> None:
    engine = EngineModel(kind, 1, workers=workers, sleeps=True)
    kept = sleepy_traffic(engine, 200)
    counters = engine.side.take_counters()
    assert 0.5 * kept < counters["kept_sleeps"] <= kept  # not those that came, before the workers were asked, with new weights
    assert counters["loaded_tokens"] > 500


def test_a_prompt_hits_as_before_after_a_sleep_and_not_with_other_weights() -> None:
    for kind in MODELS:
        engine = EngineModel(kind, 0, host_bytes=100_000, sleeps=True)
        hits = []
        for weights in (0, 1, 0, 0, 0):
            hits.append(engine.serve([number % 3 for number in range(5 * PAGE + 1)]))
            engine.sleep(weights=weights)
        assert hits == [0, 5 * PAGE, 0, 0, 5 * PAGE], "weights that come back are not those of what was forgotten"


def test_sleeps_without_a_step_between_keep_what_a_reset_beside_them_forgets() -> None:
    for sleeps, resets, kept in ((1, 0, True), (3, 0, True), (1, 1, False), (0, 1, False)):
        engine = EngineModel("window", 0, host_bytes=100_000, sleeps=True)
        engine.serve([0] * (3 * PAGE + 1))
        for _ in range(resets):
            engine.side.reset()
        for _ in range(sleeps):
            engine.sleep()
        assert bool(engine.serve([0] * (3 * PAGE + 1))) is kept


def test_a_reset_while_an_answer_is_under_way_is_asked_about_again() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000, sleeps=True)
    side = engine.side
    side.reset()
    first = side.plan([]).reset_job
    side.reset()
    second = side.plan([]).reset_job
    assert first is not None
    assert second not in (None, first)
    for job in (first, second):
        request = Request(f"r{job}", "", [0] * 5, 1)
        side.begin(request, "")
        assert side.matched_tokens(request, 0) is None
        report = StepReport()
        report.add(job)
        side.complete(report)
    assert side.matched_tokens(request, 0) == 0
    assert side.open_jobs == 0


def test_no_copy_is_made_while_vllm_sleeps() -> None:
    engine = EngineModel("full", 0)
    worker = engine.workers[0]
    worker.give_back()
    worker.give_back()
    with pytest.raises(RuntimeError, match="vLLM sleeps"):
        worker.pages[0].load(PageCopies(group=0, blocks=(1,), pages=(1,)))
    worker.restore()
    worker.restore()
    worker.pages[0].load(PageCopies(group=0, blocks=(1,), pages=(1,)))
    with pytest.raises(ConfigurationError, match="another format"):
        worker.register({"full": engine.caches[0]["full"].float()}, engine.block_count)


def test_a_load_whose_pages_went_before_its_blocks_were_told_fails_alone() -> None:
    for kind in MODELS:
        engine = EngineModel(kind, 0, host_bytes=100_000)
        tokens = [number % 3 for number in range(3 * PAGE + 1)]
        for namespace in "xy":
            engine.serve(tokens, namespace)
        side, worker, late = engine.side, engine.workers[0], Request("late", "x", list(tokens), 1)
        side.begin(late, "x")
        hit = side.matched_tokens(late, 0)
        assert hit == 3 * PAGE
        side.index.invalidate("x")
        side.load("late", [[5, 6, 7] for _ in engine.groups], hit)
        worker.start_loads(side.plan([]).loads)
        engine.delays[0].run(1)
        assert worker.take_received() == ({"late"}, {"late"})
        assert worker.take_bad_blocks() == {5, 6, 7}
        report = worker.take_report()
        assert report is not None
        side.complete(report)
        assert side.take_counters()["lost_loads"] == 1
        assert side.matched_tokens(late, 0) == 0, "it is computed, and not promised again"
        side.end("late")
        other = Request("other", "y", list(tokens), 1)
        side.begin(other, "y")
        assert side.matched_tokens(other, 0) == 3 * PAGE


def test_weights_that_changed_are_seen_if_the_workers_are_asked() -> None:
    """The planted defect: a worker that does not compare."""

    def careless(worker: WorkerSide, job_id: int, _: int) -> None:
        worker._report.add(job_id)

    with mock.patch.object(WorkerSide, "answer_reset", careless), pytest.raises(AssertionError, match="block"):
        sleepy_traffic(EngineModel("full", 1, sleeps=True), 200)


def test_a_digest_changes_with_every_bit_of_the_weights() -> None:
    words = torch.zeros(3 << 20, dtype=torch.int32)
    handles = {8: SimpleNamespace(tag="weights", handle=(0, 0, 8, 0)), 9: SimpleNamespace(tag="kv_cache", handle=(0, 0, 9, 0))}
    with mock.patch.object(weight_digests, "_words", lambda pointer, *_: {8: words}[pointer]):
        digest = weight_digests.weights_digest(SimpleNamespace(pointer_to_data=handles))
        seen = {digest}
        for places in ([0], [1 << 20], [len(words) - 1], [5, 6]):
            words[places] = -(1 << 31)
            seen.add(weight_digests.weights_digest(SimpleNamespace(pointer_to_data=handles)))
            words[places] = 0
        assert len(seen) == 5
        assert weight_digests.weights_digest(SimpleNamespace(pointer_to_data=handles)) == digest
    assert weight_digests.weights_digest(SimpleNamespace(pointer_to_data={})) is None
