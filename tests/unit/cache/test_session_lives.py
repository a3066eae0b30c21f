"""Sessions as an engine sees them: what goes first once they end, or go on."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import session_turns
from session_turns import STATES, turn

from unified_tree import Component, Key, LeaseError, Path, Tier, Trailing
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.sessions import Session
from unified_tree.nodes.order import LEFT

WINDOWS = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(8))]


def cache_of(kinds: list[Component], states: int = 100, *, has_host: bool = False, **options: Any) -> PrefixCache:
    return session_turns.cache_of(kinds, {"full": 400, kinds[1].name: states}, has_host=has_host, **options)


def left_at(cache: PrefixCache, length: int, component: str, tier: Tier = Tier.DEVICE) -> bool:
    """Whether what a component has at the ends of nodes of a length goes before the rest."""
    pool = cache.tree.pool(component, tier)
    i = list(cache.tree.components).index(pool.component)
    values = [value for node in cache.tree.state.nodes if node.end == length and (value := node.values(tier)[i]) is not None]
    assert values
    return all(pool.urgency(value) == LEFT for value in values)


@pytest.mark.parametrize(
    ("kinds", "component", "session"), [(STATES, "mamba", "agent"), (STATES, "mamba", None), (WINDOWS, "swa", "agent")]
)
@pytest.mark.parametrize("policy", ["density", "lru", "cost"])
def test_the_next_turn_supersedes_what_it_resumed_from(
    kinds: list[Component], component: str, policy: str, session: str | None
) -> None:
    cache = cache_of(kinds, policy=policy, has_host=True, infer_sessions=session is None)
    turn(cache, np.arange(17), session)
    assert not left_at(cache, 16, component)
    assert turn(cache, np.arange(41), session) == 16
    assert not left_at(cache, 16, component), "a prompt may step back once"
    assert turn(cache, np.arange(65), session) == 40
    assert left_at(cache, 16, component)
    assert left_at(cache, 16, component, Tier.HOST)
    assert not left_at(cache, 40, component)
    assert not left_at(cache, 64, component)


@pytest.mark.parametrize("session", ["agent", None])
def test_what_was_branched_from_before_stays(session: str | None) -> None:
    cache = cache_of(STATES, infer_sessions=session is None)
    turn(cache, np.arange(17), session)
    assert turn(cache, [*range(16), *range(100, 116)], "other") == 16
    assert turn(cache, np.arange(41), session) == 16
    assert turn(cache, np.arange(65), session) == 40
    assert not left_at(cache, 16, "mamba")


def test_who_branches_off_later_may_still_do_so_and_keeps_it_from_then_on() -> None:
    cache = cache_of(STATES)
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(41), "agent")
    turn(cache, np.arange(65), "agent")
    assert left_at(cache, 16, "mamba")
    assert turn(cache, [*range(16), *range(100, 116)]) == 16
    assert not left_at(cache, 16, "mamba")


def test_superseding_can_be_left_to_those_who_say_so() -> None:
    cache = cache_of(STATES)
    turn(cache, np.arange(17))
    turn(cache, np.arange(41))
    turn(cache, np.arange(65))
    assert not left_at(cache, 16, "mamba")


def test_an_answer_that_the_next_prompt_does_not_repeat_is_left() -> None:
    cache = cache_of(WINDOWS)
    with cache.acquire(Key(np.arange(17)), session="agent") as lease:
        cache.allocate(lease, 28)
        cache.commit(lease, 16)
        cache.commit(lease, np.concatenate((np.arange(17), np.arange(500, 511))))
    assert not left_at(cache, 28, "full")
    assert turn(cache, np.arange(41), "agent") == 16
    assert left_at(cache, 28, "full")
    assert left_at(cache, 28, "swa")


def test_a_session_ends_with_all_that_are_part_of_it() -> None:
    cache = cache_of(STATES)
    cache.open_session("agent")
    cache.open_session("helper", parent="agent")
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(100, 117), "helper")
    cache.end_session("agent")
    assert left_at(cache, 16, "full")
    assert len(cache.sessions) == 0
    assert cache.stats().ended_sessions == 2
    cache.end_session("agent")
    assert cache.stats().ended_sessions == 2


def test_subagents_that_begin_alike_leave_their_beginning_to_the_next_one() -> None:
    cache = cache_of(STATES)
    for name in ("one", "two"):
        cache.open_session(name, parent="agent")
        turn(cache, [*range(16), *range(ord(name[0]), ord(name[0]) + 17)], name)
        cache.end_session(name)
    assert not left_at(cache, 16, "full")
    assert left_at(cache, 32, "full")
    cache.end_session("agent")
    assert left_at(cache, 16, "full")


def test_a_session_may_have_several_texts_at_once() -> None:
    cache = cache_of(STATES)
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(100, 117), "agent")
    turn(cache, np.arange(41), "agent")
    assert not left_at(cache, 40, "full")
    assert turn(cache, np.arange(100, 125), "agent") == 16


def test_names_of_sessions_are_checked() -> None:
    cache = cache_of(STATES)
    absurd: list[Any] = [[], None, {}]
    for name in absurd:
        with pytest.raises(LeaseError):
            cache.open_session(name)
    with pytest.raises(LeaseError):
        cache.acquire(Key(np.arange(4)), session=[])  # type: ignore[arg-type]
    with pytest.raises(LeaseError):
        cache.open_session("a", parent="a")
    cache.open_session("a", parent="b")
    with pytest.raises(LeaseError, match="part of 'b'"):
        cache.open_session("a", parent="c")
    cache.open_session("a")
    cache.end_session([])  # type: ignore[arg-type]
    assert cache.lease_count == 0


def kept_sessions(prefix: str) -> int:
    for _ in range(2):  # the first ends the tree, whose end lets go of the sessions
        gc.collect()
    return sum(isinstance(each, Session) and str(each.name).startswith(prefix) for each in gc.get_objects())


def test_a_cache_that_goes_takes_its_open_sessions_and_hints_along() -> None:
    """The collector does not see references through nodes and values."""
    cache = cache_of(STATES, states=3)
    names = [f"of a cache that goes {i}" for i in range(6)]
    for i, name in enumerate(names):
        turn(cache, np.arange(100 * i, 100 * i + 17), name)
        assert cache.hints.pin(name)
    assert kept_sessions("of a cache that goes") == 6
    cache.end_session(names[0])
    del cache
    assert not kept_sessions("of a cache that goes")
