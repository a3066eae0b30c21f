"""Observers of the connector are told of the requests, and a trace recorded by one replays with the hits that it had."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from vllm_engine_model import PAGE, EngineModel, Request, prompt

from unified_tree import ConfigurationError, Key
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings
from unified_tree.controllers.counters.observers import CacheObserver, open_observers


class Told(CacheObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.requests: dict[Any, tuple[list[int], list[int] | None]] = {}
        self.events: list[str] = []

    def acquired(self, request: Any, key: Key) -> None:
        assert request not in self.requests, "it is told once"
        self.requests[request] = memoryview(key.data)[: key.length * key.width_bytes].cast("q").tolist(), None
        self.events.append("acquired")

    def finished(self, request: Any, answer: Any) -> None:
        prompt, before = self.requests[request]
        assert before is None, "it ends once"
        self.requests[request] = prompt, list(answer)
        self.events.append("finished")

    def invalidated(self, namespace: str | None) -> None:
        self.events.append(f"invalidated {namespace}")

    def polled(self) -> None:
        self.events.append("polled")

    def closed(self) -> None:
        self.events.append("closed")


class Broken(Told):
    def finished(self, request: Any, answer: Any) -> None:
        raise RuntimeError(f"broken by {request} and {answer}")


def made(name: str) -> Told:
    """A factory of observers, as a package has one."""
    assert name == "mine"
    return Told()


def test_a_request_is_told_with_its_hits_and_its_answer() -> None:
    told = Told()
    engine = EngineModel("full", 0, observers=[told])
    for tokens in (prompt(), prompt(), prompt(100)):
        engine.serve(tokens, output_tokens=3)
        given, answer = list(told.requests.values())[-1]
        assert (given, given + (answer or [])) == (tokens, engine.asked[-1][1])
    assert [admitted.compute_from for admitted in told.requests] == [0, 5 * PAGE, 0]
    assert [admitted.host_tokens for admitted in told.requests] == [0, 5 * PAGE, 0]
    for admitted in told.requests:
        assert sum(miss.tokens for miss in admitted.misses) == admitted.prompt_tokens - admitted.compute_from
    engine.side.reset()
    assert told.events[-1] == "invalidated None"
    engine.side.close()
    assert told.events[-1] == "closed" and "polled" in told.events
    assert not engine.side.index.counters.observers.all


@pytest.mark.parametrize("seed", range(12))
def test_each_request_that_was_scheduled_is_told_once_whatever_happens_to_it(seed: int) -> None:
    told = Told()
    engine = EngineModel(("full", "window", "state")[seed % 3], seed, host_bytes=1500, observers=[told])
    draw = random.Random(seed)
    for number in range(40):
        request = Request(f"r{number}", "", prompt(20 * draw.randrange(4), draw.randrange(1, 9 * PAGE)), draw.randrange(1, 5))
        engine.add(request)
        for _ in range(draw.randrange(4)):
            engine.step()
        if draw.random() < 0.2 and not request.is_aborted and request in engine.running:
            engine.abort(request)
        if draw.random() < 0.05:
            engine.side.reset()
    engine.settle()
    counters = engine.side.index.counters
    assert len(told.requests) == counters.requests
    assert sum(admitted.compute_from for admitted in told.requests) == counters.hit_tokens
    assert all(answer is not None for _, answer in told.requests.values())


def test_a_request_that_never_ran_is_not_told() -> None:
    told = Told()
    engine = EngineModel("full", 0, observers=[told])
    request = Request("r", "", prompt(), 1)
    engine.add(request)
    engine.abort(request)
    engine.settle()
    assert not told.requests


def test_an_observer_that_raises_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    broken, told = Broken(), Told()
    engine = EngineModel("full", 0, observers=[broken, told])
    with caplog.at_level(logging.ERROR, logger="unified_tree.cache"):
        for first in (0, 100, 0):
            engine.serve(prompt(first), output_tokens=3)
    assert len(caplog.records) == 1 and "Broken failed" in caplog.text
    assert [each for each in told.events if each != "polled"] == ["acquired", "finished"] * 3


def test_the_recorder_is_one_of_them(tmp_path: Path) -> None:
    given = {"observers": {"record": {"directory": str(tmp_path), "block_tokens": PAGE}}}
    observers = open_observers(ConnectorSettings.of(given).observers)
    engine = EngineModel("full", 0, observers=observers)
    for tokens in (prompt(), prompt(), prompt(100)):
        engine.serve(tokens, output_tokens=3)
    engine.side.close()
    lines = [json.loads(line) for path in sorted(tmp_path.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(line["input_length"], line["output_length"], line["cached_tokens"]) for line in lines] == [
        (21, 3, 0),
        (21, 3, 20),
        (21, 3, 0),
    ]
    assert lines[0]["hash_ids"][:5] == lines[1]["hash_ids"][:5] != lines[2]["hash_ids"][:5]


def test_settings_name_observers_and_what_is_wrong_with_them() -> None:
    settings = ConnectorSettings.of({"observers": {f"{__name__}:made": {"name": "mine"}}})
    [observer] = open_observers(settings.observers)
    assert isinstance(observer, CacheObserver)
    assert ConnectorSettings.of({}).observers == ConnectorSettings.of({"observers": None}).observers == {}
    for given, message in (
        ({"observers": ["record"]}, "observers must name each with its settings"),
        ({"observers": {"record": "/tmp"}}, "observers must name each with its settings"),
        ({"observers": {"record": {}}, "miss_memory_mib": 0}, "miss_memory_mib more than 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            ConnectorSettings.of(given)
    with pytest.raises(ConfigurationError, match=r"observers\.record: .*missing"):
        open_observers({"record": {}})
    with pytest.raises(ConfigurationError, match="nothing_of_the_kind"):
        open_observers({"nothing_of_the_kind": {}})
