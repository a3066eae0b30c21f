"""Full KV, a window and a recurrent state over a host tier: prompts are computed in chunks, answers in a batch.

The pools never run out of pages here; `examples/embed.py` preempts.
"""

from collections.abc import Sequence

import numpy as np

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

PARTS = [
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(15)),
    Component(name="mamba", coverage=Point()),
]
HOST = HostTier(page_counts={"full": 256, "swa": 256, "mamba": 256}, engine=NullEngine())  # `tensor_tiers` copies bytes
cache = PrefixCache(PARTS, page_size=4, page_counts={"full": 48, "swa": 40, "mamba": 24}, host=HOST, draft_tokens=4)
batch = cache.batch(max_leases=4, max_tokens=1000)
states = np.zeros((24, 2), int)  # 24 states of 2 layers: here, how many tokens each has seen


def run(lease: Lease, end: int) -> None:
    """The model computes the tokens up to `end`."""
    for layer in range(2):
        cache.wait_layer(lease, layer)
        for copy in lease.state_copies:  # empty after the first commit
            states[copy.target, layer] = states[copy.source, layer]
        states[lease.state_page, layer] = end  # and attention: lease.pages("full"), lease.pages("swa")


def save(lease: Lease, end: int) -> dict[int, int]:
    """The state to commit at `end` tokens, copied if the cache has a page for it."""
    if end not in lease.save_pages:
        return {}
    states[lease.save_pages[end]] = states[lease.state_page]
    return {end: lease.save_pages[end]}


def prefill(tokens: Sequence[int], checkpoints: Sequence[int] = (), chunk: int = 16) -> Lease:
    """Compute a prompt in chunks, and stop where the cache wants a state."""
    lease = cache.acquire(Key(tokens), checkpoints)
    start = lease.compute_from
    while start < len(tokens):
        end = min(len(tokens), max(start + chunk, lease.cached_tokens), lease.next_stop(start) or len(tokens))
        cache.allocate(lease, end)
        run(lease, end)
        cache.commit(lease, end, save(lease, end))
        start = end
    return lease


def decode(running: dict[Lease, list[int]]) -> None:
    """Compute a token for each request. `running` has the tokens of each lease."""
    batch.allocate(1)
    for lease, tokens in running.items():  # your kernels take all rows at once
        tokens.append(7)  # the sampled token
        run(lease, len(tokens))
    batch.advance()  # all allocated tokens are computed
    for lease, tokens in running.items():
        if state := save(lease, len(tokens)):
            cache.commit(lease, tokens[lease.known_tokens :], state, begin=lease.known_tokens)


def serve(prompts: Sequence[list[int]], answer_tokens: int = 16) -> None:
    """Serve requests that start and end together."""
    running = {}
    for prompt in prompts:
        cache.poll()
        lease = prefill(prompt)
        batch.add(lease)
        running[lease] = list(prompt)
    for _ in range(answer_tokens):
        cache.poll()
        decode(running)
    for lease, tokens in running.items():
        cache.commit(lease, tokens[lease.known_tokens :], begin=lease.known_tokens)
        cache.release(lease)


if __name__ == "__main__":
    for first in (0, 4, 0):  # the last four prompts come for the second time
        serve([[i, *range(24)] for i in range(first, first + 4)])
    stats = cache.stats()
    print(f"{stats.requests} requests; {stats.hit_tokens} tokens hit, {stats.host_hit_tokens} on host; {cache.tree.check()}")
