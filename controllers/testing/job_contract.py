"""The contract of job runners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unified_tree.controllers.testing.checks import LIMIT_S, Check, expect, expect_equal, run_checks

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier.jobs import Job, Jobs, Steps

OpenJobs = Callable[[], "Jobs"]
"""Opens what runs jobs."""


def check_jobs(open_jobs: OpenJobs, *, limit_s: float = LIMIT_S) -> None:
    """Check that a runner of jobs keeps the contract of `Jobs`; each clause may take `limit_s` seconds.

    Raises AssertionError that names every clause that is broken.

    >>> from unified_tree.controllers.storage_tier import ThreadJobs
    >>> check_jobs(ThreadJobs)
    """
    run_checks(job_checks(), open_jobs, limit_s)


def job_checks() -> list[Check]:
    """The single checks: each is called with new jobs, and closes them."""
    return [
        Check(body)
        for body in (
            a_job_runs_to_its_end_and_is_named_once,
            a_job_without_steps_ends_too,
            an_error_is_the_jobs_and_the_next_one_runs,
            a_pause_takes_its_time,
            closed_jobs_take_no_step,
            waiting_does_not_name_the_ended,
        )
    ]


def counting(log: list[object], name: object, steps: int, pause_s: float = 0.0) -> Steps:
    """A job that notes its steps and its end."""
    for step in range(steps):
        log.append((name, step))
        yield pause_s
    log.append((name, "end"))


def failing(error: Exception) -> Steps:
    """A job that raises in its second step."""
    yield 0.0
    raise error


def finished(jobs: Jobs) -> list[Job]:
    """What has ended, once all have."""
    jobs.wait()
    return jobs.ended()


def a_job_runs_to_its_end_and_is_named_once(jobs: Jobs) -> None:
    """`ended` names a job once, after its last step."""
    log: list[object] = []
    job = jobs.start(counting(log, "a", 3))
    expect_equal(finished(jobs), [job], "ended, after wait")
    expect_equal(job.error, None, "the error of a job that ran to its end")
    expect_equal(log, [("a", 0), ("a", 1), ("a", 2), ("a", "end")], "the steps of a job")
    expect_equal(jobs.ended(), [], "ended, when asked again")
    jobs.wait()
    jobs.close()


def a_job_without_steps_ends_too(jobs: Jobs) -> None:
    """A generator that yields nothing is a job."""
    job = jobs.start(counting([], "a", 0))
    expect_equal(finished(jobs), [job], "ended, after a job without steps")
    jobs.close()


def an_error_is_the_jobs_and_the_next_one_runs(jobs: Jobs) -> None:
    """What a step raises is its job's error, and touches no other."""
    bad, good = jobs.start(failing(ValueError("no such page"))), jobs.start(counting([], "b", 2))
    expect_equal(set(finished(jobs)), {bad, good}, "ended, of a job that failed and one that did not")
    expect_equal((bad.error, good.error), ("ValueError: no such page", None), "their errors")
    jobs.close()


def a_pause_takes_its_time(jobs: Jobs) -> None:
    """A step that yields seconds is followed by the next step all the same."""
    log: list[object] = []
    jobs.start(counting(log, "a", 2, pause_s=0.01))
    expect_equal(len(finished(jobs)), 1, "jobs ended, after one that pauses")
    expect(log[-1] == ("a", "end"), f"the job ended after {log[-1]!r}, not at its end")
    jobs.close()


def closed_jobs_take_no_step(jobs: Jobs) -> None:
    """A job that is started after `close` ends at once, with the error `closed`; `close` is idempotent."""
    jobs.close()
    log: list[object] = []
    job = jobs.start(counting(log, "a", 2))
    expect_equal(finished(jobs), [job], "ended, of a job started after close")
    expect_equal((job.error, log), ("closed", []), "its error and its steps")
    jobs.close()


def waiting_does_not_name_the_ended(jobs: Jobs) -> None:
    """`wait` leaves it to `ended` to name jobs."""
    job = jobs.start(counting([], "a", 1))
    jobs.wait()
    jobs.wait()
    expect_equal(jobs.ended(), [job], "ended, after wait twice")
    jobs.close()
