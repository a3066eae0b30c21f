"""What a watch says of ranks that are silent, dead, late or gone on purpose; the test is the other rank."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import pytest
from waiting import PATIENCE_S, wait_until

from unified_tree.controllers.ranks import RankWatch, rank_watch
from unified_tree.controllers.ranks.rank_watch import BEAT, Seat
from unified_tree.terms.errors import ConfigurationError

HOST, PROCESS = socket.gethostname(), os.getpid()
NAME = f"rank 1 (process {PROCESS})"


class OtherRank:
    """Rank 1 of two, which sends what a test says to the watch of rank 0."""

    def __init__(self, host: str = HOST, process: int = PROCESS) -> None:
        self.links = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for link in self.links:
            link.bind(("127.0.0.1", 0))
        self.host, self.process = host, process

    def exchange(self, own: Seat) -> list[Seat]:
        """The seats of both."""
        assert own.process == os.getpid()
        self.links[0].connect(("127.0.0.1", own.ports[1]))
        return [own, Seat(host=self.host, process=self.process, ports=tuple(link.getsockname()[1] for link in self.links))]

    def beat(self, sent: int = 0, *, closes: bool = False) -> None:
        """Send one datagram."""
        self.links[0].send(BEAT.pack(closes, sent))

    def close(self) -> None:
        """Without a word."""
        for link in self.links:
            link.close()


@pytest.fixture
def other() -> Iterator[OtherRank]:
    made = OtherRank()
    yield made
    made.close()


class Clock:
    """The time of the watches' threads, which passes beat by beat when a test lets it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: Counter[int] = Counter()
        self._now_s = 0.0

    def __call__(self) -> float:
        with self._changed:
            self._asked[threading.get_ident()] += 1
            self._changed.notify_all()
            return self._now_s

    def beat(self, *watches: RankWatch) -> None:
        """Returns when each has counted one more beat. A thread asks for the time once a beat, and then whether it is over."""
        threads = [watch._thread.ident or 0 for watch in watches]
        with self._changed:
            self._await_asked(threads)  # so that all wait for the end of this beat
            self._now_s += 1
            self._await_asked(threads)  # so that all have gone on to the next

    def _await_asked(self, threads: list[int]) -> None:
        before = Counter(self._asked)
        assert self._changed.wait_for(lambda: all(self._asked[each] >= before[each] + 2 for each in threads), PATIENCE_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rank_watch, "monotonic", made)
    return made


@pytest.fixture
def watch(other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture) -> Iterator[RankWatch]:
    """It takes four beats without an answer for silence."""
    del clock
    caplog.set_level(logging.WARNING)
    made = RankWatch(0, 2, other.exchange, timeout_s=0.08)
    yield made
    made.close()
    made.close()
    assert not made._thread.is_alive()


def until_heard(watch: RankWatch, sent: int = 0) -> None:
    """Returns when the watch has heard each other rank say how many messages it has sent, and no beat has passed since."""
    wait_until(lambda: all(peer.was_heard and (peer.unanswered, peer.sent) == (0, sent) for peer in watch._peers), "not heard")


def until_said(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """The record that says it, which must come."""
    wait_until(lambda: any(text in message for message in caplog.messages), f"nobody says {text!r}")
    return next(record for record in caplog.records if text in record.getMessage())


def test_a_silent_rank_is_named_and_may_come_back(
    watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    other.beat()
    until_heard(watch)
    for _ in range(4):
        clock.beat(watch)
    assert not caplog.records
    clock.beat(watch)
    record = until_said(caplog, f"{NAME} has not answered for 0.1 s: it is stopped, or hangs")
    assert record.levelno == logging.ERROR
    assert f"kill -CONT {PROCESS}" in record.getMessage()
    assert f"{NAME} has not answered for" in watch.late()
    other.beat()
    assert until_said(caplog, f"{NAME} answers again").levelno == logging.WARNING
    clock.beat(watch)
    assert len(caplog.records) == 2, "each is said once"


def test_a_rank_that_was_never_heard_is_not_watched(
    watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for at in range(20):
        if at == 10:
            other.close()
        clock.beat(watch)
    assert caplog.messages == []
    assert watch.late() == ""


def test_a_rank_that_dies_is_named(watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    other.beat()
    until_heard(watch)
    other.close()
    clock.beat(watch)
    assert until_said(caplog, f"{NAME} has died").levelno == logging.ERROR


def test_a_process_that_ends_is_named_before_it_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = OtherRank(process=process.pid)
    watch = RankWatch(0, 2, other.exchange, timeout_s=3600)
    other.beat()
    until_heard(watch)
    process.kill()
    until_said(caplog, f"rank 1 (process {process.pid}) has died")
    process.communicate()
    watch.close()
    other.close()


def test_a_rank_may_close_and_go(watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    other.beat()
    until_heard(watch)
    other.beat(closes=True)
    other.close()
    for _ in range(10):
        clock.beat(watch)
    assert caplog.messages == []


def test_a_rank_that_answers_but_sends_nothing_to_the_consensus_is_named(
    watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watch.sent = 7
    for _ in range(5):
        other.beat(sent=6)
        until_heard(watch, 6)
        clock.beat(watch)
    [message] = caplog.messages
    assert f"{NAME} answers, but" in message
    assert "it has sent 6 messages, and this rank 7. The other ranks wait for it" in message
    assert "6 messages" in watch.late()
    other.beat(sent=7)
    until_said(caplog, "answers again")


def test_a_rank_is_not_behind_in_the_first_step_after_a_rest(
    watch: RankWatch, other: OtherRank, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watch.sent = 6
    for number in range(20):
        watch.sent = 7 if number > 17 else 6
        other.beat(sent=6)
        until_heard(watch, 6)
        clock.beat(watch)
    other.beat(sent=7)
    until_heard(watch, 7)
    clock.beat(watch)
    assert caplog.messages == []


def test_ranks_of_another_machine_are_not_watched(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    other = OtherRank("elsewhere")
    watch = RankWatch(0, 2, other.exchange, timeout_s=0.08)
    other.close()
    for _ in range(10):
        clock.beat(watch)
    watch.close()
    assert caplog.messages == []


def test_ranks_that_all_answer_are_not_mentioned(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    seats: dict[int, Seat] = {}
    made: dict[int, RankWatch] = {}
    meeting = Barrier(3)

    def make(rank: int) -> None:
        def exchange(own: Seat) -> list[Seat]:
            seats[rank] = own
            meeting.wait(PATIENCE_S)
            return [seats[each] for each in range(3)]

        made[rank] = RankWatch(rank, 3, exchange, timeout_s=0.08)

    threads = [Thread(target=make, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    watches = list(made.values())
    for sent in range(1, 21):
        for watch in watches:
            watch.sent = sent
        clock.beat(*watches)
        told = [peer for watch in watches for peer in watch._peers]
        wait_until(lambda told=told, sent=sent: all(peer.sent == sent for peer in told), "not heard")  # type: ignore[misc]
    for watch in watches:
        watch.close()
    assert caplog.messages == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_out_that_is_none(seconds: float) -> None:
    nobody: Any = None
    with pytest.raises(ConfigurationError, match="timeout_s must be"):
        RankWatch(0, 1, nobody, timeout_s=seconds)
