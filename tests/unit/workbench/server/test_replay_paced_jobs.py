"""Jobs on a store in virtual time: what a call costs, whose bytes wait for whose, and what closing leaves."""

from __future__ import annotations

import pytest

from unified_tree.controllers.storage import MemoryStorage, Outcome, StoredPool
from unified_tree.controllers.storage_tier.jobs import Job, Steps
from unified_tree.controllers.transfer_engines import VirtualClock
from unified_tree.controllers.workbench.server.paced_transfers import PacedJobs
from unified_tree.controllers.workbench.server.page_store import MeteredStorage
from unified_tree.controllers.workbench.server.server_settings import StorageCost

MS = 1_000_000
POOL = StoredPool(name="full", format_digest=bytes(32), value_bytes=128)
OTHER = StoredPool(name="records", format_digest=bytes(31) + b"\1", value_bytes=128)
PAGE_BYTES = 1_000_000


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


class Bench:
    """A store whose pages take a millisecond each, its calls two more."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MeteredStorage(MemoryStorage([POOL, OTHER]), {"full": PAGE_BYTES})
        self.jobs = PacedJobs(self.clock, self.store, StorageCost(bytes_per_s=1e9, latency_s=2e-3))
        self.ended_ms: dict[Job, float] = {}

    def put(self, *batches: int, pause_s: float = 0.0, pool: str = "full", first: int = 0) -> Job:
        def steps() -> Steps:
            for number, count in enumerate(batches):
                keys = [key(first + 1000 * number + i) for i in range(count)]
                self.store.put(pool, keys, [memoryview(bytearray(128)) for _ in keys])
                yield pause_s

        return self.jobs.start(steps())

    def run(self) -> dict[Job, float]:
        """When every job ended, looking at every event."""
        while (event := self.jobs.next_event_ns) is not None:
            self.clock.advance(max(0, event - self.clock.now))
            for job in self.jobs.ended():
                self.ended_ms[job] = self.clock.now / MS
        return self.ended_ms


def test_a_call_costs_its_latency_and_its_bytes() -> None:
    bench = Bench()
    job = bench.put(5, 3)
    assert bench.run() == {job: 2 + 5 + 2 + 3}
    assert job.error is None
    assert bench.store.written_bytes == 8 * PAGE_BYTES


def test_pages_that_are_there_already_and_pools_without_a_size_cost_no_bytes() -> None:
    bench = Bench()
    bench.put(5)
    bench.run()
    begin = bench.clock.now / MS
    again, record = bench.put(5), bench.put(1, pool="records")
    assert bench.run()[again] == begin + 2
    assert bench.ended_ms[record] == begin + 2
    assert bench.store.written_bytes == 5 * PAGE_BYTES


def test_bytes_pass_one_after_the_other_and_latencies_side_by_side() -> None:
    bench = Bench()
    jobs = [bench.put(4, first=100 * i) for i in range(3)]
    assert bench.run() == {jobs[0]: 6, jobs[1]: 10, jobs[2]: 14}


def test_calls_of_several_jobs_take_turns() -> None:
    bench = Bench()
    large, small = bench.put(*[10] * 4, first=10_000), bench.put(1, first=99_000)
    ended = bench.run()
    assert ended[small] == 10 + 1 + 2, "behind one call, not behind the job"
    assert ended[large] == pytest.approx(10 + 2 + 10 + 2 + 10 + 2 + 10 + 2, abs=1)


def test_a_pause_is_kept() -> None:
    bench = Bench()
    job = bench.put(1, pause_s=0.5)
    assert bench.run() == {job: 1 + 2 + 500}


def test_nothing_ends_before_its_time_and_waiting_moves_the_clock() -> None:
    bench = Bench()
    job = bench.put(10)
    bench.clock.advance(11 * MS)
    assert bench.jobs.ended() == []
    assert bench.store.written_bytes == 10 * PAGE_BYTES, "the call itself was made when it began"
    bench.jobs.wait()
    assert bench.clock.now == 12 * MS
    assert bench.jobs.ended() == [job]
    assert bench.jobs.ended() == []
    assert bench.jobs.spent_ns > 0


def test_what_is_looked_at_late_has_ended_when_it_did() -> None:
    """Steps are done at the time they were due, not at the time somebody looked."""
    bench = Bench()
    bench.put(5, 3, first=7)
    bench.clock.advance(100 * MS)
    [job] = bench.jobs.ended()
    after = bench.put(1, first=500)
    assert job.error is None
    assert bench.run()[after] == 100 + 1 + 2, "the line was free long ago"


@pytest.mark.parametrize("begun", [False, True])
def test_closing_breaks_off_and_later_jobs_end_at_once(begun: bool) -> None:
    bench = Bench()
    first, second = bench.put(5), bench.put(5, first=50)
    if begun:
        bench.jobs.ended()
    bench.jobs.close()
    bench.jobs.close()
    third = bench.put(1)
    ended = bench.jobs.ended()
    assert set(ended) == {first, second, third}
    assert {job.error for job in ended} == {"closed"}
    assert bench.jobs.next_event_ns is None
    bench.jobs.wait()


def test_a_meter_changes_nothing_of_what_it_passes_on() -> None:
    meter = MeteredStorage(MemoryStorage([POOL, OTHER]), {"full": PAGE_BYTES})
    page, other = bytearray(range(128)), bytearray(128)
    assert meter.put("full", [key(1)], [memoryview(page)]) == [Outcome.DONE]
    assert meter.put("full", [key(1)], [memoryview(page)]) == [Outcome.PRESENT]
    assert meter.exists("full", [key(1), key(2)]).tolist() == [True, False]
    outcomes = meter.get("full", [key(1), key(2)], [memoryview(other), memoryview(bytearray(128))])
    assert outcomes == [Outcome.DONE, Outcome.MISSING]
    assert other == page
    assert (meter.read_bytes, meter.written_bytes, meter.take()) == (PAGE_BYTES, PAGE_BYTES, (4, 2 * PAGE_BYTES))
    assert meter.take() == (0, 0)
    meter.remove("full", [key(1)])
    meter.register([])
    assert not meter.exists("full", [key(1)])[0]
    meter.clear()
    assert meter.stats().pools["full"].written_bytes == 128
    assert not meter.capabilities.zero_copy
    meter.close()
