"""What a watch says of ranks that are silent, dead, late or gone on purpose; the test is the other rank."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import pytest

from unified_tree.controllers.ranks import RankWatch
from unified_tree.controllers.ranks.rank_watch import BEAT, Seat
from unified_tree.errors import ConfigurationError

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


@pytest.fixture
def watch(other: OtherRank, caplog: pytest.LogCaptureFixture) -> Iterator[RankWatch]:
    caplog.set_level(logging.WARNING)
    made = RankWatch(0, 2, other.exchange, timeout_s=0.08)
    yield made
    made.close()
    made.close()
    assert not made._thread.is_alive()


def until_said(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """The record that says it, which must come."""
    for _ in range(1000):
        for record in caplog.records:
            if text in record.getMessage():
                return record
        time.sleep(0.01)
    raise AssertionError(f"nobody says {text!r}, but {caplog.messages}")


def until_heard(watch: RankWatch) -> None:
    """Returns when the watch has heard the other rank."""
    for _ in range(1000):
        if any(peer.was_heard for peer in watch._peers):
            return
        time.sleep(0.005)
    raise AssertionError("not heard")


def test_a_silent_rank_is_named_and_may_come_back(watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture) -> None:
    other.beat()
    until_heard(watch)
    record = until_said(caplog, f"{NAME} has not answered for 0.1 s: it is stopped, or hangs")
    assert record.levelno == logging.ERROR
    assert f"kill -CONT {PROCESS}" in record.getMessage()
    assert f"{NAME} has not answered for" in watch.late()
    other.beat()
    assert until_said(caplog, f"{NAME} answers again").levelno == logging.WARNING
    assert len(caplog.records) == 2, "each is said once"


def test_a_rank_that_was_never_heard_is_not_watched(
    watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture
) -> None:
    time.sleep(0.3)
    other.close()
    time.sleep(0.3)
    assert caplog.messages == []
    assert watch.late() == ""


def test_a_rank_that_dies_is_named(watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture) -> None:
    other.beat()
    until_heard(watch)
    other.close()
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


def test_a_rank_may_close_and_go(watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture) -> None:
    other.beat()
    until_heard(watch)
    other.beat(closes=True)
    other.close()
    time.sleep(0.4)
    assert caplog.messages == []


def test_a_rank_that_answers_but_sends_nothing_to_the_consensus_is_named(
    watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture
) -> None:
    watch.sent = 7
    while not caplog.records:
        other.beat(sent=6)
        time.sleep(0.005)
    assert f"{NAME} answers, but" in caplog.messages[0]
    assert "it has sent 6 messages, and this rank 7. The other ranks wait for it" in caplog.messages[0]
    assert "6 messages" in watch.late()
    other.beat(sent=7)
    until_said(caplog, "answers again")


def test_a_rank_is_not_behind_in_the_first_step_after_a_rest(
    watch: RankWatch, other: OtherRank, caplog: pytest.LogCaptureFixture
) -> None:
    watch.sent = 6
    for number in range(60):
        watch.sent = 7 if number > 57 else 6
        other.beat(sent=6)
        time.sleep(0.005)
    other.beat(sent=7)
    time.sleep(0.03)
    assert caplog.messages == []


def test_ranks_of_another_machine_are_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    other = OtherRank("elsewhere")
    watch = RankWatch(0, 2, other.exchange, timeout_s=0.08)
    other.close()
    time.sleep(0.2)
    watch.close()
    assert caplog.messages == []


def test_ranks_that_all_answer_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    seats: dict[int, Seat] = {}
    meeting, ready = Barrier(3), Barrier(3)

    def run(rank: int) -> None:
        def exchange(own: Seat) -> list[Seat]:
            seats[rank] = own
            meeting.wait(10)
            return [seats[each] for each in range(3)]

        watch = RankWatch(rank, 3, exchange, timeout_s=0.5)
        for _ in range(60):
            watch.sent += 1
            time.sleep(0.02)
        ready.wait(10)
        watch.close()

    threads = [Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert caplog.messages == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_out_that_is_none(seconds: float) -> None:
    nobody: Any = None
    with pytest.raises(ConfigurationError, match="timeout_s must be"):
        RankWatch(0, 1, nobody, timeout_s=seconds)
