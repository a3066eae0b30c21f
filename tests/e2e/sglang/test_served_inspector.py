"""The inspector's page, and the doctor, of a cache inside SGLang's scheduler, over SGLang's real pools without a model."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sglang_engine
from waiting import told

with sglang_engine.imports():
    import torch
    from model_caches import our_cache
    from scheduler_model import Case, Pools, Scheduler, run
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    from unified_tree import ConfigurationError, MissCause
    from unified_tree.controllers.adapters.sglang.hooks import call_when_idle
    from unified_tree.controllers.cli.diagnosis import diagnosis, read_figures
    from unified_tree.controllers.cli.inspect_command import live_summary
    from unified_tree.controllers.doctor import findings
    from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
    from unified_tree.controllers.inspector.tape import EVENT_FIELDS

pytestmark = pytest.mark.filterwarnings("ignore")
STARVED = Case(chunk=512, full_tokens=2000, states=9, running=3)
TOKEN = "a-token-of-many-characters"
EVICT_ALL = EvictParams(num_tokens=2000)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Engine:
    """A scheduler whose cache has a page."""

    def __init__(self, case: Case, token: str | None = None, **options: Any) -> None:
        pools = Pools(case)
        self.cache: Any = our_cache(pools, inspector=InspectorSettings(token=token), **options)
        self.scheduler = Scheduler(pools, self.cache, has_host="write_policy" in options)
        self.url: str = self.cache.observation.page  # type: ignore[assignment]

    def serve(self, *prompts: list[int], new: int = 1, **options: Any) -> None:
        for prompt in prompts:
            self.scheduler.submit(prompt, new, **options)
        for _ in range(2000):
            if not (self.scheduler.waiting or self.scheduler.running or self.scheduler.prefilling):
                return
            self.scheduler.step()
        pytest.fail("a request does not end")

    def idle(self, work: Callable[[], Any]) -> Any:
        """What somebody else's work returns, while the scheduler has nothing to run."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        while thread.is_alive():
            self.cache.observation.step()
            time.sleep(0.0005)
        thread.join()
        return found[0]

    def ask(self, name: str, body: Any = None) -> Any:
        def fetch() -> Any:
            data = None if body is None else json.dumps(body).encode()
            address = self.url.partition("?")[0] + "api/" + name
            request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)

        return self.idle(fetch)

    def until(self, name: str, condition: Callable[[Any], Any]) -> Any:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            told = self.ask(name)
            if condition(told):
                return told
        raise TimeoutError(f"{name}: {told}")

    def settled(self) -> dict[str, Any]:
        """The page's state when it shows all that was admitted."""
        counters = self.cache.observation.counters
        told: dict[str, Any] = self.until(
            "state", lambda told: told["figures"] and told["figures"]["totals"]["requests"] == counters.requests
        )
        return told


@contextmanager
def engine(case: Case, **options: Any) -> Iterator[Engine]:
    opened = Engine(case, **options)
    try:
        yield opened
    finally:
        opened.cache.release_host_resources()
        assert not opened.cache.observation.counters.observers.all


