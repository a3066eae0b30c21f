"""The inspector's page of the scheduler side, and the doctor, while a model of vLLM runs it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm_engine_model import PAGE, EngineModel, prompt
from waiting import PATIENCE_S, told

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings
from unified_tree.controllers.cli.diagnosis import read_figures
from unified_tree.controllers.cli.inspect_command import live_summary
from unified_tree.controllers.doctor import findings
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.inspector.tape import EVENT_FIELDS


class Served:
    """An engine, and what its page says."""

    def __init__(self, kind: str, host_bytes: int) -> None:
        self.engine = EngineModel(kind, 0, host_bytes=host_bytes, inspector=InspectorSettings())
        assert self.engine.side.page is not None
        self.url = self.engine.side.page

    def ask(self, name: str) -> Any:
        with urllib.request.urlopen(self.url + "api/" + name, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def until(self, name: str, condition: Callable[[Any], Any]) -> Any:
        return told(lambda: self.ask(name), condition, name)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served("state", 8 * PAGE * 8)
    yield served
    served.engine.side.close()


def test_an_idle_engine_has_told_all_of_its_requests(served: Served) -> None:
    for first in (0, 100, 0, 200, 100, 0):
        served.engine.serve(prompt(first), "shop")
    counters, misses = served.engine.side.index.counters, served.engine.side.misses
    assert misses is not None
    state = served.until("state", lambda told: told["figures"] and told["figures"]["totals"]["requests"] == 6)
    assert state["figures"]["misses"] == misses.ledger.tokens
    [figures] = read_figures(served.url)
    assert (figures.prompt_tokens, figures.hit_tokens) == (counters.prompt_tokens, counters.hit_tokens)
    assert figures.prompt_tokens == 6 * 21
    assert sum(figures.misses.values()) == figures.prompt_tokens - figures.hit_tokens
    assert any(each.what.startswith("host pool of group") for each in findings(figures))
    assert "group0, group1" in live_summary(served.url, None)
    requests = served.until("requests", lambda told: len(told) == 6)
    for request in requests:
        assert sum(miss["end"] - miss["begin"] for miss in request["misses"]) == request["prompt"] - request["compute_from"]


def test_evictions_and_resets_are_on_the_tape(served: Served) -> None:
    for first in (0, 100, 200, 300):
        served.engine.serve(prompt(first), "shop")
    served.engine.side.reset()
    served.engine.serve(prompt(400))
    told = served.until("events", lambda told: any(event[2] == "invalidated" for event in told["events"]))["events"]
    events = [dict(zip(EVENT_FIELDS, event[1:], strict=True)) for event in told]
    evicted = [event for event in events if event["kind"] == "evicted"]
    assert sum(event["values"] for event in evicted) == sum(served.engine.side.index.counters.victims.values()) > 0
    assert {owner for event in evicted for owner, _ in event["owners"]} == {"shop"}


def test_an_inspector_needs_the_memory_of_misses() -> None:
    given = {"inspector": {"port": 8200}}
    inspector = ConnectorSettings.of(given).inspector
    assert inspector is not None and inspector.port == 8200
    assert inspector.line("http://h/?token=x").endswith("http://h/?token=x")
    assert InspectorSettings(token="of one's own choice").line("http://h/?token=x").endswith("http://h/")
    with pytest.raises(ConfigurationError, match="miss_memory_mib more than 0"):
        ConnectorSettings.of({**given, "miss_memory_mib": 0})
    with pytest.raises(ConfigurationError, match="inspector: there is no setting 'ports'"):
        ConnectorSettings.of({"inspector": {"ports": 1}})
    with pytest.raises(ConfigurationError, match="port must be"):
        ConnectorSettings.of({"inspector": {"port": 65536}})
