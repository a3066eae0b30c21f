"""The worlds of `benches.worlds`: what they are drawn from. A world is a pure function of its seed.

**Requests.** 800 to 3,000 of them, in blocks of 16 tokens. Lengths are log-normal, prompts up to 64,000 tokens. The kind of
traffic is the seed modulo ten; its parameters are drawn once a world, most of them log-uniform in the ranges that the functions
below state:

- `documents`: each asked about once to fifty times, by a Pareto law, or a few times each, with fresh questions.
- `chats`: turns after think times; some chats answer within seconds, others are left. The next prompt has the answer in it as
  it was computed, or (as where thoughts are dropped) not.
- `agents`: the built-in workload of `unified-tree replay`: tool pauses, retries, sub-agents, compacted contexts.
- `retrieval`: passages of a corpus by Zipf popularity, in the order in which they were drawn, and a fresh question.
- `turn_takers`: clients in a fixed order, each with a conversation that grows.
- `tenants`: many system prompts by Zipf popularity, each before fresh text.
- `floods`: one of these, and in a few bursts 20 to 60 % prompts that are asked once.
- `scans`: the same, and the prompts that are asked once are spread over the whole time.
- `changes`: two of the first six, one after the other.
- `returns`: three of the first six, one after the other, the third of which is the first again.

In half of the worlds the engine is told where prompts fork off (behind a document, say), and saves windows and states there; in
the other half it saves them at the ends of prompts.

**Model.** One of the 13 built-in ones, with an MTP draft in every fourth world; pages of the default size.

**Memory.** What requests that run need, and a share of what a cache without end would hold besides: of every token once, and of
one boundary (a window or a state) a request. The share is log-uniform in one of four sizes: 1.5 to 4, 4 to 10, 10 to 25 and 25
to 60 %. Scarce is the path alone, the windows or states alone, both (each with a share of its own), all pools in one budget,
or in one of twenty worlds nothing. Every other kind has room for all tokens, or for four boundaries a request.

**Server.** Always busy: 1, 4 or 32 requests at a time, the next in the order of arrival. In every fourth world there is a host
tier of one to six times the device, and the share is of both together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice

import numpy as np
from numpy.random import Generator

from unified_tree.components import Composition, composition_for
from unified_tree.controllers.workbench.runs.plan import Plan, RowKind, RowSpec
from unified_tree.controllers.workbench.server.server_settings import HostSettings, ServerSettings
from unified_tree.controllers.workbench.traces.synthetic import BLOCK_TOKENS, SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload, expand_runs, in_arrival_order

MOST_TOKENS = 64_000
SIZES = ("1.5 to 4 %", "4 to 10 %", "10 to 25 %", "25 to 60 %")
SIZE_EDGES = (0.015, 0.04, 0.1, 0.25, 0.6)
NOTHING, PATHS, BOUNDARIES, BOTH, ONE_BUDGET = "nothing", "paths", "windows or states", "both", "one budget"
AMPLE_PATH, AMPLE_BOUNDARIES = 1.2, 4.0
MODELS = (
    *("llama-3.1-8b", "qwen3-32b", "deepseek-r1", "deepseek-v3.2", "glm-5"),
    *("gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "mimo-v2-flash"),
    *("qwen3-next-80b-a3b", "nemotron-h-8b", "kimi-linear-48b-a3b", "deepseek-v4-flash"),
)
"""Of full attention alone, of windows, of states, of compressed KV and windows."""

Run = tuple[int, int]
"""A text: its first block, and how many there are."""


class Writer:
    """Writes requests: draws lengths, pauses and popularity, and makes new texts."""

    def __init__(self, draw: Generator) -> None:
        self.draw = draw
        self.blocks = 0
        self.chains = 0
        self.tells_forks = draw.random() < 0.5

    def between(self, low: float, high: float) -> float:
        """Log-uniform; `low` where that is not below `high`."""
        return float(np.exp(self.draw.uniform(np.log(low), np.log(max(low, high)))))

    def tailed(self, median: float, sigma: float, most: float = MOST_TOKENS) -> float:
        """Log-normal."""
        return min(most, median * float(np.exp(sigma * self.draw.standard_normal())))

    def popularity(self, many: int) -> Callable[[], int]:
        """Draws one of so many by Zipf's law."""
        weights = np.arange(1, many + 1, dtype=float) ** -self.between(0.5, 1.4)
        ends = np.cumsum(weights / weights.sum())
        return lambda: min(many - 1, int(np.searchsorted(ends, self.draw.random())))

    def text(self, tokens: float) -> Run:
        """A new text of about so many tokens."""
        run = self.blocks, max(1, round(tokens / BLOCK_TOKENS))
        self.blocks += run[1]
        return run

    def chain(self) -> int:
        """A new chain of turns."""
        self.chains += 1
        return self.chains - 1

    def request(
        self,
        at_s: float,
        prompt: list[Run],
        answer_tokens: float,
        *,
        chain: int = NO_CHAIN,
        fork: int | None = None,
        answer: Run | None = None,
    ) -> Request:
        """A request for these texts.

        Args:
            fork: behind so many of them others are going to fork off.
            answer: the answer's text, if later prompts contain it. Without it the prompt may end inside a block.
        """
        size = BLOCK_TOKENS * sum(length for _, length in prompt)
        checkpoints = None
        if fork is not None and self.tells_forks:
            checkpoints = (BLOCK_TOKENS * sum(length for _, length in prompt[:fork]),)
        return Request(
            index=0,
            arrival_s=at_s,
            runs=np.array(prompt, np.int64).ravel(),
            block_tokens=BLOCK_TOKENS,
            prompt_tokens=size + (int(self.draw.integers(BLOCK_TOKENS)) if answer is None else 0),
            output_tokens=max(1, round(answer_tokens)) if answer is None else BLOCK_TOKENS * answer[1],
            chain=chain,
            answer_runs=None if answer is None else np.array(answer, np.int64),
            checkpoints=checkpoints,
        )


