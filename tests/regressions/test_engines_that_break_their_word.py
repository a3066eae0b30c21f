"""Transfer engines that do not keep their contract, and a check of the contract that did not keep it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from random import Random

import pytest
from held_engine import HeldEngine, Tiered
from kinds import FULL, MAMBA
from page_memory import MemoryMover, PageMemory

from unified_tree import TransferError
from unified_tree.controllers.testing import TransferRig, transfer_engine_checks
from unified_tree.controllers.transfer_engines import Completion, CpuEngine, Transfer

# Completions out of order broke an acknowledgement off, and `drain` then waited for ever for those that were lost with it; an
# error other than TransferError from `submit` left host pages with nobody.


Told = Callable[[list[Completion]], list[Completion]]


class LyingEngine(HeldEngine):
    """Tells its completions in a way of its own.

    Attributes:
        failure: what `submit` raises after it has taken so many transfers, `takes`.
    """

    def __init__(self, movers: Mapping[str, MemoryMover]) -> None:
        super().__init__(movers)
        self.tell_as: Told = lambda completions: completions
        self.failure: BaseException | None = None
        self.takes = 0

    def poll(self) -> list[Completion]:
        return self.tell_as(super().poll())

    def submit(self, transfers: Sequence[Transfer]) -> None:
        if self.failure is not None:
            super().submit(transfers[: self.takes])
            raise self.failure
        super().submit(transfers)

    def wait(self, ticket: int) -> None:
        if ticket not in self._outcomes and ticket not in self.open:
            raise TransferError(f"transfer {ticket} is not known")
        super().wait(ticket)


class Server(Tiered):
    """A small server over such an engine."""

    def __init__(self, told: Told = lambda completions: completions) -> None:
        kinds = [FULL, MAMBA]
        memory = PageMemory(kinds)
        self.liar = LyingEngine(memory.movers())
        self.liar.tell_as = told
        super().__init__(kinds, engine=self.liar, memory=memory)


def shuffled(completions: list[Completion]) -> list[Completion]:
    return Random(0).sample(completions, len(completions))


def but_the_first(completions: list[Completion]) -> list[Completion]:
    return completions[1:]


def nothing(completions: list[Completion]) -> list[Completion]:
    del completions
    return []


def all_and_more(completions: list[Completion]) -> list[Completion]:
    return [*completions, *completions, *(Completion(ticket=ticket, error=None) for ticket in (-1, 1_000, None))]  # type: ignore[arg-type]


WAYS: dict[str, Told] = {
    "backwards": lambda completions: completions[::-1],
    "shuffled": shuffled,
    "but the first": but_the_first,
    "nothing": nothing,
    "more than there were": all_and_more,
}


@pytest.mark.parametrize("way", WAYS)
def test_waiting_for_all_comes_back_and_what_is_out_of_order_is_not_lost(way: str) -> None:
    server = Server(WAYS[way]).served("abcd", "abcdefgh", "abcdefghij", "xyzw")
    is_lossless = way in ("backwards", "shuffled")
    assert (server.on_host() == 0) is (way == "nothing")
    assert server.on_host() == 7 or not is_lossless
    requests = [server.start(text) for text in ("abcd?", "abcdefgh?", "abcdefghij?")]
    assert all(server.is_loading(request) for request in requests) or not is_lossless
    server.settle()
    for request in requests:
        if is_lossless:
            server.runner.verify(request)
        server.runner.finish(request)
    server.end()


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_waits_for_its_load_and_no_longer(way: str) -> None:
    server = Server().served("abcd", "abcdefgh")
    server.liar.tell_as = WAYS[way]
    first, second = server.start("abcd?"), server.start("abcdefgh?")
    server.cache.poll()
    may_fail = way in ("but the first", "nothing")
    for request in (second, first):
        with suppress(TransferError) if may_fail else nullcontext():
            server.cache.advance(request.lease, 0)
        server.runner.finish(request)
    server.end()


@pytest.mark.parametrize("takes", [0, 1, 2])
@pytest.mark.parametrize("failure", [ValueError("no such cable"), KeyError("x"), KeyboardInterrupt()], ids=repr)
def test_whatever_submit_raises_every_page_comes_home(failure: BaseException, takes: int) -> None:
    server = Server()
    requests = [server.start(text) for text in ("abcdefghi", "ijklm")]
    for request in requests:
        server.cache.allocate(request.lease, len(request.tokens))
        server.runner.compute(request, len(request.tokens))
        server.runner.commit(request)
        server.runner.finish(request)
    server.liar.failure, server.liar.takes = failure, takes
    with pytest.raises(type(failure)):
        server.cache.poll()
    server.check()
    host = server.cache.stats().host_pools.values()
    assert all(pool.used == pool.tree for pool in host), "no page is out"
    assert server.cache.stats().drops == {
        reason: count for reason, count in (("backup cancelled", takes), ("backup failed", 2 - takes)) if count
    }
    server.liar.failure = None
    server.serve("mnop")
    server.settle()
    server.end()


@pytest.mark.parametrize("waits", [True, False])
def test_a_load_that_the_engine_choked_on(waits: bool) -> None:
    """A release gives the engine nothing that it would take back at once."""
    server = Server().served("abcdefgh")
    request = server.start("abcdefghi")
    server.liar.failure = ValueError("no such cable")
    if waits:
        with pytest.raises(ValueError, match="no such cable"):
            server.cache.wait_layer(request.lease, 0)
        with pytest.raises(TransferError, match="ValueError: no such cable"):
            server.cache.wait_layer(request.lease, 0)
    server.runner.finish(request)
    server.check()
    server.liar.failure = None
    server.end()


class Unclosed(LyingEngine):
    """Cannot be closed in order."""

    def close(self) -> None:
        super().close()
        raise OSError("the cable is stuck")


def test_an_engine_that_does_not_close_holds_nothing() -> None:
    kinds = [FULL]
    memory = PageMemory(kinds)
    server = Tiered(kinds, engine=Unclosed(memory.movers()), memory=memory)
    server.serve("abcdefgh")
    server.cache.poll()
    with pytest.raises(OSError, match="stuck"):
        server.cache.close()
    server.check()
    server.cache.close()
    server.runner.end()


class CopiesMeanwhile(CpuEngine):
    """Its thread has the processor for itself after `submit`, until nothing is left to copy or it does not get on."""

    def submit(self, transfers: Sequence[Transfer]) -> None:
        super().submit(transfers)
        time.sleep(0.5)  # a slow machine; the outcome is the same without


def test_a_contract_that_raced_its_engine() -> None:
    """An engine that had copied everything before `close` was called broke a clause of its contract, as on a slow machine."""
    [check] = [check for check in transfer_engine_checks() if check.name == "closing_ends_what_is_open"]
    check(TransferRig.over_cells(CopiesMeanwhile))
