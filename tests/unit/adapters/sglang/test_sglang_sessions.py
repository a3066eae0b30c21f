"""Sessions, hints and tenants of SGLang's requests, without SGLang."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from unified_tree import Component, Path, TenantGroup, Tenants, UnifiedTree
from unified_tree.controllers.adapters.sglang.answers import SessionAnswers
from unified_tree.controllers.adapters.sglang.metrics import WrittenMetrics
from unified_tree.controllers.adapters.sglang.observation import Observation
from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
from unified_tree.controllers.adapters.sglang.request_misses import RequestMisses
from unified_tree.controllers.adapters.sglang.request_sessions import TURN, RequestSessions
from unified_tree.controllers.adapters.sglang.settings import VARIABLE, MissSettings, Settings
from unified_tree.controllers.cache.engine_turns import EngineTurns
from unified_tree.controllers.cache.held_hints import RequestHints
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.nodes.order import LEFT
from unified_tree.terms.errors import ConfigurationError, LeaseError
from unified_tree.terms.results import NOWHERE

TENANTS = Tenants(
    groups=(
        TenantGroup(name="gold", namespaces=("acme", "globex"), floor=0.5),
        TenantGroup(name="batch", namespaces=("nightly",), cap=0.25),
    )
)
ADAPTER = "0123456789abcdef" * 2


class World:
    """Requests of SGLang over a tree of pages of one token."""

    def __init__(self, *, prefers: bool = False, has_one_clock: bool = True) -> None:
        self.counters = CacheCounters()
        self.options: dict[str, Any] = {"prefers": prefers, "has_one_clock": has_one_clock}
        self.next_page = 0
        self.tree, turns = self.new_tree()
        self.sessions = RequestSessions(turns, self.counters)

    def new_tree(self) -> tuple[UnifiedTree, EngineTurns]:
        tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
        return tree, EngineTurns(tree, self.counters, **self.options)

    def request(self, tokens: list[int], session: str | None = None, payload: object = None) -> SimpleNamespace:
        """A request that arrives."""
        action = SimpleNamespace(action_type="unified_tree", action_version="1", payload=payload)
        return SimpleNamespace(
            session_generation=None if session is None else self.sessions.opened(session),
            kv_hints=None if payload is None else SimpleNamespace(actions=[action]),
            full_untruncated_fill_ids=array("q", tokens),
            prefix_len=0,
            last_node=NOWHERE,
        )

    def run(self, req: SimpleNamespace, *, is_over: bool = True) -> None:
        """Compute a request, and end it."""
        self.sessions.admitted(req)
        tokens = req.full_untruncated_fill_ids
        key = RequestKeys(is_bigram=False, adapters={}).key(tokens, len(tokens), None, None)
        found = self.tree.match_prefix(key).device
        if found.length < key.length:
            pages = np.arange(self.next_page, self.next_page + key.length)
            self.next_page += key.length
            self.sessions.inserting(req)
            found = self.tree.insert(key, {"full": pages}).boundary
            self.sessions.inserting(None)
            self.sessions.published(req, found)
        req.last_node = found
        self.sessions.released(req, is_over=is_over)

    def left(self) -> int:
        """Pages that go before the rest."""
        pool = self.tree.pool("full")
        values = [node.device[0] for node in self.tree.state.nodes]
        return sum(value.page_count for value in values if value is not None and pool.urgency(value) == LEFT)


def test_what_only_a_closed_session_could_go_on_from_goes_first() -> None:
    world = World()
    world.run(world.request([1, 2, 3, 4, 5, 6], "one"))
    world.run(world.request([1, 2, 3, 7, 8], "two"))
    world.sessions.ended("unknown")
    world.sessions.ended("one")
    assert world.left() == 3
    world.sessions.ended("two")
    assert world.left() == 5, "two sessions have shown the head, and a third may come"
    assert world.counters.ended_sessions == 2
    assert not world.tree.check()


def test_a_text_that_a_session_has_only_repeated_is_its_own_too() -> None:
    world = World()
    world.run(world.request([1, 2, 3], "one"))
    world.run(world.request([1, 2, 3], "two", {"retain": True}))
    assert len(world.sessions.turns.hints) == 1
    world.sessions.ended("one")
    assert world.left() == 0


def test_a_request_that_was_taken_back_comes_again() -> None:
    world = World()
    req = world.request([1, 2, 3, 4], "one", {"end": True})
    world.run(req, is_over=False)
    assert getattr(req, TURN) is None
    assert len(world.sessions.turns.sessions) == 1
    assert world.left() == 0
    world.run(req)
    assert len(world.sessions.turns.sessions) == 0
    assert world.left() == 4


def test_a_session_goes_on_with_the_next_tree() -> None:
    world = World()
    req = world.request([1, 2, 3], "one")
    world.tree, world.sessions.turns = world.new_tree()
    world.run(req)
    assert [each.name for each in world.sessions.turns.sessions] == ["one"]
    world.sessions.ended("one")
    assert world.left() == 3


def test_a_request_whose_session_has_ended_does_not_open_it_again() -> None:
    world = World()
    req = world.request([1, 2, 3], "one", {"pin": True})
    world.sessions.ended("one")
    world.run(req)
    assert not len(world.sessions.turns.sessions)
    assert not len(world.sessions.turns.hints)
    assert world.left() == 3


def test_ranks_that_must_decide_alike_leave_time_out() -> None:
    world = World(has_one_clock=False)
    world.run(world.request([1, 2, 3], "one", {"retain": 0.001}))
    world.sessions.turns.hints.poll()
    assert len(world.sessions.turns.hints) == 1
    world.sessions.may_end = False
    world.sessions.ended("one")
    assert world.left() == 0


def test_texts_without_a_session_go_before_sessions_where_they_are_preferred() -> None:
    for prefers in (False, True):
        world = World(prefers=prefers)
        world.run(world.request([1, 2, 3]))
        world.run(world.request([4, 5, 6], "one"))
        assert world.left() == (3 if prefers else 0)
        world.run(world.request([1, 2, 3, 4]))
        assert world.left() == (4 if prefers else 0), "all of a conversation alike"
        world.run(world.request([1, 2, 3, 7], "one"))
        assert world.left() == (1 if prefers else 0)
        world.sessions.ended("one")
        assert world.left() == (5 if prefers else 4)
        assert not world.tree.check()


def test_hints_that_do_not_fit_are_refused() -> None:
    wrong: list[object] = [None, 3, [], "retain", {"x": 1}, {"pin": 1}, {"pin": None}, {"retain": -1}, {"retain": float("nan")}]
    wrong += [{"retain": "1"}, {"session": 3}, {"session": ""}, {"parent": "x" * 513}, {1: True}, {"end": "yes"}]
    for given in wrong:
        with pytest.raises(LeaseError, match="unified_tree"):
            RequestHints.of(given)
    assert RequestHints.of({}) == RequestHints()
    assert RequestHints.of({"retain": 2.5, "session": None, "end": True}) == RequestHints(retain=2.5, end=True)


def test_groups_name_a_namespace_by_its_extra_key_or_else_its_salt() -> None:
    keys = RequestKeys(is_bigram=False, adapters={ADAPTER: "v1"}, tenants=TENANTS)

    def tenant(extra_key: str | None, salt: str | None) -> str:
        return keys.tenant(keys.key(array("q", [1]), 1, extra_key, salt).namespace)

    assert tenant(None, None) == ""
    assert tenant("acme", None) == tenant("acme", "s") == tenant("acme", "nightly") == "acme"
    assert tenant("acme" + ADAPTER, None) == tenant("acme" + "f" * 32, "s") == "acme"
    assert tenant(None, "nightly") == tenant("other", "nightly") == tenant(ADAPTER, "nightly") == "nightly"
    assert tenant("other", None) == ""
    assert tenant("('acme', None)", None) == ""
    assert tenant("a'\\\"\n", "q'") == "q'"


def test_tenants_stand_in_the_settings() -> None:
    text = """{"tenants": {"groups": [{"name": "a", "namespaces": ["x"], "floor": 0.1, "cap": {"pages": {"full": 9}}}]},
               "infer_sessions": true}"""
    settings = Settings.read({VARIABLE: text})
    assert settings.infer_sessions
    assert settings.tenants is not None
    assert settings.tenants.names == ("", "a")
    for wrong, says in (
        ('{"infer_sessions": 1}', "infer_sessions must be true or false"),
        ('{"tenants": []}', "tenants must be a mapping"),
        ('{"tenants": {"groups": [{"name": "a", "namespaces": ["x"], "share": 1}]}}', "there is no setting 'share'"),
        ('{"tenants": {"groups": [{"name": "a", "namespaces": ["x"]}, {"name": "b", "namespaces": ["x"]}]}}', "in two groups"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            Settings.read({VARIABLE: wrong})


def test_hints_end_when_sglang_empties_the_cache() -> None:
    """It goes on with another tree, about which nothing has been said."""
    answers, counters = SessionAnswers(), CacheCounters()
    answers.enable_session_radix_cache = answers.has_one_clock = True
    answers._infers, answers._grid_tokens, answers.observation = False, 1, Mock()
    world = World()
    world.tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
    sessions = answers._begin_sessions(world.tree, counters)
    assert sessions is not None
    world.sessions = sessions
    world.run(world.request([1, 2, 3], "one", {"retain": True, "pin": True}))
    assert len(sessions.turns.hints) == 2
    world.tree = UnifiedTree([Component(name="full", coverage=Path())], 1)
    assert answers._begin_sessions(world.tree, counters) is sessions
    assert counters.hints == {("retain", "vain"): 1, ("pin", "vain"): 1}
    assert not len(sessions.turns.hints)
    world.run(world.request([1, 2, 3], "one", {"pin": True}))
    assert len(sessions.turns.hints) == 1


def test_the_last_figures_tell_of_hints_that_ended_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, float]] = []

    def write(metrics: WrittenMetrics, families: Iterable[Metric]) -> None:
        metrics._next_s = float("inf")  # steps write nothing more
        told.append({sample.name: sample.value for family in families for sample in family.samples})

    monkeypatch.setattr(WrittenMetrics, "write", write)
    keys = RequestKeys(is_bigram=False, adapters={}, tenants=TENANTS)
    observation = Observation(["full"], keys, MissSettings(memory_mib=0), None, 1, SimpleNamespace(labels={}))
    world = World()
    world.tree = tree = UnifiedTree([Component(name="full", coverage=Path())], 1, tenants=keys.tenants)
    world.sessions = RequestSessions(EngineTurns(tree, observation.counters), observation.counters)
    observation.begin(tree)
    observation.sessions = world.sessions
    world.run(world.request([1, 2, 3], "one", {"retain": True}))
    observation.step()
    world.sessions.turns.hints.close()
    observation.step()
    assert len(told) == 1 and "unified_tree_hints_total" not in told[0]
    assert told[0]["unified_tree_policy_failures_total"] == 0 and told[0]["unified_tree_ticks_total"] == tree.state.clock
    observation.close()
    assert told[1]["unified_tree_hints_total"] == 1


def test_metrics_that_fail_are_written_no_more_and_harm_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []

    def write(*_: object) -> None:
        calls.append(None)
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(WrittenMetrics, "_write", write)
    monkeypatch.setattr("unified_tree.controllers.adapters.sglang.observation.INTERVAL_S", 0.0)
    keys = RequestKeys(is_bigram=False, adapters={}, tenants=TENANTS)
    observation = Observation(["full"], keys, MissSettings(memory_mib=0), None, 1, SimpleNamespace(labels={}))
    observation.begin(UnifiedTree([Component(name="full", coverage=Path())], 1))
    for _ in range(3):
        observation.step()
    observation.close()
    assert (len(calls), observation.counters.drops["observer failed"]) == (1, 1)


def test_metrics_tell_of_sessions_and_tenants() -> None:
    keys = RequestKeys(is_bigram=False, adapters={}, tenants=TENANTS)
    tree = UnifiedTree([Component(name="full", coverage=Path())], 1, page_counts={"full": 100}, tenants=keys.tenants)
    counters = CacheCounters(tenant_hints={1: {("retain", "used"): 2}})
    misses = RequestMisses(tree, keys, counters)
    for salt, tokens in (("acme", [1, 2, 3]), ("globex", [1]), ("else", [1, 2])):
        key = keys.key(array("q", tokens), len(tokens), None, salt)
        misses.tenants.admitted(key.namespace, len(tokens), 0)
        tree.insert(key, {"full": np.arange(len(tokens)) + 10 * len(tokens)})
    registry, now = CollectorRegistry(), [0.0]
    metrics = WrittenMetrics({"tp_rank": "0"}, 1.0, lambda: now[0], counters, registry)
    for _ in range(2):  # counters count what is new
        metrics.write(metrics.families.sessions(7, {("retain", "used"): 3}))
        metrics.write(metrics.families.tenants(misses.tenants.stats()))
    due = [metrics.is_due]
    now[0] = 1.0
    assert [*due, metrics.is_due] == [False, True]
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert values['unified_tree_sessions{tp_rank="0"}'] == 7
    assert values['unified_tree_hints_total{outcome="used",tp_rank="0",verb="retain"}'] == 3
    assert values['unified_tree_tenant_requests_total{group="gold",tp_rank="0"}'] == 2
    assert values['unified_tree_tenant_hints_total{group="gold",outcome="used",tp_rank="0",verb="retain"}'] == 2
    room = 'group="gold",room="the device pool of full",'
    assert values[f'unified_tree_tenant_units{{{room}state="used",tp_rank="0"}}'] == 4
    assert values[f'unified_tree_tenant_units{{{room}state="share",tp_rank="0"}}'] == 50
    other = UnifiedTree([Component(name="full", coverage=Path())], 1, page_counts={"full": 100}, tenants=keys.tenants)
    misses.renew(other)
    assert misses.tenants.stats()["gold"].requests == 2
    assert misses.tenants.stats()["gold"].rooms["the device pool of full"].used == 0
