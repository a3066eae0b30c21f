"""`python -m benches.ledger`: what the ledger of misses costs a chat request: by default, and with `ghost_bytes` of 0.

Question: how much longer does a request of a chat take (acquire, allocate, commit, decode in one piece, or with `--steps` token
by token, commit, release) where each computed token gets its cause and ages are counted? Silent on: many requests at a time, a
host tier, a store, keys of other lengths. See `benches.chats` for what is served.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benches.chats import KINDS, Chat, chats, in_turn, new_cache
from benches.two_ways import parser_of, print_table
from unified_tree import TreeSettings


def measure(kinds: str, page_size: int, requests: list[Chat], lives: int, *, in_steps: bool = False) -> dict[str, Any]:
    """One row: both ways, in turn."""
    on, off = new_cache(kinds, page_size), new_cache(kinds, page_size, TreeSettings(ghost_bytes=0))
    times = in_turn({"on": on, "off": off}, requests, lives, in_steps=in_steps)
    stats = on.stats()
    assert stats.hit_tokens == off.stats().hit_tokens, "what is remembered changes no hit"
    return {
        "components": kinds,
        "page_size": page_size,
        "hit": stats.hit_tokens / stats.prompt_tokens,
        "evictions": stats.evictions / stats.requests,
        "off_us": float(np.median(times["off"])),
        "on_us": float(np.median(times["on"])),
        "median": float(np.median(times["on"]) / np.median(times["off"])),
        "total": float(times["on"].sum() / times["off"].sum()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print the table, and write the rows."""
    parser = parser_of("benches.ledger", __doc__, lives=20, quick="few requests")
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--steps", action="store_true", help="the answer is decoded a token at a time, not in one piece")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    requests = list(chats(12 if quick else options.requests))
    lives = 1 if quick else options.lives
    rows = (measure(kinds, size, requests, lives, in_steps=options.steps) for kinds in KINDS for size in (1, 64))
    print_table(
        "components | page | hit | evictions a request | off | on | median | total",
        "{components} | {page_size} | {hit:.2f} | {evictions:.1f} | {off_us:.1f} µs | {on_us:.1f} µs "
        "| {median:.3f} | {total:.3f}",
        rows,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
