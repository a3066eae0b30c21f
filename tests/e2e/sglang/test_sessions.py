"""Sessions, hints and tenants inside SGLang's scheduler, over its real pools and without a model.

Each page is the right one, the pools add up after every step, and what only closed sessions could go on from goes first.

Run from the repository's root with the engine's python, as `test_scheduler_model.py`.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import Any

import pytest
import sglang_engine

with sglang_engine.imports():
    import torch
    from model_caches import CASES, our_cache
    from scheduler_model import Case, Pools, Request, Scheduler
    from session_hits import KINDS, RIVALS, Agents, Ask, hits
    from sglang.srt.managers.io_struct import CloseSessionReqInput, OpenSessionReqInput
    from sglang.srt.managers.kv_hints import KvHintAction, KvHintsEnvelope
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.session.session_controller import SessionController

    from unified_tree import Tier
    from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache
    from unified_tree.controllers.adapters.sglang.hooks import end_sessions_alike
    from unified_tree.controllers.cache.tenant_settings import tenants_of
    from unified_tree.nodes.order import LEFT

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = int(os.environ.get("SEEDS", "1"))
WAVES = int(os.environ.get("WAVES", "40"))
PAYLOADS: tuple[dict[str, Any], ...] = (
    {"retain": True},
    {"retain": 0.01},
    {"pin": True},
    {"unpin": True},
    {"share": True},
    {"demote": True},
    {"end": True},
    {"session": "other", "parent": "above"},
    {"session": "above", "end": True},
    {"retain": "long"},
    {"rets": 1},
)
TENANTS = tenants_of(
    {
        "groups": [
            {"name": "small", "namespaces": ["a"], "floor": 0.2, "cap": 0.3},
            {"name": "salted", "namespaces": ["s"], "weight": 1},
        ],
        "weight": 1,
    }
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def hinted(payload: dict[str, Any], version: str = "1") -> KvHintsEnvelope:
    """KV hints with one action of ours, behind another cache's."""
    actions = [
        KvHintAction(action_id="0", action_type="other", action_version="1", payload={"x": 1}),
        KvHintAction(action_id="1", action_type="unified_tree", action_version=version, payload=payload),
    ]
    return KvHintsEnvelope(protocol_version="1", message_id="m", actions=actions)


def served(case: Case, write_policy: str | None = None, **options: Any) -> tuple[Scheduler, UnifiedTreeCache]:
    pools = Pools(replace(case, sessions=True))
    cache = our_cache(pools, write_policy=write_policy, **options)
    return Scheduler(pools, cache, has_host=write_policy is not None), cache


def asked(scheduler: Scheduler, prompt: list[int], session: str | None = None, new_tokens: int = 2, **more: Any) -> Request:
    """A request that has come to its end."""
    req = scheduler.submit(prompt, new_tokens, session=session, **more)
    while scheduler.waiting or scheduler.running or scheduler.prefilling:
        scheduler.step()
    return req


def urgencies(cache: UnifiedTreeCache, tier: Tier = Tier.DEVICE) -> set[bool]:
    """Whether what the tree has on a tier goes before the rest."""
    return {
        pool.urgency(value) == LEFT
        for i, pool in enumerate(cache.tree.state.pools(tier))
        for node in cache.tree.state.nodes
        if (value := node.values(tier)[i]) is not None
    }


def left_tokens(cache: UnifiedTreeCache) -> int:
    """Full-attention tokens that go before the rest."""
    pool = cache.tree.pool("full")
    values = [node.device[0] for node in cache.tree.state.nodes]
    return sum(each.page_count for each in values if each is not None and pool.urgency(each) == LEFT) * cache.page_size


