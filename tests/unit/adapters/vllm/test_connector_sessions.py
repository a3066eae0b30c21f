"""Sessions, hints and tenants on the host tier behind vLLM, over a model of the engine that checks every block."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_engine_model import MODELS, PAGE, EngineModel, Request

from unified_tree import Tier
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings
from unified_tree.controllers.adapters.vllm.host_sessions import said_of, tenant_of
from unified_tree.controllers.cache.tenant_settings import tenants_of
from unified_tree.nodes.order import LEFT
from unified_tree.terms.errors import ConfigurationError

GIVEN: tuple[object, ...] = (
    None,
    {"retain": True},
    {"retain": 0.001},
    {"pin": True},
    {"unpin": True},
    {"share": True},
    {"demote": True},
    {"end": True},
    {"session": "other", "parent": "above"},
    {"session": "above", "end": True},
    {"retain": "long"},
    {"rets": 1},
    "nonsense",
)


def asked(
    engine: EngineModel, name: str, tokens: list[int], session: str | None = None, given: object = None, namespace: str = ""
) -> Request:
    """A request that has come to its end, with all that it saves."""
    request = Request(name, namespace, list(tokens), 1, session=session, given=given)
    engine.add(request)
    engine.settle()
    return request


def left_pages(engine: EngineModel, component: str = "group0") -> int:
    """Pages of a component on host that go before the rest."""
    tree = engine.side.index.tree
    pool = tree.pool(component, Tier.HOST)
    i = list(tree.components).index(pool.component)
    values = [node.host[i] for node in tree.state.nodes]
    return sum(value.page_count for value in values if value is not None and pool.urgency(value) == LEFT)


def text(seed: int, pages: int) -> list[int]:
    return [seed + 10 * at for at in range(pages * PAGE)]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("workers", [1, 2])
def test_sessions_that_branch_and_end_at_random_resume_on_what_was_computed(kind: str, workers: int) -> None:
    """The model of the engine checks each block on which a request resumes, and that no page is lost."""
    counters: dict[str, int] = {}
    for seed in range(4):
        engine = EngineModel(kind, seed, workers=workers)
        pick = engine.random
        past: list[tuple[str, str | None, list[int]]] = [("", None, [pick.randrange(3) for _ in range(30)])]
        for number in range(40):
            space, session, head = pick.choice(past)
            if pick.random() < 0.3:
                space, session = pick.choice(["", "salt"]), pick.choice([None, f"s{number}", "shared"])
            tokens = [*head[: pick.randrange(len(head) + 1)], *(pick.randrange(3) for _ in range(pick.randrange(1, 12)))]
            request = Request(
                f"r{number}", space, tokens[:44], pick.randrange(1, 12), session=session, given=pick.choice(GIVEN)
            )
            engine.add(request)
            past.append((space, session, request.all_token_ids))
            for _ in range(pick.randrange(1, 6)):
                engine.step()
            if (engine.running or engine.waiting) and pick.random() < 0.1:
                victim = pick.choice(engine.running + engine.waiting)
                if not victim.is_aborted:
                    engine.abort(victim)
            if pick.random() < 0.03:
                engine.side.reset()
            while len(engine.running) + len(engine.waiting) > 3:
                engine.step()
        engine.settle()
        turns = engine.side.sessions.turns
        for name in [each.name for each in turns.sessions]:
            turns.sessions.end(name)
        assert not len(turns.hints)
        assert not engine.side.index.tree.check()
        for name, count in engine.side.take_counters().items():
            counters[name] = counters.get(name, 0) + count
    assert counters["ended_sessions"] > 20
    assert {name.split("/")[1] for name in counters if name.startswith("hints/")} == {"retain", "pin", "share", "demote"}
    assert counters["hit_tokens"] > 100


@pytest.mark.parametrize("kind", MODELS)
def test_a_session_that_ends_goes_first_and_an_open_one_stays(kind: str) -> None:
    engine = EngineModel(kind, 0, host_bytes=100_000)
    head = text(1, 3)
    asked(engine, "a", [*head, *text(2, 4), 0], "open")
    asked(engine, "b", [*head, *text(3, 4), 0], "ending", {"retain": True})
    assert left_pages(engine) == 0
    asked(engine, "c", [*head, *text(3, 4), *text(4, 2), 0], "ending", {"end": True})
    own = 6 if kind != "drafted" else 8  # a block before a branch is a block of its own there
    assert left_pages(engine) == own
    counters = engine.side.take_counters()
    assert counters["ended_sessions"] == 1
    index = engine.side.index
    index.host.evict({"group0": own})
    assert left_pages(engine) == 0
    hits = engine.hit_tokens
    asked(engine, "d", [*head, *text(2, 4), 7], "open")
    assert engine.hit_tokens == hits + (7 if kind != "drafted" else 6) * PAGE, "the open session goes on"


def test_a_turn_supersedes_the_states_before_it() -> None:
    engine = EngineModel("state", 0, host_bytes=100_000)
    tokens = [*text(1, 3), 0]
    for turn in range(4):
        asked(engine, f"r{turn}", tokens, "agent")
        tokens = [*tokens[:-1], *text(5 + turn, 3), 0]
    assert left_pages(engine, "group1") > 0
    assert left_pages(engine) == 0
    again = EngineModel("state", 0, host_bytes=100_000)
    asked(again, "r", tokens)
    assert left_pages(again, "group1") == 0


def test_a_prompt_that_the_host_has_already_is_kept_by_the_session_that_repeats_it() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    tokens = [*text(1, 4), 0]
    asked(engine, "a", tokens, "one")
    asked(engine, "b", tokens, "two", {"pin": True})
    assert len(engine.side.sessions.turns.hints) == 1
    engine.side.sessions.turns.sessions.end("one")
    assert left_pages(engine) == 0


def test_a_session_ends_while_its_request_runs() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    request = Request("a", "", [*text(1, 4), 0], 6, session="agent", given={"pin": True})
    engine.add(request)
    engine.step()
    engine.side.sessions.turns.sessions.end("agent")
    engine.settle()
    assert left_pages(engine) > 0
    assert not len(engine.side.sessions.turns.hints)


def test_a_retained_text_outlives_a_flood() -> None:
    engine = EngineModel("full", 0)
    room = engine.side.index.host.allocators["group0"].page_count
    assert room is not None
    kept, other = asked(engine, "k", [*text(1, 5), 0], "kept", {"retain": True}), asked(engine, "o", [*text(2, 5), 0], "other")
    for number in range(room // 4):
        asked(engine, f"f{number}", [*text(100 + number, 5), 0])
    hits = engine.hit_tokens
    asked(engine, "o2", [*other.all_token_ids[: 5 * PAGE], 1], "other")
    assert engine.hit_tokens == hits
    asked(engine, "k2", [*kept.all_token_ids[: 5 * PAGE], 1], "kept")
    assert engine.hit_tokens == hits + 5 * PAGE
    assert engine.side.take_counters()["hints/retain/used"] == 1


def test_what_cannot_be_read_is_left_out_and_counted() -> None:
    engine = EngineModel("full", 0, host_bytes=100_000)
    for number, given in enumerate(("nonsense", {"rets": 1}, {"session": ""}, {"session": "a", "parent": "a"}, {"pin": 1})):
        asked(engine, f"r{number}", [*text(number, 3), 0], "agent", given)
    assert engine.side.index.counters.drops["hints not understood"] == 5
    assert [each.name for each in engine.side.sessions.turns.sessions] == ["agent"]


def test_a_flood_leaves_a_tenant_its_floor_and_a_cap_holds() -> None:
    tenants = tenants_of(
        {
            "groups": [
                {"name": "quiet", "namespaces": ["q"], "floor": 0.3},
                {"name": "batch", "namespaces": ["b"], "cap": 0.4},
            ]
        }
    )
    assert tenants is not None
    engine = EngineModel("full", 0, tenants=replace(tenants, named_by=tenant_of))
    [room] = engine.side.index.tree.state.rooms
    quiet, batch, adapted = json.dumps(["q", None]), json.dumps(["b", None]), json.dumps(["q", ["lora", 1, "path"]])
    pages = room.standing_of(1)[1]
    asked(engine, "q1", [*text(1, pages // 2), 0], namespace=quiet)
    asked(engine, "q2", [*text(1, pages // 2), 0], namespace=adapted)
    for number in range(40):
        asked(engine, f"b{number}", [*text(100 + number, 5), 0], namespace=batch)
        engine.step()
        used, _, cap = room.standing_of(2)
        assert used <= cap
        asked(engine, f"n{number}", [*text(100 + number, 5), 0])
    hits = engine.hit_tokens
    for name, space in (("q3", quiet), ("q4", adapted)):
        asked(engine, name, [*text(1, pages // 2), 0], namespace=space)
    assert engine.hit_tokens == hits + 2 * (pages // 2) * PAGE
    assert room.standing_of(0)[0] > 0


def test_hints_end_with_the_engine_and_count_by_tenant() -> None:
    tenants = tenants_of({"reported_groups": 1, "groups": [{"name": n, "namespaces": [n]} for n in ("a/b", "unreported")]})
    assert tenants is not None
    engine = EngineModel("full", 0, host_bytes=100_000, tenants=replace(tenants, named_by=tenant_of))
    for name in ("a/b", "unreported", None):
        asked(engine, f"r{name}", [*text(1, 4), 0], f"s{name}", {"retain": True}, namespace=json.dumps([name, None]))
    engine.add(Request("open", "", [*text(2, 4), 0], 6, session="open", given={"pin": True}))
    engine.step()
    assert not any("hints" in name for name in engine.side.take_counters())
    for _ in range(2):
        engine.side.close()
    asked(engine, "late", [*text(1, 4), 0], "sa/b", {"pin": True}, namespace=json.dumps(["a/b", None]))
    counters = engine.side.take_counters()
    assert {name: count for name, count in counters.items() if "hints" in name} == {
        "hints/retain/vain": 3,
        "hints/pin/refused": 2,
        "tenant_hints/retain/vain/a/b": 1,
        "tenant_hints/pin/refused/a/b": 1,
        "tenant_hints/retain/vain/": 1,
        "tenant_hints/pin/refused/": 1,
    }
    assert not len(engine.side.sessions.turns.hints)
    assert not engine.side.index.tree.check()


def test_what_a_request_of_vllm_says() -> None:
    def request(**fields: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"session_id": None, "kv_transfer_params": None, "kv_hints": None, **fields})

    def hints(kind: str, version: str) -> SimpleNamespace:
        action = SimpleNamespace(action_type=kind, action_version=version, payload={"pin": True})
        return SimpleNamespace(actions=[SimpleNamespace(action_type="x", action_version="1", payload={}), action])

    assert said_of(request()) == (None, None)
    assert said_of(request(session_id="s", kv_transfer_params={"unified_tree": {"end": True}})) == ("s", {"end": True})
    assert said_of(request(kv_transfer_params={"do_remote_decode": True})) == (None, None)
    assert said_of(request(kv_hints=hints("unified_tree", "1"))) == (None, {"pin": True})
    assert said_of(request(kv_hints=hints("unified_tree", "2"))) == (None, None)
    assert said_of(request(kv_hints=hints("retain", "1"))) == (None, None)
    assert [tenant_of(each) for each in ("", json.dumps(["a", None]), json.dumps([None, ["lora", 1, "p"]]))] == ["", "a", ""]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, "tenants must be a mapping"),
        ({"group": []}, "tenants: there is no setting 'group'"),
        ({"groups": 3}, "tenants.groups must be a sequence"),
        ({"groups": [{"namespaces": ["a"]}]}, "has no name"),
        ({"groups": [{"name": "a", "namespaces": "a"}]}, "namespaces must be a sequence"),
        ({"groups": [{"name": "a", "namespaces": ["a"], "floor": 2}]}, "a floor of 2 is more than all"),
        ({"groups": [{"name": "a", "namespaces": ["a"], "floor": {"pages": 3}}]}, "pages must be a mapping"),
        ({"groups": [{"name": "a", "namespaces": ["a"], "cap": {"page": 3}}]}, "there is no setting 'page'"),
        ({"named_by": "x"}, "not a file"),
        ({"groups": [{"name": "a", "namespaces": ["a", "b"], "one_namespace": True}]}, "not inside an engine"),
        ({"share_after": 2, "groups": [{"name": n, "namespaces": [n], "shares": True} for n in "abc"]}, "not inside an engine"),
    ],
)
def test_tenants_that_do_not_fit_are_refused(given: object, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectorSettings.of({"tenants": given})
    assert says in str(caught.value)


def test_tenants_stand_in_the_settings() -> None:
    settings = ConnectorSettings.of(
        {"tenants": {"groups": [{"name": "a", "namespaces": ["x"], "floor": {"host_pages": {"group0": 9}}}]}}
    )
    assert settings.tenants is not None
    assert settings.tenants.names == ("", "a")