def tokens(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def test_the_doctor_names_the_starved_pool_of_a_served_engine() -> None:
    with engine(STARVED) as served:
        for length in (100, 120, 140):
            for first in range(0, 12_000, 1_000):
                served.serve(tokens(length, first))
        served.settled()
        [figures] = served.idle(lambda: read_figures(served.url))
        counters = served.cache.observation.counters
        assert (figures.prompt_tokens, figures.hit_tokens) == (counters.prompt_tokens, counters.hit_tokens) == (4320, 0)
        assert sum(figures.misses.values()) == figures.prompt_tokens - figures.hit_tokens
        assert findings(figures)[0].what.startswith("device pool of mamba: ")
        assert "device pool of mamba" in diagnosis(figures)
        pool = next(pool for pool in figures.pools if pool.component == "mamba")
        assert pool.victims == counters.evictions > 0, "what the engine's own pool asked for is counted"
        assert "full, mamba" in served.idle(lambda: live_summary(served.url, None))


def test_the_page_shows_requests_their_misses_and_the_tape() -> None:
    with engine(STARVED) as served:
        served.settled()
        for first in range(0, 12_000, 1_000):
            served.serve(tokens(100, first), extra_key="shop")
        served.serve(tokens(60))
        told = served.settled()
        requests = served.until("requests", lambda told: len(told) == 13)
        assert [(request["prompt"], request["compute_from"]) for request in requests] == [(60, 0)] + 12 * [(100, 0)]
        for request in requests:
            assert sum(miss["end"] - miss["begin"] for miss in request["misses"]) == request["prompt"]
        assert requests[0]["misses"][0]["cause"] == MissCause.OTHER_NAMESPACE
        assert told["figures"]["misses"] == served.cache.misses.ledger.tokens
        events = served.until("events", lambda told: told["events"])["events"]
        evicted = [dict(zip(EVENT_FIELDS, event[1:], strict=True)) for event in events]
        victims = served.cache.observation.counters.victims
        assert sum(event["values"] for event in evicted if event["kind"] == "evicted") == sum(victims.values())
        assert all("shop" in owner for event in evicted for owner, _ in event["owners"])
        walked = served.ask("walk", {"request": requests[1]["number"]})
        assert walked["prompt"] == 100 == walked["misses"][-1]["end"]
        tree = served.until("state", lambda told: told["tree"] and told["tree"]["nodes"] == served.cache.tree.node_count)
        assert tree["figures"]["leases"] == 0
        assert served.ask("leases") == {"count": 0, "largest": [], "longest": []}


def test_the_page_follows_the_cache_through_a_flush() -> None:
    with engine(Case(chunk=512, full_tokens=2000)) as served:
        served.serve(tokens(300), tokens(300, 1_000))
        served.until("state", lambda told: told["tree"] and told["tree"]["nodes"])
        served.scheduler.flush()
        served.serve(tokens(100))
        told = served.until("state", lambda told: told["tree"]["nodes"] == served.cache.tree.node_count == 1)
        served.settled()
        assert told["figures"]["totals"]["requests"] <= 3
        events = served.until("events", lambda told: told["events"])["events"]
        assert any(event[2] == "invalidated" for event in events)
        served.cache.evict(EVICT_ALL)
        event = served.until("events", lambda told: len(told["events"]) > len(events))["events"][-1]
        assert dict(zip(EVENT_FIELDS, event[1:], strict=True))["owners"] == [["", 1]]


def test_a_page_with_a_token_answers_to_it_alone() -> None:
    with engine(Case(), token=TOKEN) as served:
        page = served.url.partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page + "api/state", timeout=10)

        def figures() -> Any:
            with suppress(ConfigurationError):  # until the first were told
                return read_figures(page, TOKEN)

        assert served.idle(lambda: told(figures, bool, "figures"))


@pytest.mark.parametrize("write_policy", [None, "back"])
def test_a_mix_has_the_same_hits_with_a_page(write_policy: str | None) -> None:
    """The page is looked at meanwhile, and changes nothing."""
    hits = []
    for inspector in (None, InspectorSettings()):
        pools = Pools(Case(window=31, chunk=128))
        cache = our_cache(pools, write_policy=write_policy, inspector=inspector)
        counts = run(Scheduler(pools, cache, has_host=write_policy is not None), requests=80, seed=3, flush=True)
        cache.sanity_check()
        hits.append(counts.cached_tokens)
        counters = cache.observation.counters
        assert cache.misses is not None
        assert sum(cache.misses.ledger.tokens) == counters.prompt_tokens - counters.hit_tokens
        cache.release_host_resources()
    if write_policy is None:  # how much is loaded is a matter of time
        assert hits[0] == hits[1]


def test_an_idle_scheduler_steps() -> None:
    from sglang.srt.managers.scheduler import Scheduler as Engines
    from sglang.srt.plugins.hook_registry import HookRegistry

    original, steps = Engines.on_idle, []
    try:
        Engines.on_idle = lambda _: None
        call_when_idle(lambda: steps.append(1))
        Engines.on_idle(None)
        assert steps == [1]
    finally:
        HookRegistry.reset()
        Engines.on_idle = original


def test_sizes_are_in_pages_where_the_engine_states_no_bytes() -> None:
    with engine(STARVED) as served:
        served.serve(tokens(100))
        served.until("state", lambda told: told["tree"] and told["tree"]["nodes"] == served.cache.tree.node_count)
        assert served.ask("state")["cache"]["in_pages"] is True
        assert served.ask("flame")["bytes"] == 101, "a page a token, and a state"
        [figures] = served.idle(lambda: read_figures(served.url))
        assert {pool.page_bytes for pool in figures.pools} == {0}
