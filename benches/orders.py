"""`python -m benches.orders`: what an eviction policy costs a chat request, beside `lru`.

Question: how much longer does a request of a chat take (acquire, allocate, commit, decode in one piece, commit, release) where
its pools are ordered by `density`, or by the policy of `--policy`? Policies evict different values, so hits and evictions stand
beside. Silent on: many requests at a time, a host tier, a store. See `benches.ledger` for what is served.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benches.ledger import KINDS, Chat, chats, in_turn, new_cache
from benches.rounds import LIVES, options_of, print_table


def measure(kinds: str, page_size: int, requests: list[Chat], lives: int, policy: str) -> dict[str, Any]:
    """One row: both policies, in turn."""
    lru, other = new_cache(kinds, page_size), new_cache(kinds, page_size, policy=policy)
    times = in_turn({"lru": lru, policy: other}, requests, lives)
    row = {"components": kinds, "page_size": page_size}
    for name, cache, mine in (("lru", lru, times["lru"]), ("other", other, times[policy])):
        stats = cache.stats()
        row |= {
            f"{name}_hit": stats.hit_tokens / stats.prompt_tokens,
            f"{name}_evictions": stats.evictions / stats.requests,
            f"{name}_us": float(np.median(mine)),
        }
    median, total = (float(of(times[policy]) / of(times["lru"])) for of in (np.median, np.sum))
    return row | {"median": median, "total": total}


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = options_of("orders", __doc__, quick="few requests", rounds=20, what=LIVES)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--policy", default="density", help="the other policy")
    options = parser.parse_args(arguments)
    quick, policy = bool(options.quick), str(options.policy)
    requests = list(chats(12 if quick else options.requests))
    rows = (measure(kinds, size, requests, 1 if quick else options.lives, policy) for kinds in KINDS for size in (1, 64))
    print_table(
        f"components | page | hit, `lru` | hit, `{policy}` | evictions a request | `lru` | `{policy}` | median | total",
        "{components} | {page_size} | {lru_hit:.3f} | {other_hit:.3f} | {lru_evictions:.1f}, {other_evictions:.1f} "
        "| {lru_us:.1f} µs | {other_us:.1f} µs | {median:.3f} | {total:.3f}",
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
