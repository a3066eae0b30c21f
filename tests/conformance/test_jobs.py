"""Every way to run jobs keeps the contract, and what each promises besides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from unified_tree.controllers.storage import NullStorage
from unified_tree.controllers.storage_tier import Jobs, ThreadJobs
from unified_tree.controllers.storage_tier.jobs import Steps
from unified_tree.controllers.testing import Check, SimulatedJobs, job_checks
from unified_tree.controllers.testing.job_contract import counting, finished
from unified_tree.controllers.testing.storage_contract import POOLS
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.controllers.workbench.server.paced_transfers import PacedJobs
from unified_tree.controllers.workbench.server.page_store import MeteredStorage
from unified_tree.controllers.workbench.server.server_settings import StorageCost

MAKERS: dict[str, Callable[[], Jobs]] = {
    "threads": ThreadJobs,
    "two threads": lambda: ThreadJobs(2),
    "simulated": lambda: SimulatedJobs(0, VirtualClock()),
    "simulated, one at a time": lambda: SimulatedJobs(0, VirtualClock(), max_concurrent=1),
    "paced": lambda: PacedJobs(VirtualClock(), MeteredStorage(NullStorage(POOLS), {}), StorageCost(bytes_per_s=1e9)),
}


@pytest.fixture(params=MAKERS)
def jobs(request: pytest.FixtureRequest) -> Iterator[Jobs]:
    made = MAKERS[request.param]()
    yield made
    made.close()


@pytest.mark.parametrize("check", job_checks(), ids=repr)
def test_every_one_keeps_the_contract(check: Check, jobs: Jobs) -> None:
    check(jobs)


def test_every_job_ends_and_begins_in_the_order_of_starting() -> None:
    one_by_one = SimulatedJobs(0, VirtualClock(), max_concurrent=1)
    for make in (ThreadJobs, lambda: SimulatedJobs(0, VirtualClock(), spread=0), lambda: one_by_one):
        jobs = make()
        log: list[object] = []
        started = [jobs.start(counting(log, name, 2)) for name in range(20)]
        assert finished(jobs) == started
        assert [entry for entry in log if isinstance(entry, tuple) and entry[1] == 0] == [(name, 0) for name in range(20)]
        jobs.close()


def test_closing_breaks_off_between_two_steps_and_begins_no_other() -> None:
    jobs = ThreadJobs()
    log: list[object] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> Steps:
        entered.set()
        go_on.wait(60)
        log.append("a step is not cut")
        yield 0.0
        log.append("never")

    jobs_under_way = [jobs.start(slow()), *(jobs.start(counting(log, name, 2)) for name in range(5))]
    assert entered.wait(60)
    closing = threading.Thread(target=jobs.close)
    closing.start()
    while not jobs._closing.is_set():
        pass
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert log == ["a step is not cut"]
    jobs.wait()
    assert {job: job.error for job in jobs.ended()} == dict.fromkeys(jobs_under_way, "closed")


def test_closing_does_not_wait_for_a_pause() -> None:
    jobs = ThreadJobs()
    log: list[object] = []
    paused = threading.Event()

    def pausing() -> Steps:
        paused.set()
        yield 1e6
        log.append("never")

    job = jobs.start(pausing())
    assert paused.wait(60)
    jobs.close()
    assert jobs.ended() == [job]
    assert (job.error, log) == ("closed", [])


def test_what_starts_while_a_thread_is_busy_is_submitted_to_no_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission takes several microseconds of the scheduler's thread; a deque's append does not."""
    jobs = ThreadJobs(2)
    submitted: list[object] = []
    submit = jobs._pool.submit

    def counted(work: Callable[[], None]) -> object:
        submitted.append(work)
        return submit(work)

    monkeypatch.setattr(jobs._pool, "submit", counted)
    log: list[object] = []
    go_on = threading.Event()

    def held() -> Steps:
        go_on.wait(60)
        yield 0.0

    started = [*(jobs.start(held()) for _ in range(2)), *(jobs.start(counting(log, name, 1)) for name in range(50))]
    assert len(submitted) == 2
    go_on.set()
    assert set(finished(jobs)) == set(started)
    assert len(submitted) == 2
    assert finished(jobs) == []
    assert jobs.start(counting(log, "later", 1)) in finished(jobs), "an idle thread wakes"
    jobs.close()
    refused = jobs.start(counting(log, "never", 1))
    assert jobs.ended() == [refused]
    assert refused.error == "closed"
    assert ("never", 0) not in log


def test_simulated_jobs_that_are_closed_end_where_they_are() -> None:
    clock = VirtualClock()
    log: list[object] = []
    jobs = SimulatedJobs(0, clock, step_ns=100, spread=0)
    first, second = jobs.start(counting(log, "a", 1)), jobs.start(counting(log, "b", 5))
    clock.advance(250)
    assert jobs.ended() == [first]
    jobs.close()
    assert jobs.ended() == [second]
    assert (first.error, second.error) == (None, "closed")
    assert ("b", "end") not in log


def test_simulated_time_is_the_seeds() -> None:
    def history(seed: int) -> list[int]:
        clock = VirtualClock()
        jobs = SimulatedJobs(seed, clock)
        for name in range(5):
            jobs.start(counting([], name, 4, pause_s=1e-6))
        jobs.wait()
        return [clock.now]

    assert history(1) == history(1) != history(2)
