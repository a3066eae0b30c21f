"""`python -m benches.documents`: documents that are each asked about a few times, one request at a time.

Question: what does the default policy hit beside simple ones where documents come and go, and windows or states are scarce?
Documents have 300 to 60,000 tokens (log-normal) and are asked about once to fifty times (Pareto), with a question of its own
each time, at random intervals; questions are never asked again. Pages of 64 tokens, through the public API. No policy was made
on these: each seed is another trace. Silent on: answers, requests side by side, a host tier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.rounds import options_of, print_table
from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import PrefixCache

PAGE = 64
WINDOW = 1_024
MEDIAN_TOKENS, SPREAD, LEAST_TOKENS, MOST_TOKENS = 8_000, 0.8, 300, 60_000
MOST_QUESTIONS = 50
MEAN_GAP = 400
"""A document's next question comes after about so many other requests, and for three in ten after five times as many."""
CELLS: dict[str, tuple[int, int, int]] = {
    "paths 10M, windows 300k": (10_000_000, 300_000, 0),
    "paths 3M, windows 300k": (3_000_000, 300_000, 0),
    "paths 3M, windows 100k": (3_000_000, 100_000, 0),
    "paths 10M, 1,000 states": (10_000_000, 0, 1_000),
    "paths 3M, 200 states": (3_000_000, 0, 200),
    "paths 3M, 60 states": (3_000_000, 0, 60),
    "paths alone 10M": (10_000_000, 0, 0),
    "paths alone 3M": (3_000_000, 0, 0),
}
"""Room for tokens of path and of windows, and for states; 0 where a model has none."""


def prompts(seed: int, count: int) -> Iterator[NDArray[np.int64]]:
    """The prompts of a trace, in order of time."""
    draw = np.random.default_rng(seed)
    asked: list[tuple[float, int, int]] = []
    documents = 0
    while len(asked) < count:
        length = int(np.clip(draw.lognormal(np.log(MEDIAN_TOKENS), SPREAD), LEAST_TOKENS, MOST_TOKENS))
        at = draw.uniform(0, count)
        for _ in range(min(MOST_QUESTIONS, 1 + int(2 * draw.pareto(1.5)))):
            asked.append((at, documents, length))
            at += draw.exponential(MEAN_GAP if draw.random() < 0.7 else 5 * MEAN_GAP)
        documents += 1
    fresh = documents * MOST_TOKENS
    for _, document, length in sorted(asked)[:count]:
        question = 8 + int(min(2_000, draw.lognormal(4.6, 0.8)))
        begin = document * MOST_TOKENS
        yield np.concatenate([np.arange(begin, begin + length), np.arange(fresh, fresh + question)])
        fresh += question


def hit_rate(policy: str, cell: tuple[int, int, int], seed: int, count: int) -> float:
    """Token hit rate, in percent."""
    paths, windows, states = cell
    components = [Component(name="full", coverage=Path(), page_bytes=PAGE * 100, flops_per_token=1.0)]
    page_counts = {"full": paths // PAGE}
    if windows:
        components.append(Component(name="swa", coverage=Trailing(WINDOW), page_bytes=PAGE * 100))
        page_counts["swa"] = windows // PAGE
    if states:
        components.append(Component(name="mamba", coverage=Point(), page_bytes=PAGE * 1_000))
        page_counts["mamba"] = states
    cache = PrefixCache(components, PAGE, page_counts, policy=policy)
    for prompt in prompts(seed, count):
        with cache.acquire(Key(prompt)) as lease:
            cache.allocate(lease, prompt.size)
            cache.commit(lease, prompt, dict(lease.save_pages))
    stats = cache.stats()
    cache.close()
    return 100 * stats.hit_tokens / stats.prompt_tokens


def measure(policies: list[str], cell: str, seeds: int, count: int) -> dict[str, Any]:
    """One row: the mean hit rate of each policy, and what the last one gains on the best of the others, and at least gains."""
    rates = np.array([[hit_rate(policy, CELLS[cell], seed, count) for policy in policies] for seed in range(seeds)])
    gains = rates[:, -1] - rates[:, :-1].max(axis=1)
    return {
        "cell": cell,
        **dict(zip(policies, rates.mean(axis=0).tolist(), strict=True)),
        "gain": gains.mean(),
        "least": gains.min(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = options_of("documents", __doc__, quick="few requests of one trace")
    parser.add_argument("--requests", type=int, default=3_000, help="of each trace")
    parser.add_argument("--seeds", type=int, default=4, help="how many traces")
    parser.add_argument("--policies", default="lru,cost,density", help="the last one is compared with the others")
    options = parser.parse_args(arguments)
    policies = str(options.policies).split(",")
    seeds, count = (1, 30) if options.quick else (int(options.seeds), int(options.requests))
    rows = (measure(policies, cell, seeds, count) for cell in CELLS)
    print_table(
        " | ".join(["documents", *(f"`{policy}`" for policy in policies), "beside the best other, in the mean", "at least"]),
        " | ".join(["{cell}", *(f"{{{policy}:.1f}}" for policy in policies), "{gain:+.2f}", "{least:+.2f}"]),
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
