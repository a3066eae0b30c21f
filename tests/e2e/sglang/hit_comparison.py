"""Compares the hits of SGLang's own cache with ours, in the scheduler's model: hundreds of mixes in minutes, without a model.

Run it with the engine's python: `python tests/e2e/sglang/hit_comparison.py --seeds 60`. It prints a line a kind: the prompt
tokens that each cache had, and how the difference is spread over the mixes.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from mix import Mix, MixSettings
from model_caches import our_cache
from scheduler_model import Batch, Case, Pools, Request, Scheduler
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

KINDS = {
    "full": Case(full_tokens=1024),
    "full-small": Case(full_tokens=700),
    "full16": Case(full_tokens=1024, page_size=16),
    "eagle": Case(full_tokens=1024, eagle=True),
    "swa": Case(full_tokens=1024, window=31, window_tokens=512),
    "swa-small": Case(full_tokens=700, window=31, window_tokens=420),
    "swa16": Case(full_tokens=1024, page_size=16, window=31, window_tokens=608),
    "mamba": Case(full_tokens=1024, states=24),
    "mamba_extra": Case(full_tokens=1440, states=40, extra_buffer=True, page_size=16, chunk=128),
}
"""As in the whole-engine mixes, where there is one."""


class Counting(Scheduler):
    """Notes what each request had when it was first admitted, so that one that was taken back counts once."""

    def __init__(self, pools: Pools, cache: Any) -> None:
        super().__init__(pools, cache)
        self.hits: dict[str, int] = {}

    def check(self) -> None:
        """Left out, as the other tests do it."""

    def admit(self, req: Request, batch: Batch) -> bool:
        is_admitted = super().admit(req, batch)
        if is_admitted:
            self.hits.setdefault(req.rid, req.prefix_len)
        return is_admitted


def hits(case: Case, seed: int, *, builtin: bool) -> list[int]:
    """The tokens from the cache of each request of a mix, in the order of the requests. Waves come as in the whole engine."""
    pools = Pools(case)
    cache: Any = UnifiedRadixCache(pools.params) if builtin else our_cache(pools)
    scheduler = Counting(pools, cache)
    mix = Mix(seed, MixSettings(aborts=False))
    while wave := mix.wave():
        submitted = []
        for request in wave:
            req = scheduler.submit(list(request.prompt), request.new_tokens, *request.namespace[:2])
            cache.touch_prefix(RadixKey(req.full_untruncated_fill_ids, req.extra_key, cache_salt=req.cache_salt))
            submitted.append(req)
        while scheduler.waiting or scheduler.running or scheduler.prefilling:
            scheduler.step()
        for request, req in zip(wave, submitted, strict=True):
            mix.answered(request, list(req.output_ids))
    return [scheduler.hits[rid] for rid in sorted(scheduler.hits, key=int)]


def in_turn(case: Case, prompts: list[list[int]], *, builtin: bool) -> list[int]:
    """The tokens from the cache of prompts that come one after the other, each answered by a token."""
    pools = Pools(case)
    scheduler = Counting(pools, UnifiedRadixCache(pools.params) if builtin else our_cache(pools))
    for prompt in prompts:
        scheduler.submit(prompt, 1)
        while scheduler.waiting or scheduler.running or scheduler.prefilling:
            scheduler.step()
    return list(scheduler.hits.values())


CROWDS = ("repeats", "samples", "heads", "at once", "branches")
"""Kinds of requests: a prompt again and again, samples of one, tails behind a head, many at once twice, branches anywhere."""
CROWD_POOLS = (
    Case(full_tokens=4096, window=31, window_tokens=4096, chunk=256),
    Case(full_tokens=1024, window=31, window_tokens=512),
    Case(full_tokens=4096, page_size=16, window=31, window_tokens=4096, chunk=256),
    Case(full_tokens=1024, page_size=16, window=31, window_tokens=608),
)
"""Pools of a model with windows that have room for a crowd, and pools that have not."""


def crowd(kind: str, page: int, rng: random.Random, requests: int) -> list[list[list[int]]]:
    """Waves of prompts, half of them of whole pages; about so many requests."""

    def text(tokens: int) -> list[int]:
        return [rng.randrange(1, 50) for _ in range(tokens)]

    def prompt() -> list[int]:
        tokens = rng.randrange(20, 180)
        return text(max(page, tokens // page * page if rng.random() < 0.5 else tokens))

    match kind:
        case "repeats":
            return [[again] for one in (prompt() for _ in range(requests // 3)) for again in [one] * 3]
        case "samples":
            return [wave for one in (prompt() for _ in range(requests // 5)) for wave in ([one], [one] * 4)]
        case "heads":
            heads = [prompt() for _ in range(requests // 6)]
            return [[head + text(rng.randrange(1, 60))] for head in heads for _ in range(6)]
        case "at once":
            return [wave for _ in range(requests // 24) for wave in [[text(64) for _ in range(12)]] * 2]
    seen = [text(100)]
    for _ in range(requests):
        old = rng.choice(seen[-6:])
        seen.append(old[: rng.randrange(len(old) + 1)][:150] + text(rng.randrange(1, 60)))
    return [[one] for one in seen[1:]]


def crowd_hits(case: Case, waves: list[list[list[int]]], *, builtin: bool) -> int:
    """The tokens that a crowd had from the cache, each wave after the one before."""
    pools = Pools(case)
    scheduler = Counting(pools, UnifiedRadixCache(pools.params) if builtin else our_cache(pools))
    for wave in waves:
        for one in wave:
            scheduler.submit(list(one), 3)
        while scheduler.waiting or scheduler.running or scheduler.prefilling:
            scheduler.step()
    return sum(scheduler.hits.values())


def totals(case: Case, seeds: range) -> list[tuple[int, int]]:
    """What SGLang's cache and ours had in each mix."""
    return [(sum(hits(case, seed, builtin=True)), sum(hits(case, seed, builtin=False))) for seed in seeds]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.kinds.split(","):
        found = totals(KINDS[name], range(given.seeds))
        theirs, ours = sum(a for a, _ in found), sum(b for _, b in found)
        change = sorted(b - a for a, b in found)
        fewer, equal = sum(each < 0 for each in change), change.count(0)
        print(
            f"{name}: SGLang's {theirs:,}, ours {ours:,} ({100 * (ours / theirs - 1):+.2f} %); "
            f"of {given.seeds} mixes {fewer} fewer, {equal} equal; "
            f"least {change[0]:+}, median {change[len(change) // 2]:+}, most {change[-1]:+}",
            flush=True,
        )


if __name__ == "__main__":
    main()
