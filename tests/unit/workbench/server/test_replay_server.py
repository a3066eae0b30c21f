"""The simulated server against a cache that only counts pages: time, admission, preemption, rejection."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from unified_tree.controllers.workbench.server.server import Server
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.server.timed_cache import ServedRequest, TimedCache
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload, pack_runs
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers import Lease, PrefixCache
    from unified_tree.controllers.workbench.traces.workload import Int64s
    from unified_tree.declare.keys import Key

PAGE = 16


@dataclass(eq=False)
class CountedLease:
    compute_from: int = 0
    cached_tokens: int = 0
    is_loading: bool = False
    save_pages: dict[int, int] = field(default_factory=dict)
    pages: int = 0
    committed: int = 0


class CountingCache:
    """Leases of private pages; nothing is ever shared."""

    def __init__(self, page_count: int) -> None:
        self.free = self.page_count = page_count
        self.leases: list[CountedLease] = []
        self.allocate_calls = 0

    layout = SimpleNamespace(paths=("full",))
    page_size = PAGE

    tree = SimpleNamespace(pool=lambda _name: SimpleNamespace(used_pages=0, protected_pages=0))
    controller = None

    @property
    def device(self) -> SimpleNamespace:
        return SimpleNamespace(allocators={"full": self})

    @property
    def free_pages(self) -> int:
        return self.free

    def acquire(
        self,
        key: Key,
        checkpoints: tuple[int, ...] = (),
        *,
        priority: int = 0,
        save_output: bool = True,
        request: int | None = None,
        session: int | None = None,
    ) -> CountedLease:
        assert request is None, "there is no store that it could have waited for"
        assert session is None, "the server was not told of sessions"
        assert (priority, save_output) == (0, False), "a trace cannot show who goes on from an answer"
        assert all(0 < length <= len(key) for length in checkpoints)
        if not self.free:
            raise OutOfPagesError("no page")
        lease = CountedLease()
        self.leases.append(lease)
        return lease

    def allocate(self, lease: CountedLease, length_tokens: int) -> None:
        self.allocate_calls += 1
        more = -(-length_tokens // PAGE) - lease.pages
        if more > self.free:
            raise OutOfPagesError("too few pages")
        self.free -= max(0, more)
        lease.pages += max(0, more)

    def advance(self, lease: CountedLease, computed_tokens: int) -> None:
        assert computed_tokens <= lease.pages * PAGE, "computed without pages"

    def commit(self, lease: CountedLease, tokens: Int64s | int, states: dict[int, int], begin: int) -> None:
        length = tokens if isinstance(tokens, int) else begin + tokens.size
        assert begin in (0, lease.committed), "what lies before is known"
        assert length <= lease.pages * PAGE, "computed without pages"
        assert not states
        lease.committed = length

    def release(self, lease: CountedLease) -> None:
        self.leases.remove(lease)
        self.free += lease.pages


class Events:
    def __init__(self) -> None:
        self.admitted_s: dict[int, float] = {}
        self.served: list[int] = []
        self.first_token_steps: dict[int, int] = {}
        self.rejected: list[int] = []
        self.preemptions = 0
        self.clock: Callable[[], float] = float
        self.ended_s: dict[int, float] = {}

    def offered(self, request: Request) -> None:
        assert request.prompt_tokens

    def admitted(self, request: Request, lease: Lease, now_s: float, fetched_tokens: int) -> None:
        assert request.index not in self.admitted_s, "told once"
        assert not lease.cached_tokens
        assert not fetched_tokens
        self.admitted_s[request.index] = now_s

    def fetched(self, request: Request, waited_s: float) -> None:
        raise AssertionError(f"there is no store that request {request.index} could have waited {waited_s} s for")

    def loaded(self, request: Request, waited_s: float) -> None:
        raise AssertionError(f"there is no host to load request {request.index} from in {waited_s} s")

    def first_token(self, entry: ServedRequest) -> None:
        assert entry.request.index not in self.first_token_steps, "told once"
        assert entry.decoding_from is not None
        self.first_token_steps[entry.request.index] = entry.decoding_from

    def preempted(self, request: Request) -> None:
        assert request.index in self.admitted_s
        self.preemptions += 1

    def ended(self, request: Request, now_s: float, spent_ns: int, *, rejected: bool) -> None:
        assert spent_ns >= 0 and now_s >= 0
        self.ended_s[request.index] = self.clock()
        (self.rejected if rejected else self.served).append(request.index)


def request(index: int, arrival_s: float = 0.0, prompt: int = 160, output: int = 40, chain: int = NO_CHAIN) -> Request:
    runs = pack_runs(np.arange(prompt // PAGE, dtype=np.int64))
    return Request(
        index=index,
        arrival_s=arrival_s,
        runs=runs,
        block_tokens=PAGE,
        prompt_tokens=prompt,
        output_tokens=output,
        chain=chain,
    )


def serve(
    requests: list[Request], page_count: int = 10_000, max_tokens: int | None = None, **settings: Any
) -> tuple[Events, CountingCache]:
    cache, events = CountingCache(page_count), Events()
    workload = Workload(name="w", requests=tuple(requests), block_count=1000)
    options: dict[str, Any] = {"step_ms": 100.0, "chunk_tokens": 64, **settings}
    timed = TimedCache(cast("PrefixCache", cache), max_tokens=max_tokens)
    server = Server(timed, workload, ServerSettings(**options), events)
    events.clock = lambda: server.now_s
    server.run()
    assert cache.free == page_count, "every page came home"
    assert not cache.leases
    assert sorted(events.served + events.rejected) == [r.index for r in requests]
    return events, cache


def test_a_request_takes_its_chunks_and_then_a_step_a_token() -> None:
    events, _ = serve([request(0, prompt=160, output=40)])
    assert events.admitted_s == {0: 0.0}
    assert events.ended_s[0] == pytest.approx(0.1 * (3 + 40))  # 64 + 64 + 32 prompt tokens, 40 tokens


def test_no_answer_ends_with_the_prompt() -> None:
    events, _ = serve([request(0, prompt=64, output=0)])
    assert events.ended_s[0] == pytest.approx(0.1)


def test_the_chunk_is_shared_in_order_of_admission() -> None:
    events, _ = serve([request(0, prompt=32, output=0), request(1, prompt=64, output=0)])
    assert events.ended_s[0] == pytest.approx(0.1)
    assert events.ended_s[1] == pytest.approx(0.2)


def test_decoding_goes_on_beside_prefill() -> None:
    events, _ = serve([request(0, prompt=64, output=10), request(1, prompt=640, output=1)])
    assert events.ended_s[0] == pytest.approx(0.1 * 11)
    assert events.ended_s[1] == pytest.approx(0.1 * 12)


def test_arrivals_are_scaled_and_idle_time_is_jumped_over() -> None:
    events, cache = serve([request(0), request(1, arrival_s=1e6)], time_scale=0.5)
    assert events.admitted_s[1] == pytest.approx(5e5)
    assert cache.allocate_calls < 20, "work is a matter of events, not of steps"
    events, _ = serve([request(0), request(1, arrival_s=1e6)], time_scale=0)
    assert events.admitted_s[1] == 0.0


def test_the_concurrency_limit_is_first_come_first_served() -> None:
    events, _ = serve([request(i, arrival_s=0.01 * i) for i in range(6)], concurrency=2)
    assert list(events.admitted_s) == list(range(6))
    times = list(events.admitted_s.values())
    assert times[2] >= events.ended_s[0]


def test_a_turn_waits_for_the_one_before_it() -> None:
    turns = [request(0, prompt=640, output=100, chain=4), request(1, arrival_s=0.1, chain=4), request(2, arrival_s=0.2)]
    events, _ = serve(turns)
    assert events.admitted_s[1] == pytest.approx(events.ended_s[0])
    assert events.admitted_s[2] < events.admitted_s[1]


def test_at_once_and_one_at_a_time_keeps_the_order_of_arrival() -> None:
    requests = [request(i, arrival_s=i, chain=i % 3) for i in range(12)]
    events, _ = serve(requests, concurrency=1, time_scale=0)
    assert events.served == list(range(12))


def test_what_cannot_fit_is_rejected_and_the_rest_is_served() -> None:
    requests = [request(0), request(1, prompt=1600, chain=7), request(2, chain=7), request(3)]
    for max_tokens in (None, 50 * PAGE):
        events, _ = serve(requests, page_count=50, max_tokens=max_tokens)
        assert events.rejected == [1]
        assert set(events.served) == {0, 2, 3}


def test_running_out_of_pages_preempts_the_youngest_and_all_finish() -> None:
    requests = [request(i, prompt=160, output=320) for i in range(6)]
    events, _ = serve(requests, page_count=64)
    assert events.preemptions > 0
    assert not events.rejected
    assert events.served[0] == 0, "the oldest never loses its place"


@pytest.mark.parametrize("seed", range(8))
def test_any_load_ends_with_all_pages_home(seed: int) -> None:
    draw = np.random.default_rng(seed)
    arrivals = np.sort(draw.uniform(0, 30, 60))
    requests = [
        request(
            i,
            arrival_s=float(arrivals[i]),
            prompt=int(draw.integers(1, 900)),
            output=int(draw.integers(0, 300)),
            chain=int(draw.integers(-1, 9)),
        )
        for i in range(60)
    ]
    first, _ = serve(requests, page_count=60, concurrency=8)
    again, _ = serve(requests, page_count=60, concurrency=8)
    assert first.ended_s == again.ended_s
    too_long = [r.index for r in requests if r.prompt_tokens + r.output_tokens > 60 * PAGE]
    assert first.rejected == sorted(first.rejected, key=lambda i: first.ended_s[i])
    assert set(first.rejected) == set(too_long)


@pytest.mark.parametrize(
    "bad", [{"concurrency": 0}, {"chunk_tokens": 0}, {"step_ms": 0}, {"step_ms": float("nan")}, {"time_scale": -1}]
)
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ServerSettings(**bad)


def test_a_request_without_a_prompt_has_nothing_to_do() -> None:
    events, _ = serve([request(0, prompt=0), request(1)])
    assert events.served == [0, 1]
    assert not events.rejected
    assert list(events.admitted_s) == [1]
