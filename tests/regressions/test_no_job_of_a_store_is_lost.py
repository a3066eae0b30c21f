"""A job ends whatever happens around it. What waited for a thread that never came, was closed on another thread, or stood
behind a step whose error could not be written down, was waited for forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from unified_tree.controllers.storage_tier import ThreadJobs
from unified_tree.controllers.storage_tier.jobs import Steps


class UnspeakableError(Exception):
    """An error that cannot be written down."""

    def __str__(self) -> str:
        raise IndexError


def broken() -> Steps:
    yield 0.0
    raise UnspeakableError


def nothing() -> Steps:
    yield 0.0


def held(go_on: threading.Event) -> Steps:
    go_on.wait(60)
    yield 0.0


def wait_for(jobs: ThreadJobs) -> None:
    """`wait`, which would hang where a job is lost."""
    waiting = threading.Thread(target=jobs.wait, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive(), "every job ends"


def test_a_step_whose_error_has_no_words_stops_no_thread() -> None:
    jobs = ThreadJobs()
    first, second = jobs.start(broken()), jobs.start(nothing())
    wait_for(jobs)
    assert jobs.ended() == [first, second]
    assert (first.error, second.error) == ("UnspeakableError", None)
    jobs.close()


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_no_thread_can_be_had(failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = ThreadJobs(2)
    submit, started, go_on = jobs._pool.submit, [], threading.Event()

    def refuse(_: object) -> None:
        raise failure

    def start() -> None:
        if isinstance(failure, RuntimeError):
            started.append(jobs.start(nothing()))
        else:
            with pytest.raises(type(failure)):
                jobs.start(nothing())

    monkeypatch.setattr(jobs._pool, "submit", refuse)
    start()
    wait_for(jobs)
    [refused] = jobs.ended()
    assert (refused.error or "").startswith(type(failure).__name__)
    monkeypatch.setattr(jobs._pool, "submit", submit)
    busy = jobs.start(held(go_on))
    monkeypatch.setattr(jobs._pool, "submit", refuse)
    start()  # a thread is there that will take it
    assert jobs.ended() == []
    go_on.set()
    wait_for(jobs)
    assert {job.error for job in (busy, *jobs.ended())} == {None}
    monkeypatch.setattr(jobs._pool, "submit", submit)
    last = [jobs.start(nothing()) for _ in range(10)]
    wait_for(jobs)
    assert set(jobs.ended()) == set(last)
    jobs.close()


@pytest.mark.parametrize("thread_count", [1, 3])
def test_several_threads_start_jobs_while_it_closes(thread_count: int) -> None:
    for round_ in range(60):
        jobs = ThreadJobs(thread_count)
        begin = threading.Barrier(3)

        def start(jobs: ThreadJobs = jobs, begin: threading.Barrier = begin) -> None:
            begin.wait(60)
            for _ in range(20):
                jobs.start(nothing())

        def close(jobs: ThreadJobs = jobs, begin: threading.Barrier = begin, after: int = round_) -> None:
            begin.wait(60)
            for _ in range(after * 20):
                pass
            jobs.close()

        callers: list[Callable[[], None]] = [start, start, close]
        threads = [threading.Thread(target=caller) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        wait_for(jobs)
        assert len(set(jobs.ended())) == 40
