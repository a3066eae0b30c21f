"""A store that is away is asked once a pause."""

from __future__ import annotations

from unified_tree.controllers.storage.guarded_storage import CircuitBreaker


class World:
    now = 0.0
    reachable = True


def made() -> tuple[CircuitBreaker, World]:
    world = World()
    return CircuitBreaker(2.0, lambda: world.reachable, lambda: world.now), world


def test_all_calls_pass_until_one_fails() -> None:
    breaker, _ = made()
    assert breaker.admits() and breaker.admits()
    breaker.succeeded()
    assert breaker.admits()
    assert not breaker.is_open
    breaker.failed()
    assert not breaker.admits()
    assert breaker.failures == 1


def test_one_call_a_pause_until_one_succeeds() -> None:
    breaker, world = made()
    breaker.failed()
    world.now = 1.9
    assert not breaker.admits()
    world.now = 2.0
    assert breaker.admits()
    assert not breaker.admits(), "the second waits for what the first finds"
    breaker.failed()
    world.now = 3.9
    assert not breaker.admits()
    world.now = 4.0
    assert breaker.admits()
    breaker.succeeded()
    assert breaker.admits() and breaker.admits()


def test_a_try_that_says_nothing_costs_a_pause() -> None:
    breaker, world = made()
    breaker.failed()
    world.now = 2.0
    assert breaker.admits()
    world.now = 3.9
    assert not breaker.admits()
    world.now = 4.0
    assert breaker.admits()


def test_a_client_without_a_connection_is_not_called() -> None:
    breaker, world = made()
    world.reachable = False
    assert not breaker.admits() and breaker.is_open
    world.now, world.reachable = 1.0, True
    assert not breaker.admits()
    world.now = 2.0
    assert breaker.admits()
    breaker.succeeded()
    assert not breaker.is_open
