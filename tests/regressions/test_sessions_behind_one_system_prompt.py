"""Sessions with one system prompt were taken for one session: whoever shared a third of a text was said to go on from it.

So their ages, their windows and the places that they resume from were mixed up, and with windows `density` hit five points less
than `lru`. A window behind the last one known counted as needed by nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import PrefixCache

PAGE_TOKENS, SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 64, 1024, 128, 192
CHATS, TURNS = 60, 10
KINDS = {
    "paths": (),
    "windows": (Component(name="window", coverage=Trailing(512)),),
    "states": (Component(name="state", coverage=Point()),),
}


def hit_rate(kinds: tuple[Component, ...], policy: str, seed: int) -> float:
    """Chats that take turns in random order over a cache that holds half of them."""
    draw = np.random.default_rng(seed)
    pages = (SYSTEM_TOKENS + CHATS * TURNS * (QUESTION_TOKENS + ANSWER_TOKENS)) // 2 // PAGE_TOKENS
    counts = {"full": pages, "window": pages // 2, "state": CHATS * TURNS // 2}
    components = [Component(name="full", coverage=Path()), *kinds]
    cache = PrefixCache(components, PAGE_TOKENS, {c.name: counts[c.name] for c in components}, policy=policy)
    system = np.arange(10, 10 + SYSTEM_TOKENS)
    texts: list[NDArray[np.int64]] = [system] * CHATS
    order = np.repeat(np.arange(CHATS), TURNS)
    draw.shuffle(order)
    hit = asked = 0
    for chat in order:
        prompt = np.concatenate([texts[chat], draw.integers(1000, 200_000, QUESTION_TOKENS)])
        texts[chat] = np.concatenate([prompt, draw.integers(1000, 200_000, ANSWER_TOKENS)])
        with cache.acquire(Key(prompt)) as lease:
            hit, asked = hit + lease.cached_tokens, asked + prompt.size
            for end in (prompt.size, texts[chat].size):
                cache.allocate(lease, end)
                cache.advance(lease, end)
                kept: dict[int, Any] = {length: page for length, page in lease.save_pages.items() if length == end}
                cache.commit(lease, prompt.size if end == prompt.size else texts[chat], kept)
    return hit / asked


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_it_hits_no_less_than_recency(kinds: tuple[Component, ...]) -> None:
    """On average, but for two tokens in a thousand: in one order of the turns or another it is half a
    point less, or three more.
    """
    lru, density = (np.mean([hit_rate(kinds, policy, seed) for seed in range(8)]) for policy in ("lru", "density"))
    assert density >= lru - 0.002