def documents(w: Writer, count: int) -> Iterator[Request]:
    """About `open_count` documents are being asked about at a time."""
    median, open_count, gap_sigma = w.between(1_500, 24_000), w.between(10, count / 8), w.between(0.3, 1.8)
    is_pareto, mean, power, start_s = w.draw.random() < 0.5, w.between(2, 10), w.between(0.6, 1.6), 0.0
    for _ in counting():
        document = w.text(w.tailed(median, 0.9))
        asked = int((1 - w.draw.random()) ** (-1 / power)) if is_pareto else 1 + int(w.draw.poisson(mean - 1))
        at_s = start_s
        for _ in range(min(50, asked)):
            yield w.request(at_s, [document, w.text(w.tailed(100, 0.8))], w.tailed(150, 0.8), fork=1)
            at_s += w.tailed(60, gap_sigma, np.inf)
        start_s += w.draw.exponential() * (3 if is_pareto else mean) * 60 * np.exp(gap_sigma**2 / 2) / open_count


def chats(w: Writer, count: int) -> Iterator[Request]:
    """About `open_count` chats are open at a time, each behind one of a few system prompts."""
    turns, think_sigma, open_count = w.between(1.5, 14), w.between(0.4, 1.8), w.between(10, count / 8)
    asks, answers, returns, start_s = w.between(30, 1_500), w.between(80, 600), w.draw.random() < 0.5, 0.0
    systems = [w.text(w.between(100, 4_000)) for _ in range(int(w.between(1, 8)))]
    system = w.popularity(len(systems))
    for _ in counting():
        prompt, chain, at_s = [systems[system()]], w.chain(), start_s
        for _ in range(w.draw.geometric(1 / turns)):
            prompt = [*prompt, w.text(w.tailed(asks, 1.2))]
            answer = w.text(w.tailed(answers, 0.9, 4_000))
            if sum(length for _, length in prompt) * BLOCK_TOKENS > MOST_TOKENS:
                break
            yield w.request(at_s, prompt, answer[1] * BLOCK_TOKENS, chain=chain, answer=answer if returns else None)
            prompt = [*prompt, answer]
            at_s += w.tailed(30, think_sigma, np.inf)
        start_s += w.draw.exponential() * turns * 30 * np.exp(think_sigma**2 / 2) / open_count


