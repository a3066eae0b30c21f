"""A scheduler in sixty lines: requests share prefixes, run in chunks, decode together, and wait where pages are short.

`python examples/embed.py` runs it. The model is left out: `run` is where kernels would read and write the pages.
"""

from __future__ import annotations

from collections import deque

from unified_tree import Key, OutOfPagesError
from unified_tree.components import composition_for
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache import Lease

CHUNK = 256
ANSWER = 32
MODEL = composition_for("gpt-oss-20b")
SYSTEM = list(range(600))
PROMPTS = [[*SYSTEM, *range(10_000 * i, 10_000 * i + 300)] for i in range(1, 13)]


def run(lease: Lease, begin: int, end: int) -> None:
    """Compute the tokens [begin, end): read the cached pages, write the new ones."""
    tables = {component.name: lease.pages(component.name) for component in MODEL.components if component.shares is None}
    assert all(len(table) for table in tables.values()) and begin < end


def prefill(cache: PrefixCache, lease: Lease, length: int) -> None:
    """Compute what is not cached of a prompt, in chunks."""
    at = lease.compute_from
    while at < length:
        end = min(length, max(at + CHUNK, lease.cached_tokens))
        cache.allocate(lease, end)
        run(lease, at, end)
        cache.commit(lease, end)
        at = end


def serve(cache: PrefixCache, prompts: list[list[int]], most_at_once: int = 4) -> list[int]:
    """Serve prompts, each with an answer; how many tokens of each were cached."""
    waiting, running, cached = deque(prompts), dict[int, tuple[Lease, list[int]]](), []
    while waiting or running:
        cache.poll()
        while waiting and len(running) < most_at_once:
            try:
                lease = cache.acquire(Key(waiting[0]), reserve_tokens=len(waiting[0]) + ANSWER)
            except OutOfPagesError:
                break  # it waits until a running request has ended
            prompt = waiting.popleft()
            prefill(cache, lease, len(prompt))
            cached.append(lease.cached_tokens)
            running[id(lease)] = (lease, list(prompt))
        for name, (lease, tokens) in list(running.items()):
            cache.allocate(lease, len(tokens) + 1)
            run(lease, len(tokens), len(tokens) + 1)
            tokens.append(len(tokens))  # the token that the model would have chosen
            if len(tokens) % ANSWER == 0:  # the end of the answer
                cache.commit(lease, tokens)
                cache.release(lease)
                del running[name]
    return cached


if __name__ == "__main__":
    pool = PrefixCache(MODEL.components, MODEL.page_size, MODEL.split_budget(1 << 30))
    print("cached tokens of each prompt:", *serve(pool, [*PROMPTS, *PROMPTS[:4]]))
    print(f"hit rate {pool.stats().hit_tokens / pool.stats().prompt_tokens:.0%}, violations {pool.tree.check()}")
