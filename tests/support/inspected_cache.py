"""A small hybrid cache with a host tier under traffic of several namespaces, for the inspector to look at."""

from __future__ import annotations

import numpy as np

from unified_tree import Component, Key, Path, Trailing
from unified_tree.controllers import HostTier, Lease, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

PAGE = 4
FULL = Component(name="full", coverage=Path(), page_bytes=1000)
SWA = Component(name="swa", coverage=Trailing(PAGE), page_bytes=100)


def busy_cache(requests: int = 120, seed: int = 0, device: int = 160, host: int = 260) -> PrefixCache:
    """A cache in which sessions of three namespaces have taken turns, more than there is room for."""
    tier = HostTier(page_counts={"full": host, "swa": host // 4}, engine=NullEngine())
    cache = PrefixCache([FULL, SWA], PAGE, {"full": device, "swa": device // 3}, host=tier)
    serve(cache, requests, np.random.default_rng(seed))
    return cache


def serve(cache: PrefixCache, requests: int, rng: np.random.Generator) -> None:
    """Requests one after the other, each a new session or the next turn of an old one."""
    sessions: list[tuple[str, list[int]]] = []
    for _ in range(requests):
        if sessions and rng.random() < 0.7:
            namespace, tokens = sessions[rng.integers(len(sessions))]
        else:
            namespace = ("shop", "code", "")[rng.integers(3)]
            tokens = [ord(letter) for letter in f"system prompt of {namespace:8}"]
        tokens = [*tokens, *rng.integers(1000, 2000, rng.integers(3, 20)).tolist()]
        serve_one(cache, namespace, tokens)
        if len(tokens) < 150:
            sessions.append((namespace, tokens))


def serve_one(cache: PrefixCache, namespace: str, tokens: list[int]) -> Lease:
    """One request, from `acquire` to `release`."""
    lease = cache.acquire(Key(tokens, namespace), reserve_tokens=len(tokens))
    while lease.is_loading:
        cache.poll()
    cache.commit(lease, np.array(tokens))
    cache.release(lease)
    cache.poll()
    return lease
