"""Why SGLang's requests had to compute what they computed: planted situations, over SGLang's real pools without a model."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    import torch
    from model_caches import our_cache
    from scheduler_model import Case, Pools, Scheduler
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    from unified_tree import MissCause
    from unified_tree.controllers.adapters.sglang.observation import MissLog
    from unified_tree.controllers.adapters.sglang.settings import MissSettings

pytestmark = pytest.mark.filterwarnings("ignore")
FULL = Case(chunk=512, full_tokens=2000)
WINDOW = Case(chunk=512, full_tokens=2000, window=31, window_tokens=1000)
STATES = Case(chunk=512, full_tokens=2000, states=20)
GRID = Case(chunk=512, full_tokens=2000, states=20, extra_buffer=True, grid=64, page_size=16)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    level = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    yield
    logging.disable(level)


class Engine:
    """A scheduler that tells the causes of each request."""

    def __init__(self, case: Case, **options: Any) -> None:
        pools = Pools(case)
        self.cache: Any = our_cache(pools, **options)
        self.scheduler = Scheduler(pools, self.cache, has_host="write_policy" in options, has_store="files" in options)

    def finish(self) -> None:
        scheduler = self.scheduler
        for _ in range(2000):
            if not (scheduler.waiting or scheduler.running or scheduler.prefilling):
                return
            if not scheduler.running:
                time.sleep(0.001)  # a store may be at work
            scheduler.step()
        pytest.fail("a request does not end")

    def settle(self) -> None:
        """Let the copies to host end."""
        self.cache._tiers.controller.drain()
        self.cache.check_hicache_events()

    def serve(self, *prompts: list[int], new: int = 1, **options: Any) -> dict[str, int]:
        """Serve prompts at once; what they computed, by cause, but for the last tokens."""
        before = list(self.cache.misses.ledger.tokens)
        for prompt in prompts:
            self.scheduler.submit(prompt, new, **options)
        self.finish()
        now = self.cache.misses.ledger.tokens
        counts = {cause.label: now[cause] - before[cause] for cause in MissCause if now[cause] > before[cause]}
        last = counts.pop("last_token")
        assert last == len(prompts) * (2 if self.scheduler.pools.case.eagle else 1)
        return counts

    @property
    def words(self) -> dict[str, int]:
        return dict(self.cache.misses.figures().misses)


def tokens(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


@pytest.mark.parametrize("case", [FULL, WINDOW, STATES, GRID, Case(eagle=True)])
def test_a_new_prompt_was_never_seen(case: Case) -> None:
    engine = Engine(case)
    causes = engine.serve(tokens(161))
    assert set(causes) <= {"never_seen", "page_remainder", "save_grid"}
    assert causes["never_seen"] >= 128


def test_a_prompt_again_computes_its_last_token_alone() -> None:
    engine = Engine(FULL)
    engine.serve(tokens(100))
    assert engine.serve(tokens(100)) == {}
    figures = engine.cache.misses.figures()
    assert (figures.requests, figures.prompt_tokens, figures.hit_tokens) == (2, 200, 99)


def test_other_tokens_behind_a_prefix_have_diverged() -> None:
    engine = Engine(FULL)
    engine.serve(tokens(100))
    assert engine.serve(tokens(60) + tokens(40, 500)) == {"diverged": 39}


def test_the_end_of_a_prompt_fills_no_page() -> None:
    engine = Engine(Case(chunk=512, full_tokens=2048, page_size=16))
    engine.serve(tokens(106))
    assert engine.serve(tokens(106)) == {"page_remainder": 9}


def test_another_namespace_knows_the_prompt() -> None:
    engine = Engine(FULL)
    engine.serve(tokens(100), extra_key="a")
    assert engine.serve(tokens(100), extra_key="b") == {"other_namespace": 99}


def test_a_starved_pool_is_named() -> None:
    engine = Engine(Case(chunk=512, full_tokens=260))
    engine.serve(tokens(200))
    engine.serve(tokens(200, 1000))
    causes = engine.serve(tokens(200))
    assert causes.pop("evicted") > 100
    assert not causes
    assert engine.words["evicted from the device pool of full"] > 100


def test_a_window_that_was_evicted_is_named() -> None:
    engine = Engine(WINDOW)
    engine.serve(tokens(200))
    engine.cache.evict(EvictParams(swa_num_tokens=200))
    assert engine.serve(tokens(240)) == {"evicted": 200, "never_seen": 39}
    assert engine.words["evicted from the device pool of swa"] == 200


def test_a_window_serves_a_repeat_and_what_goes_on_and_a_branch_while_there_is_room() -> None:
    engine = Engine(WINDOW)
    engine.serve(tokens(200))
    assert engine.serve(tokens(200)) == {}
    assert engine.serve(tokens(240)) == {"never_seen": 39}
    assert engine.serve(tokens(100) + tokens(50, 500)) == {"diverged": 49}


def test_a_state_that_was_evicted_is_named() -> None:
    engine = Engine(STATES)
    engine.serve(tokens(200), tokens(300, 1000))
    engine.cache.evict(EvictParams(mamba_num=20))
    causes = engine.serve(tokens(201))
    assert causes.pop("evicted") >= 199
    assert engine.words["evicted from the device pool of mamba"] >= 199


def test_a_state_that_was_never_saved_is_named() -> None:
    engine = Engine(STATES)
    engine.serve(tokens(200))
    assert engine.serve(tokens(100) + tokens(50, 500)) == {"never_saved": 100, "diverged": 49}
    causes = engine.serve(tokens(100) + tokens(50, 800))  # SGLang has no state there this time either
    assert causes == {"never_saved": 100, "diverged": 49}
    assert engine.words["never saved (not saved where it was due)"] == 100


def test_a_state_that_was_saved_where_it_was_due_is_a_hit() -> None:
    engine = Engine(GRID)
    engine.serve(tokens(256))
    assert engine.serve(tokens(128) + tokens(80, 500))["never_saved"] == 128
    assert "never_saved" not in engine.serve(tokens(128) + tokens(80, 800))
    assert engine.scheduler.counts.cached_tokens == 128
    assert not any("due" in words for words in engine.words)


def test_behind_the_last_length_at_which_a_state_is_saved() -> None:
    engine = Engine(GRID)
    engine.serve(tokens(250))
    assert engine.serve(tokens(250)) == {"save_grid": 48, "page_remainder": 9}


def test_a_prompt_that_another_request_computes_is_in_flight() -> None:
    engine = Engine(FULL)
    assert engine.serve(tokens(100), tokens(100)) == {"never_seen": 99, "in_flight": 99}


def test_a_chunked_prompt_is_in_flight_as_far_as_it_is_not_published() -> None:
    engine = Engine(Case(chunk=64, full_tokens=2000))
    assert engine.serve(tokens(200), tokens(200)) == {"never_seen": 199, "in_flight": 7}
    assert engine.scheduler.counts.cached_tokens == 192


def test_what_the_host_has_is_not_loaded_for_want_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Case(chunk=512, full_tokens=400), write_policy="through")
    engine.serve(tokens(200))
    engine.settle()
    engine.cache.evict(EvictParams(num_tokens=400))
    monkeypatch.setattr(engine.cache._tiers, "begin_load", lambda *_, **__: None)
    assert engine.serve(tokens(200)) == {"load_refused": 199}
    assert engine.words["load refused (room)"] == 199


def test_what_the_host_has_is_loaded() -> None:
    engine = Engine(Case(chunk=512, full_tokens=400), write_policy="through")
    engine.serve(tokens(200))
    engine.settle()
    engine.cache.evict(EvictParams(num_tokens=400))
    assert engine.serve(tokens(200)) == {}
    assert engine.scheduler.counts.loaded_tokens == 199


def test_a_store_that_a_request_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(FULL, write_policy="through", files=tmp_path)
    monkeypatch.setattr(engine.cache._tiers, "due_tokens", lambda _: 150)
    assert engine.serve(tokens(200)) == {"prefetch_given_up": 150, "never_seen": 49}


def test_tokens_whose_probabilities_are_asked_for_are_not_looked_up() -> None:
    engine = Engine(FULL)
    engine.serve(tokens(100))
    misses, match = engine.cache.misses, engine.cache.tree.match_prefix
    req = engine.scheduler.submit(tokens(100), 1)
    engine.scheduler.waiting.clear()
    key = engine.cache._keys.key(req.full_untruncated_fill_ids, 40, None, None)
    before = list(misses.ledger.tokens)
    misses.matched(req, match(key), 40)
    req.prefix_len = 40
    misses.admitted(req)
    now = misses.ledger.tokens
    assert [now[cause] - before[cause] for cause in MissCause if now[cause] > before[cause]] == [60]
    assert now[MissCause.LAST_TOKEN] - before[MissCause.LAST_TOKEN] == 60
    assert engine.words["last token (not looked up)"] == 59


def test_a_request_that_was_taken_back_is_booked_once() -> None:
    engine = Engine(FULL)
    req = engine.scheduler.submit(tokens(100), 20)
    engine.scheduler.step()
    engine.scheduler.running.remove(req)
    engine.scheduler._retract(req)
    engine.finish()
    figures = engine.cache.misses.figures()
    assert (figures.requests, sum(figures.misses.values())) == (1, 100)


def test_figures_outlive_a_flush() -> None:
    engine = Engine(FULL)
    engine.serve(tokens(100))
    engine.scheduler.flush()
    assert engine.serve(tokens(100)) == {"never_seen": 99}
    assert engine.words["never seen"] == 198


def test_nothing_is_kept_without_memory() -> None:
    engine = Engine(FULL, misses=MissSettings(memory_mib=0))
    assert engine.cache.misses is None
    assert engine.cache.tree.state.ghosts is None
    engine.scheduler.submit(tokens(100), 1)
    engine.finish()


def test_the_log_tells_what_was_served(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(STATES)
    log = MissLog(engine.cache.misses.figures, 3600)
    log.start()
    with caplog.at_level("INFO"):
        log.tell()
        engine.serve(tokens(200))
        engine.serve(tokens(100) + tokens(100, 500))
        log.close()
        log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "unified_tree: 2 requests, 400 prompt tokens: 0 % cached; computed: 50 % never seen, 25 % never saved, 25 % diverged"
    ]
