"""The figures that a policy tells of itself: in `stats()`, in metrics, to the inspector and to the doctor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import pytest
from kinds import FULL, MAMBA
from prometheus_client import CollectorRegistry, generate_latest
from traffic import STATES, Served, Texts

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.doctor import Figures, findings
from unified_tree.nodes.node import Value
from unified_tree.policies.density.hit_density import FIRST_LEARNED
from unified_tree.policies.eviction_policy import EvictionPolicy, Rank


class Telling(EvictionPolicy):
    """By last use; tells whatever `said` returns."""

    said: Callable[[], Any] = staticmethod(dict)

    def rank(self, value: Value) -> Rank:
        return value.touched

    def figures(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.said()
        return found


def cache_telling(said: Callable[[], Any]) -> PrefixCache:
    policy = Telling()
    policy.said = said
    return PrefixCache([FULL, MAMBA], 2, {"full": 40, "mamba": 4}, policy=lambda _: policy)


def scraped(cache: PrefixCache) -> str:
    registry = CollectorRegistry()
    registry.register(CacheCollector(cache.stats))
    return generate_latest(registry).decode()


def test_the_default_tells_which_order_decides(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "unified_tree.policy")
    server, texts = Served("density", STATES, 40_000, 800), Texts(8)
    assert server.cache.stats().policy.figures["evicts_as_lru"] == 1
    for _ in range(2 * FIRST_LEARNED):
        server.serve(texts.new(60, 60))
    learned = server.cache.stats().policy
    assert learned.name == "density"
    assert (learned.figures["evicts_as_lru"], learned.figures["order_changes"]) == (0, 1)
    assert learned.figures["turns"] >= FIRST_LEARNED
    server.policy._shadow.is_ahead, server.policy._shadow._tried_again_at = True, 1 << 60
    server.serve(texts.new(60, 60))
    doubted = server.cache.stats().policy.figures
    assert (doubted["evicts_as_lru"], doubted["order_changes"]) == (1, 2)
    orders = [record.message.split(" from ")[0] for record in caplog.records]
    assert orders == ["density evicts by the learned order", "density evicts by lru"]


def test_what_came_lately_is_counted_beside_what_lru_would_have_hit() -> None:
    server, prompt = Served("density", STATES, 40_000, 800), list(range(60))
    for _ in range(3):
        server.serve(prompt)
    figures = server.cache.stats().policy.figures
    assert figures["recent_tokens"] > 0
    assert figures["lead_tokens"] == 0
    server.policy._shadow._compare(100, -7)
    after = server.cache.stats().policy.figures
    assert (after["recent_tokens"], after["lead_tokens"]) == (figures["recent_tokens"] + 100, -7)


@pytest.mark.parametrize(("policy", "name"), [("lru", "lru"), (lambda _: Telling(), "Telling")])
def test_a_policy_is_named_in_statistics_and_metrics(policy: Any, name: str) -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 40, "mamba": 4}, policy=policy)
    assert (cache.stats().policy.name, cache.stats().policy.failures) == (name, 0)
    assert f'unified_tree_policy_failures_total{{policy="{name}"}} 0.0' in scraped(cache)
    with cache.acquire(Key([1, 2, 3, 4])) as lease:
        cache.allocate(lease, 4)
        cache.commit(lease, 4)
    assert cache.stats().ticks > 0
    assert f"unified_tree_ticks_total {float(cache.stats().ticks)}" in scraped(cache)


def test_figures_of_a_policy_are_exported() -> None:
    cache = cache_telling(lambda: {"ghost_hits": 3, "a\nb": 1.5, "none": "x"})
    figures = cache.stats().policy.figures
    assert (figures["ghost_hits"], figures["a\\nb"], isnan(figures["none"])) == (3.0, 1.5, True)
    assert 'unified_tree_policy_figure{figure="ghost_hits",policy="Telling"} 3.0' in scraped(cache)


@pytest.mark.parametrize("said", [lambda: 1 / 0, lambda: 5, lambda: [1, 2]], ids=["raises", "a number", "no mapping"])
def test_figures_that_fail_are_a_failure_that_the_doctor_names(said: Callable[[], Any]) -> None:
    cache = cache_telling(said)
    cache.stats()
    told = cache.stats().policy
    assert (told.figures, told.failures > 0, told.last_failure is None) == ({}, True, False)
    [finding] = findings(Figures.of(cache))
    assert finding.is_urgent
    assert "the eviction policy failed" in finding.what
