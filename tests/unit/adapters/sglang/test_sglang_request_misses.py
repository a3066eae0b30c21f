"""Why prompts had to be computed, told of requests that stand for SGLang's; its scheduler's calls are in tests/e2e/sglang."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from unified_tree import Component, ConfigurationError, Key, MissCause, Path, Point, UnifiedTree
from unified_tree.controllers.adapters.sglang.metrics import MissMetrics
from unified_tree.controllers.adapters.sglang.observation import MissLog, told
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.request_misses import MissFigures, RequestMisses
from unified_tree.controllers.adapters.sglang.settings import MissSettings, Settings
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.counters.observers import CacheObserver
from unified_tree.terms.results import NOWHERE


class World:
    """A tree to which prompts are published as a checkpoint would."""

    def __init__(self, *, has_states: bool = False, is_bigram: bool = False, metrics: MissMetrics | None = None) -> None:
        self.has_states = has_states
        self.keys = RequestKeys(is_bigram=is_bigram, adapters={})
        self.tree = self.new_tree()
        self.counters = CacheCounters()
        self.misses = RequestMisses(self.tree, self.keys, self.counters, metrics)
        self.next_page = 0

    def new_tree(self) -> UnifiedTree:
        kinds = [Component(name="full", coverage=Path())]
        if self.has_states:
            kinds.append(Component(name="mamba", coverage=Point()))
        return UnifiedTree(kinds, 1)

    def request(self, tokens: list[int], extra_key: str | None = None, limit: int | None = None) -> Any:
        """A waiting request, matched."""
        ids = array("q", tokens)
        req: Any = SimpleNamespace(
            full_untruncated_fill_ids=ids,
            extra_key=extra_key,
            cache_salt=None,
            cache_request_handle="handle",
            last_node=NOWHERE,
        )
        limit = len(ids) - 1 if limit is None else limit
        found = self.tree.match_prefix(self.keys.key(ids, limit, extra_key, None))
        self.misses.matched(req, found, limit)
        req.prefix_len = found.device.length
        return req

    def publish(self, req: Any, state_at: int | None = None) -> None:
        key = self.keys.key(req.full_untruncated_fill_ids, len(req.full_untruncated_fill_ids), req.extra_key, None)
        pages = np.arange(self.next_page, self.next_page + key.length)
        self.next_page += key.length
        states = {"mamba": {state_at: self.next_page}} if state_at is not None else {}
        req.last_node = self.tree.insert(key, {"full": pages}, states=states).boundary
        self.misses.published(req, len(req.full_untruncated_fill_ids))

    def counts(self) -> dict[str, int]:
        return {cause.label: self.misses.ledger.tokens[cause] for cause in MissCause if self.misses.ledger.tokens[cause]}


def test_what_a_request_computes_is_booked_once() -> None:
    world = World()
    req = world.request([1, 2, 3, 4])
    assert world.counts() == {}
    for _ in range(3):
        world.misses.admitted(req)
    assert world.counts() == {"never_seen": 3, "last_token": 1}
    world.misses.matched(req, world.tree.match_prefix(world.keys.key(req.full_untruncated_fill_ids, 3, None, None)), 3)
    world.misses.admitted(req)  # it was taken back, and computes its prompt again
    figures = world.misses.figures()
    assert (figures.requests, figures.prompt_tokens, figures.hit_tokens, figures.misses.total()) == (1, 4, 0, 4)


def test_requests_that_nobody_matched_are_not_booked() -> None:
    world = World()
    req = SimpleNamespace()
    world.misses.admitted(req)
    world.misses.not_loaded(req, (8, "room"))
    world.misses.published(req, 3)
    world.misses.released(req)
    world.misses.cancelled("unknown")
    world.misses.matched(None, world.tree.match_prefix(world.keys.key(array("q", [1]), 1, None, None)), 1)
    assert world.counts() == {}


def test_a_prompt_is_in_flight_until_it_is_published_or_its_row_is_free() -> None:
    world = World()
    first, second = world.request([1, 2, 3]), world.request([1, 2, 3])
    world.misses.admitted(first)
    world.misses.admitted(second)
    assert world.counts() == {"never_seen": 2, "in_flight": 2, "last_token": 2}
    for req in (first, second):
        world.misses.released(req)
    assert world.misses.ledger.in_flight.count == 0
    third = world.request([1, 2, 3])
    world.misses.admitted(third)
    world.publish(third)
    assert world.misses.ledger.in_flight.count == 0


def test_observers_are_told_of_the_end_of_a_request_and_not_that_it_was_taken_back() -> None:
    class Told(CacheObserver):
        def __init__(self) -> None:
            self.events: list[tuple[str, Any, list[int]]] = []

        def acquired(self, request: Any, key: Key) -> None:
            self.events.append(("acquired", request, list(range(key.length))))

        def finished(self, request: Any, answer: Any) -> None:
            self.events.append(("finished", request, list(answer)))

    world, told_of = World(), Told()
    world.counters.observers.add(told_of)
    req = world.request([1, 2, 3])
    req.output_ids, is_finished = array("q", [7]), False
    req.finished = lambda: is_finished
    world.misses.admitted(req)
    world.misses.released(req)
    assert [name for name, *_ in told_of.events] == ["acquired"], "it was taken back"
    world.misses.admitted(req)
    req.output_ids, is_finished = array("q", [7, 8]), True
    for _ in range(2):
        world.misses.released(req)
    (_, acquired, _), (name, finished, answer) = told_of.events
    assert (name, answer) == ("finished", [7, 8]) and finished is acquired


def test_the_pool_that_was_short_is_told() -> None:
    world = World()
    req = world.request([1, 2, 3, 4])
    world.misses.admitted(req)
    world.publish(req)
    world.tree.evict({"full": 4})
    world.misses.admitted(world.request([1, 2, 3, 4]))
    words = world.misses.figures().misses
    assert words == {"never seen": 3, "last token": 2, "evicted from the device pool of full": 3}


def test_a_state_that_was_not_saved_where_it_was_due_is_told() -> None:
    world = World(has_states=True)
    first = world.request([1, 2, 3, 4])
    world.misses.admitted(first)
    world.publish(first, 4)
    second = world.request([1, 2, 5, 6])
    world.misses.admitted(second)
    assert world.misses.figures().misses["never saved"] == 2
    world.publish(second, 4)
    world.misses.admitted(world.request([1, 2, 7, 8]))
    assert world.misses.figures().misses["never saved (not saved where it was due)"] == 2


def test_what_a_store_was_about_to_bring_is_told() -> None:
    world = World()
    world.misses.given_up("handle", 2)
    world.misses.given_up("another", 0)
    world.misses.admitted(world.request([1, 2, 3, 4]))
    assert world.counts() == {"prefetch_given_up": 2, "never_seen": 1, "last_token": 1}
    world.misses.given_up("handle", 2)
    world.misses.cancelled("handle")
    world.misses.admitted(world.request([5, 6, 7, 8]))
    assert world.counts() == {"prefetch_given_up": 2, "never_seen": 4, "last_token": 2}


@pytest.mark.parametrize(
    ("tokens", "is_bigram", "limit", "last"),
    [
        ([1, 2, 3, 4], True, None, 2),  # the last pair, and the token behind it
        ([1], True, None, 1),
        ([1], False, None, 1),
        ([1, 2, 3, 4], False, 1, 3),
        ([1, 2, 3, 4], False, 0, 4),
        ([], False, 0, 0),
    ],
)
def test_tokens_that_are_not_looked_up_count_as_last_ones(
    tokens: list[int], is_bigram: bool, limit: int | None, last: int
) -> None:
    world = World(is_bigram=is_bigram)
    world.misses.admitted(world.request(tokens, limit=limit if limit is not None else max(0, len(tokens) - 1)))
    assert world.counts().get("last_token", 0) == last
    assert sum(world.counts().values()) == len(tokens)
    assert world.misses.figures().misses["last token (not looked up)"] == (last - 1 if limit is not None and tokens else 0)


def test_what_was_booked_outlives_the_tree() -> None:
    world = World()
    world.misses.admitted(world.request([1, 2, 3]))
    world.tree = world.new_tree()
    world.misses.renew(world.tree)
    world.misses.admitted(world.request([1, 2, 3]))
    assert world.misses.figures().misses == {"never seen": 4, "last token": 2}


def test_metrics_count_the_same() -> None:
    registry = CollectorRegistry()
    world = World(metrics=MissMetrics({"tp_rank": "0"}, ["full"], registry))
    for extra_key in ("a", "b"):
        req = world.request([1, 2, 3, 4], extra_key)
        world.misses.admitted(req)
        world.publish(req)
    world.tree.evict({"full": 8})
    req = world.request([1, 2, 3, 4], "a")
    world.misses.not_loaded(req, (8, "room"))
    world.misses.admitted(req)
    lines = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    by_cause = {
        cause.label: float(values[f'unified_tree_miss_tokens_total{{cause="{cause.label}",tp_rank="0"}}'])
        for cause in MissCause
    }
    assert {label: count for label, count in by_cause.items() if count} == world.counts()
    assert world.counts() == {"never_seen": 3, "other_namespace": 3, "evicted": 3, "last_token": 3}
    assert float(values['unified_tree_evicted_miss_tokens_total{component="full",tier="device",tp_rank="0"}']) == 3
    assert float(values['unified_tree_prompt_tokens_total{tp_rank="0"}']) == 12
    assert float(values['unified_tree_requests_total{tp_rank="0"}']) == 3
    assert float(values['unified_tree_hit_tokens_total{tp_rank="0"}']) == 0
    assert not any("detail=" in name for name in values), "a namespace is no label"
    assert world.misses.figures().misses["other namespace"] == 3


def test_metrics_count_what_the_memory_of_evictions_forgot_in_all_trees() -> None:
    registry = CollectorRegistry()
    world = World(metrics=MissMetrics({"tp_rank": "0"}, ["full"], registry))

    def forgotten() -> float | None:
        world.misses.admitted(world.request([1]))
        return registry.get_sample_value("unified_tree_miss_memory_forgotten_total", {"tp_rank": "0"})

    def forget(prefixes: int) -> None:
        ghosts = world.tree.state.ghosts
        assert ghosts is not None
        ghosts.forgotten += prefixes

    assert forgotten() == 0
    forget(3)
    assert forgotten() == forgotten() == 3
    world.tree = world.new_tree()
    world.misses.renew(world.tree)
    assert forgotten() == 3
    forget(2)
    assert forgotten() == 5


def test_the_log_names_the_three_largest_causes() -> None:
    before = MissFigures(1, 100, 50, Counter({"never seen": 50}))
    now = MissFigures(3, 1100, 80, Counter({"never seen": 80, "a": 500, "b": 400, "last token": 10}))
    assert (
        told(before, now)
        == "unified_tree: 2 requests, 1,000 prompt tokens: 3 % cached; computed: 50 % a, 40 % b, 3 % never seen"
    )
    hit = MissFigures(2, 200, 150, Counter({"never seen": 50}))
    assert told(before, hit) == "unified_tree: 1 request, 100 prompt tokens: 100 % cached"


def test_the_log_tells_what_is_new_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    log = MissLog(world.misses.figures, 0.01)
    log.start()
    with caplog.at_level(logging.INFO):
        world.misses.admitted(world.request([1, 2, 3]))
        log.close()
        log.close()
        world.misses.admitted(world.request([1, 2, 3]))
    assert len(caplog.records) == 1
    assert not log._thread.is_alive()


def test_settings() -> None:
    assert Settings.of({}).misses == MissSettings(memory_mib=None, log_s=60)
    assert Settings.of({"misses": {"memory_mib": 1, "log_s": 0}}).misses == MissSettings(memory_mib=1, log_s=0)
    for is_told, left_out in ((True, 64 << 20), (False, 0)):
        assert MissSettings().memory_bytes(is_told=is_told) == left_out
        assert MissSettings(memory_mib=2).memory_bytes(is_told=is_told) == 2 << 20
        assert MissSettings(memory_mib=0).memory_bytes(is_told=is_told) == 0
    for wrong in ({"memory": 1}, {"memory_mib": -1}, {"memory_mib": 0.5}, {"log_s": "often"}):
        with pytest.raises(ConfigurationError):
            Settings.of({"misses": wrong})