def agents(w: Writer, count: int) -> Iterator[Request]:
    """About `open_count` agents work at a time."""
    turns, pause_s, open_count = w.between(4, 30), w.between(2, 40), w.between(8, 100)
    options = SyntheticOptions(
        request_count=count,
        seed=int(w.draw.integers(1 << 31)),
        tenant_count=int(w.between(1, 30)),
        system_tokens=(int(w.between(300, 3_000)), int(w.between(3_000, 12_000))),
        session_gap_s=turns * pause_s * np.exp(1.4**2 / 2) / open_count,
        mean_turns=turns,
        turn_tokens=int(w.between(150, 1_500)),
        output_tokens=int(w.between(50, 400)),
        think_s=pause_s,
        retry_share=w.draw.uniform(0, 0.2),
        fan_out_share=w.draw.uniform(0, 0.15),
        max_context_tokens=int(w.between(15_000, MOST_TOKENS)),
    )
    made = synthetic_workload(options)
    blocks, chains = w.blocks, w.chains
    w.blocks += made.block_count
    w.chains += 1 + max(request.chain for request in made.requests)
    for request in made.requests:
        yield replace(request, runs=request.runs + np.tile([blocks, 0], request.runs.size // 2), chain=request.chain + chains)


def retrieval(w: Writer, count: int) -> Iterator[Request]:  # noqa: ARG001
    """Each prompt has some of the passages, none of them twice."""
    system, many, most = w.text(w.between(100, 3_000)), int(w.between(50, 2_000)), w.between(2, 16)
    lengths = [w.tailed(w.between(150, 1_500), 0.6, 8_000) for _ in range(many)]
    texts: dict[tuple[int, ...], Run] = {}  # a block's name stands for all before it, too
    popular = w.popularity(many)
    for at_s in counting():
        found = tuple(dict.fromkeys(popular() for _ in range(1 + int(w.draw.poisson(most - 1)))))
        prompt = [system]
        for end, passage in enumerate(found, 1):
            if found[:end] not in texts:
                texts[found[:end]] = w.text(lengths[passage])
            prompt.append(texts[found[:end]])
        prompt.append(w.text(w.tailed(60, 0.8)))
        yield w.request(float(at_s), prompt, w.tailed(150, 0.8), fork=len(prompt) - 1)


def turn_takers(w: Writer, count: int) -> Iterator[Request]:
    """Clients that wait for each other; each begins again after so many rounds."""
    clients, rounds, returns = int(w.between(20, count / 4)), w.between(3, 20), w.draw.random() < 0.5
    first, further, at_s = w.between(500, 12_000), w.between(30, 800), 0.0
    prompts: list[list[Run]] = [[] for _ in range(clients)]
    chains = [w.chain() for _ in range(clients)]
    for _ in counting():
        for client in range(clients):
            if w.draw.random() < 1 / rounds:
                prompts[client] = []
            tokens = w.tailed(further, 1.0) if prompts[client] else w.tailed(first, 0.8, MOST_TOKENS / 2)
            prompts[client].append(w.text(tokens))
            answer = w.text(w.tailed(200, 0.6, 2_000))
            yield w.request(
                at_s, prompts[client], answer[1] * BLOCK_TOKENS, chain=chains[client], answer=answer if returns else None
            )
            prompts[client].append(answer)
            if sum(length for _, length in prompts[client]) * BLOCK_TOKENS > MOST_TOKENS / 2:
                prompts[client] = []
            at_s += 1.0


def tenants(w: Writer, count: int) -> Iterator[Request]:  # noqa: ARG001
    """Every request is of another user of a tenant."""
    many, median, asks = int(w.between(40, 1_500)), w.between(400, 8_000), w.between(50, 800)
    systems = [w.text(w.tailed(median, 0.9)) for _ in range(many)]
    tenant = w.popularity(many)
    for at_s in counting():
        yield w.request(float(at_s), [systems[tenant()], w.text(w.tailed(asks, 1.0, 16_000))], w.tailed(200, 0.8), fork=1)


REUSED: dict[str, Callable[[Writer, int], Iterator[Request]]] = {
    family.__name__: family for family in (documents, chats, agents, retrieval, turn_takers, tenants)
}


def some(w: Writer, family: str, count: int, begin_s: float = 0.0) -> list[Request]:
    """The first of these requests by arrival."""
    made = sorted(islice(FAMILIES[family](w, count), round(1.3 * count)), key=lambda request: request.arrival_s)[:count]
    return [replace(request, arrival_s=begin_s + request.arrival_s) for request in made]


def one_after_the_other(w: Writer, count: int, families: list[str]) -> Iterator[Request]:
    """As many of each, which begin when those before have arrived."""
    begin_s = 0.0
    for i, family in enumerate(families):
        part = some(w, family, count * (i + 1) // len(families) - count * i // len(families), begin_s)
        begin_s = part[-1].arrival_s
        yield from part


def changes(w: Writer, count: int) -> Iterator[Request]:
    """Nothing of the first kind comes again."""
    yield from one_after_the_other(w, count, list(w.draw.permutation(list(REUSED))[:2]))


def returns(w: Writer, count: int) -> Iterator[Request]:
    """The first kind comes again, with other texts."""
    first, second = w.draw.permutation(list(REUSED))[:2]
    yield from one_after_the_other(w, count, [first, second, first])


def among(w: Writer, count: int, times: Callable[[float, int], np.ndarray]) -> Iterator[Request]:
    """A kind with reuse, among prompts that are asked once, at these times of so many until the end."""
    alone = round(count * w.draw.uniform(0.2, 0.6))
    regular = some(w, str(w.draw.choice(list(REUSED))), count - alone)
    median = w.between(1_000, 16_000)
    yield from regular
    for at_s in times(regular[-1].arrival_s, alone).tolist():
        yield w.request(at_s, [w.text(w.tailed(median, 0.9))], w.tailed(150, 0.8))


def floods(w: Writer, count: int) -> Iterator[Request]:
    """In one to six bursts."""
    bursts = int(w.draw.integers(1, 7))

    def times(end_s: float, many: int) -> np.ndarray:
        return w.draw.choice(w.draw.uniform(0, end_s, bursts), many) + w.draw.exponential(end_s / 100, many)

    yield from among(w, count, times)


def scans(w: Writer, count: int) -> Iterator[Request]:
    """At any time."""
    yield from among(w, count, lambda end_s, many: w.draw.uniform(0, end_s, many))


FAMILIES = REUSED | {family.__name__: family for family in (floods, scans, changes, returns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Traffic, a model, a memory and a server.

    Attributes:
        scarce: the kind of state that has too little room.
        size: of the memory, one of SIZES.
        path_share, boundary_share: of what a cache without end would hold, beside what requests that run need.
        host_share: host pages by device page; None without a host tier.
        concurrency: requests at a time.
    """

    seed: int
    family: str
    request_count: int
    model: str
    has_draft: bool
    scarce: str
    size: str
    path_share: float
    boundary_share: float
    host_share: float | None
    concurrency: int

    @classmethod
    def of(cls, seed: int) -> World:
        """The world of a seed."""
        w = Writer(np.random.default_rng([seed, 0]))
        model, has_draft = str(w.draw.choice(MODELS)), w.draw.random() < 0.25
        has_boundaries = any(not component.coverage.is_path for component in composition_for(model).components)
        kinds, chances = (PATHS, BOUNDARIES, BOTH, ONE_BUDGET, NOTHING), (0.25, 0.25, 0.25, 0.2, 0.05)
        scarce = str(w.draw.choice(kinds, p=chances))
        if not has_boundaries and scarce != NOTHING:
            scarce = PATHS
        size = int(w.draw.integers(len(SIZES)))
        path_share, boundary_share = (w.between(*SIZE_EDGES[size : size + 2]) for _ in range(2))
        return cls(
            seed=seed,
            family=list(FAMILIES)[seed % len(FAMILIES)],
            request_count=round(w.between(800, 3_000)),
            model=model,
            has_draft=has_draft,
            scarce=scarce,
            size=SIZES[size],
            path_share=AMPLE_PATH if scarce in (BOUNDARIES, NOTHING) else path_share,
            boundary_share={PATHS: AMPLE_BOUNDARIES, NOTHING: AMPLE_BOUNDARIES, ONE_BUDGET: path_share}.get(
                scarce, boundary_share
            ),
            host_share=w.between(1, 6) if w.draw.random() < 0.25 else None,
            concurrency=int(w.draw.choice((1, 4, 32))),
        )

    @property
    def composition(self) -> Composition:
        """The model's."""
        return composition_for(self.model, draft=1 if self.has_draft else None)

    def workload(self) -> Workload:
        """The requests."""
        w = Writer(np.random.default_rng([self.seed, 1]))
        requests = in_arrival_order(some(w, self.family, self.request_count))
        return Workload(name=f"world {self.seed}", requests=requests, block_count=w.blocks)

    def plan(self) -> tuple[Plan, dict[str, int]]:
        """The plan of a replay, and the device pages by pool."""
        workload, composition = self.workload(), self.composition
        settings = ServerSettings(concurrency=self.concurrency, time_scale=0.0)
        page_counts = self._page_counts(workload, composition, settings)
        page_bytes = composition.pool_page_bytes()
        device_bytes, host = sum(count * page_bytes[name] for name, count in page_counts.items()), None
        if self.host_share is not None:
            pages = {c.name: round(self.host_share * page_counts[c.shares or c.name]) for c in composition.components}
            host = HostSettings(page_counts=pages, size_bytes=round(self.host_share * device_bytes))
        plan = Plan(workload=workload, composition=composition, device_bytes=device_bytes, settings=settings, host=host)
        return plan, page_counts

    def _page_counts(self, workload: Workload, composition: Composition, settings: ServerSettings) -> dict[str, int]:
        lengths = [request.prompt_tokens + request.output_tokens for request in workload.requests]
        running_tokens = max(*lengths, self.concurrency * sum(lengths) / len(lengths))
        page_size, page_counts = composition.page_size, {}
        path_share, boundary_share = (share / (1 + (self.host_share or 0)) for share in (self.path_share, self.boundary_share))
        for component in composition.components:
            if component.shares is not None:
                continue
            if component.coverage.is_path:
                pages = (running_tokens + path_share * tokens_held(workload)) / page_size
            else:
                each = component.coverage.boundary_pages(page_size)
                pages = each * boundary_share * len(lengths) + (each + 2) * self.concurrency
                if component.coverage.window_tokens is not None:
                    pages += settings.chunk_tokens / page_size
            page_counts[component.name] = int(np.ceil(pages))
        return page_counts

    def row(self, policy: str, page_counts: dict[str, int], *, is_bounded: bool = False) -> RowSpec:
        """The row of a plan for a policy, or for UNBOUNDED."""
        if policy == RowKind.UNBOUNDED.value:
            return RowSpec(kind=RowKind.UNBOUNDED, policy="lru", page_counts=page_counts, is_bounded=False)
        is_shared = self.scarce == ONE_BUDGET
        return RowSpec(kind=RowKind.POLICY, policy=policy, page_counts=page_counts, is_shared=is_shared, is_bounded=is_bounded)


def tokens_held(workload: Workload) -> int:
    """Tokens of path that a cache without end would hold: of texts that several requests have each once."""
    is_held = np.zeros(workload.block_count, np.bool_)
    own_tokens = 0
    for request in workload.requests:
        own_tokens += request.prompt_tokens + request.output_tokens
        for runs in (request.runs, request.answer_runs):
            if runs is not None:
                is_held[expand_runs(runs)] = True
                own_tokens -= int(runs[1::2].sum()) * request.block_tokens
    return own_tokens + int(is_held.sum()) * BLOCK_TOKENS
