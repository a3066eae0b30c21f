"""The dashboard and the alerts of deploy/, in a real Prometheus that scrapes a serving engine.

Grafana itself is not needed: each query of the dashboard is asked as Grafana would ask it, its variables replaced.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from kinds import FULL, MAMBA
from oracle.families import GPT_OSS
from oracle.mix import Bench, Tiers, serve_mix
from oracle.oracle_engine import OracleEngine
from oracle.tiny_model import SINGLE
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_server import Prometheus, skip_unless_it_runs
from waiting import PROGRAM_S, wait_until

from unified_tree import Key
from unified_tree.controllers import CacheCollector, CacheStats, PrefixCache

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/unified_tree.json"
RULES = ROOT / "deploy/prometheus/unified_tree.rules.yml"
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "2m"}
METRIC = re.compile(r"\bunified_tree_\w+")

skip_unless_it_runs()


class Published(OracleEngine):
    """Leaves a snapshot of its cache's statistics for scrapes after each step, for a scrape must not read the cache itself."""

    latest: CacheStats

    def step(self) -> None:
        super().step()
        Published.latest = self.cache.stats()


@contextmanager
def exported(collector: CacheCollector) -> Iterator[str]:
    """The address at which Prometheus finds a collector's metrics."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forgetful() -> PrefixCache:
    """A cache of whose requests the first saves no state, so that it is known why the second misses it."""
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 20, "mamba": 6})
    for _ in range(2):
        with cache.acquire(Key(np.arange(8))) as lease:
            for end in (4, 8):
                cache.allocate(lease, end)
                cache.commit(lease, end)
    return cache


def flood(cache: PrefixCache) -> None:
    """Two namespaces in turn, with room for one of them."""
    for namespace in ("small", "greedy", "small", "greedy"):
        with cache.acquire(Key(np.arange(100, 131), namespace)) as lease:
            cache.allocate(lease, 30)
            assert lease.state_page is not None
            cache.commit(lease, np.arange(100, 130), {30: lease.state_page})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """After it has watched the reference engine serve a mix, over a device that is too small, a host tier and a store."""
    folder = tmp_path_factory.mktemp("prometheus")
    storage = {"name": "file", "options": {"directory": folder / "store", "capacity_bytes": 1 << 28}}
    bench = Bench(GPT_OSS, SINGLE, Tiers(storage=storage, paths=1.0, windows=1.5), Random(3), engine=Published)
    Published.latest = bench.cache.stats()
    second = forgetful()
    flood(second)
    with (
        exported(CacheCollector(lambda: Published.latest, {"model": "gpt-oss"})) as first_address,
        exported(CacheCollector(second.stats)) as second_address,
        Prometheus(folder, [first_address, second_address], [RULES]) as server,
    ):
        wait_until(lambda: server.scrapes() >= 2, "the first scrapes")
        serve_mix(bench, 40)
        flood(second)
        scraped = server.scrapes()
        wait_until(lambda: server.scrapes() >= scraped + 3, "scrapes of the end")
        yield server


def dashboard_queries() -> list[tuple[str, str]]:
    """Titles of panels and their expressions."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def test_each_query_of_the_dashboard_returns_data(prometheus: Prometheus) -> None:
    for title, expression in dashboard_queries():
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, "a variable that this test does not know"

        def has_data(expression: str = expression) -> bool:
            return any(math.isfinite(value) for _, value in prometheus.query(expression))

        wait_until(has_data, f"{title}: {expression}")


def test_its_variables_list_what_is_scraped(prometheus: Prometheus) -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = {each["name"]: each["query"]["query"] for each in variables if each["type"] == "query"}
    assert list(asked) == ["job", "instance"]
    for label, query in asked.items():
        [(metric, named)] = re.findall(r"^label_values\((\w+)(?:\{.*\})?, (\w+)\)$", query)
        assert named == label

        def found(metric: str = metric, named: str = named) -> int:
            return len({labels[named] for labels, _ in prometheus.query(metric)})

        wait_until(lambda found=found, label=label: found() == {"job": 1, "instance": 2}[label], query)  # type: ignore[misc]


def test_each_alert_evaluates_over_metrics_that_are_there(prometheus: Prometheus) -> None:
    wait_until(
        lambda: all(rule["health"] == "ok" for group in prometheus.ask("rules")["groups"] for rule in group["rules"]),
        "the evaluation of all rules",
    )
    loaded = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in loaded} == set(alerts())
    for name, rule in alerts().items():
        prometheus.query(rule["expr"])
        for metric in METRIC.findall(rule["expr"]):
            exported = partial(prometheus.query, metric)
            wait_until(lambda exported=exported: bool(exported()), f"{metric} to be exported, which {name} asks for")  # type: ignore[misc]


def test_the_figures_of_the_cache_arrive(prometheus: Prometheus) -> None:
    def values(expression: str) -> list[float]:
        return [value for _, value in prometheus.query(expression)]

    def have_arrived() -> bool:
        prompts = values('unified_tree_prompt_tokens_total{model="gpt-oss", job="unified_tree"}')
        misses = values('sum(unified_tree_miss_tokens_total{model="gpt-oss"})')
        latest = Published.latest
        return (prompts, misses) == ([latest.prompt_tokens], [latest.prompt_tokens - latest.hit_tokens])

    wait_until(have_arrived, "the figures of the end")
    assert all(hits <= Published.latest.hit_tokens for hits in values('unified_tree_hit_tokens_total{model="gpt-oss"}'))


def test_the_rules_are_well_formed() -> None:
    words = ["promtool", "check", "rules", str(RULES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    for name, rule in alerts().items():
        assert name.startswith("UnifiedTree") and rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