@pytest.mark.parametrize("write_policy", [None, "through", "back"])
@pytest.mark.parametrize("name", ["full", "full16", "swa", "swa16", "mamba", "mamba_extra", "eagle"])
def test_sessions_that_open_branch_and_close_at_random(name: str, write_policy: str | None) -> None:
    """The scheduler's model checks every page that a request reads, and that each pool adds up after every step."""
    for seed in range(SEEDS):
        rng = random.Random(f"{name} {write_policy} {seed}")
        tenants = TENANTS if rng.random() < 0.5 else None
        scheduler, cache = served(CASES[name], write_policy, tenants=tenants, infers=rng.random() < 0.5)
        agents = Agents(seed, alone=0.3)
        running: list[tuple[Ask, Request]] = []
        try:
            for _ in range(WAVES):
                for ask in agents.wave():
                    prompt = ask.prompt[: scheduler.pools.case.full_tokens // 3]
                    hints = hinted(rng.choice(PAYLOADS)) if rng.random() < 0.5 else None
                    space = rng.choice([(None, None), ("a", None), (None, "s"), ("b", "s")])
                    req = scheduler.submit(prompt, ask.new_tokens, *space, session=ask.session, hints=hints)
                    running.append((ask, req))
                for closed in agents.closed:
                    cache.release_radix_session(closed)
                if rng.random() < 0.2:
                    cache.release_radix_session(rng.choice([*(ask.session or "no" for ask, _ in running), "unknown"]))
                if rng.random() < 0.1:
                    cache.open_radix_session(f"a{seed}.{rng.randrange(20)}")
                alive = [*scheduler.waiting, *scheduler.running, *([scheduler.prefilling] if scheduler.prefilling else [])]
                if alive and rng.random() < 0.2:
                    scheduler.abort(rng.choice(alive))
                for _ in range(rng.randrange(60)):
                    scheduler.step()
                for ask, req in [pair for pair in running if pair[1].is_finished]:
                    agents.answered(ask, list(req.output_ids))
                running = [pair for pair in running if not pair[1].is_finished]
            while scheduler.waiting or scheduler.running or scheduler.prefilling:
                scheduler.step()
            cache.sanity_check()
            assert cache.sessions is not None
            for name_open in [str(each.name) for each in cache.sessions.turns.sessions]:
                cache.release_radix_session(name_open)
            assert not len(cache.sessions.turns.sessions)
            cache.sanity_check()
            assert scheduler.counts.cached_tokens > 0
            scheduler.flush()
            asked(scheduler, [1] * 40, "again")
            cache.sanity_check()
        finally:
            cache.release_host_resources()


@pytest.mark.parametrize("policy", ["lru", "density", "cost", "mru"])
@pytest.mark.parametrize("name", ["full", "full16", "swa", "mamba", "eagle"])
def test_a_closed_session_goes_first_and_an_open_one_stays(name: str, policy: str) -> None:
    scheduler, cache = served(CASES[name], policy=policy)
    head = [7] * 60
    asked(scheduler, head + [1] * 90, "open")
    asked(scheduler, head + [2] * 90, "closed")
    assert left_tokens(cache) == 0
    cache.release_radix_session("closed")
    left, before = left_tokens(cache), cache.full_evictable_size()
    assert 60 < left <= 96 < before
    cache.evict(EvictParams(num_tokens=left))
    assert left_tokens(cache) == 0
    assert cache.full_evictable_size() == before - left
    assert asked(scheduler, head + [1] * 90 + [3] * 40, "open").prefix_len >= 144, "the open session goes on"


def test_a_closed_session_goes_first_on_host_too() -> None:
    scheduler, cache = served(CASES["full"], "through")
    try:
        for session in ("open", "closed"):
            asked(scheduler, [len(session)] * 80, session)
        assert cache._tiers is not None
        cache._tiers.controller.flush()
        assert urgencies(cache, Tier.HOST) == {False}
        cache.release_radix_session("closed")
        assert urgencies(cache, Tier.HOST) == {True, False}
        cache.release_radix_session("open")
        assert urgencies(cache, Tier.HOST) == {True}
    finally:
        cache.release_host_resources()


def test_texts_without_a_session_go_before_those_of_open_ones() -> None:
    scheduler, cache = served(CASES["full"])
    for _ in range(2):
        asked(scheduler, [1] * 60)
        assert urgencies(cache) == {True}
    asked(scheduler, [2] * 60, "agent")
    assert 60 <= left_tokens(cache) < 70
    asked(scheduler, [1] * 60 + [3], "agent")
    assert left_tokens(cache) < 10


def test_a_request_that_outlives_its_session_goes_first_and_a_reopened_session_does_not_get_it() -> None:
    scheduler, cache = served(CASES["full"])
    req = scheduler.submit([1] * 60, 20, session="agent")
    cache.release_radix_session("agent")
    cache.open_radix_session("agent")
    while not req.is_finished:
        scheduler.step()
    assert urgencies(cache) == {True}
    asked(scheduler, [2] * 60, "agent")
    assert False in urgencies(cache)


def test_a_session_that_repeats_what_another_has_keeps_it() -> None:
    scheduler, cache = served(CASES["full16"])
    prompt = [1] * 100
    asked(scheduler, prompt, "one", new_tokens=1)
    asked(scheduler, prompt, "two", new_tokens=1)
    cache.release_radix_session("one")
    assert urgencies(cache) == {False}


def test_hints_come_with_requests() -> None:
    scheduler, cache = served(CASES["full"])
    assert cache.sessions is not None
    counted = cache.observation.counters.hints
    req = asked(scheduler, [1] * 60, "agent", hints=hinted({"retain": True}))
    hints = cache.sessions.turns.hints
    assert len(hints) == 1
    assert asked(scheduler, [*req.full_untruncated_fill_ids, 5, 6], "agent").prefix_len == 61
    assert counted == {("retain", "used"): 1}
    asked(scheduler, [2] * 60, None, hints=hinted({"session": "explorer", "parent": "agent", "pin": True}))
    assert len(hints) == 1
    cache.release_radix_session("agent")
    assert counted["pin", "vain"] == 1
    assert not len(cache.sessions.turns.sessions)


@pytest.mark.parametrize("write_policy", [None, "through"])
def test_hints_end_with_the_engine(write_policy: str | None) -> None:
    """Those of sessions whose requests run still, too: the scheduler may stop at any moment."""
    scheduler, cache = served(CASES["full"], write_policy, tenants=TENANTS)
    assert cache.sessions is not None
    counters, hints = cache.observation.counters, cache.sessions.turns.hints
    asked(scheduler, [1] * 60, "one", hints=hinted({"retain": 60, "pin": True}))
    late = scheduler.submit([2] * 60, 20, session="two", hints=hinted({"retain": True}))
    scheduler.step()
    for _ in range(2):
        cache.release_host_resources()
    assert not len(hints)
    cache.sessions.released(late, is_over=True)
    assert counters.hints == {("retain", "vain"): 1, ("pin", "vain"): 1, ("retain", "refused"): 1}
    assert counters.tenant_hints == {0: counters.hints}


def test_hints_that_cannot_be_read_are_left_out_and_counted() -> None:
    scheduler, cache = served(CASES["full"])
    drops = cache.observation.counters.drops
    asked(scheduler, [1] * 60, "agent", hints=hinted({"retain": "long"}))
    asked(scheduler, [1] * 60, "agent", hints=hinted({"session": "x" * 600}))
    asked(scheduler, [1] * 60, "agent", hints=hinted({"session": "agent", "parent": "above"}))
    assert drops["hints not understood"] == 3
    asked(scheduler, [1] * 60, "agent", hints=hinted({"pin": True}, version="2"))
    assert drops["hints not understood"] == 3
    assert cache.sessions is not None
    assert not len(cache.sessions.turns.hints)


def test_a_retained_session_outlives_a_flood() -> None:
    scheduler, cache = served(CASES["full"])
    texts = {
        session: list(asked(scheduler, [len(session)] * 90, session, hints=hints).full_untruncated_fill_ids)
        for session, hints in (("kept", hinted({"retain": True})), ("other", None))
    }
    for token in range(100, 130):
        asked(scheduler, [token] * 90, f"s{token}")
    assert asked(scheduler, [*texts["kept"], 1], "kept").prefix_len == 91
    assert asked(scheduler, [*texts["other"], 1], "other").prefix_len == 0
    assert cache.observation.counters.hints == {("retain", "used"): 1}


def test_without_the_flag_nothing_is_kept_of_sessions() -> None:
    pools = Pools(CASES["full"])
    cache = our_cache(pools)
    assert not cache.enable_session_radix_cache
    asked(Scheduler(pools, cache), [1] * 60, "agent")
    cache.release_radix_session("agent")
    assert cache.sessions is None
    assert urgencies(cache) == {False}


@pytest.mark.parametrize(("key", "salt"), [("a", None), (None, "a"), ("b", "a"), ("a" + "f" * 32, "x")])
def test_a_flood_leaves_a_tenant_its_floor(key: str | None, salt: str | None) -> None:
    tenants = tenants_of({"groups": [{"name": "quiet", "namespaces": ["a"], "floor": 0.3}]})
    scheduler, _ = served(CASES["full"], tenants=tenants)
    quiet = [[token] * 60 for token in range(1, 4)]
    for prompt in quiet:
        asked(scheduler, prompt, None, 1, extra_key=key, cache_salt=salt)
    for token in range(100, 140):
        asked(scheduler, [token] * 90, None, 1, extra_key="flood")
    assert [asked(scheduler, [*prompt, 0], None, 1, extra_key=key, cache_salt=salt).prefix_len for prompt in quiet] == [60] * 3


@pytest.mark.parametrize("write_policy", [None, "through"])
def test_a_tenant_holds_no_more_than_its_cap(write_policy: str | None) -> None:
    tenants = tenants_of({"groups": [{"name": "batch", "namespaces": ["a"], "cap": 0.2}]})
    scheduler, cache = served(CASES["full"], write_policy, tenants=tenants)
    try:
        for token in range(20):
            asked(scheduler, [token] * 60, None, 1, extra_key="a")
            scheduler.step()
            for room in cache.tree.state.rooms:
                used, _, cap = room.standing_of(1)
                assert used <= cap
        assert len(cache.tree.state.rooms) == (1 if write_policy is None else 2)
        assert 0 < cache.full_evictable_size() <= 0.2 * 701
    finally:
        cache.release_host_resources()


@pytest.mark.parametrize("kind", ["full", "mamba"])
def test_agents_have_more_hits_with_sessions_and_no_fewer_than_with_sglangs_own(kind: str) -> None:
    def had(name: str) -> int:
        return sum(hits(KINDS[kind], RIVALS[name], seed, 60)[1] for seed in range(3))

    ours = had("ours, sessions")
    assert ours > had("ours")
    assert ours > 0.99 * had("SGLang, sessions")


def test_several_ranks_leave_sessions_open_that_are_closed_by_the_clock_of_each() -> None:
    scheduler, cache = served(CASES["full"])
    assert cache.sessions is not None
    end_sessions_alike(cache.sessions)
    controller = SessionController(cache)
    for name in ("slow", "closed"):
        controller.open(OpenSessionReqInput(capacity_of_str_len=1, session_id=name, timeout=0.0 if name == "slow" else None))
        asked(scheduler, [len(name)] * 60, name)
    controller.maybe_reap(time.monotonic() + 5)
    assert "slow" not in controller
    assert left_tokens(cache) == 0
    controller.close(CloseSessionReqInput(session_id="closed"))
    assert 60 <= left_tokens(cache) < 70


def test_a_session_that_is_unused_for_too_long_is_closed() -> None:
    scheduler, cache = served(CASES["full"])
    controller = SessionController(cache)
    controller.open(OpenSessionReqInput(capacity_of_str_len=1, session_id="slow", timeout=0.0))
    asked(scheduler, [1] * 60, "slow")
    controller.maybe_reap(time.monotonic() + 5)
    assert 60 <= left_tokens(cache) < 70
