"""Workloads of a few pages for the optimum, and its bound of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

import numpy as np
from every_choice import Tiny

from unified_tree.controllers.workbench.optimum.descent import Descent, whole_tokens
from unified_tree.controllers.workbench.optimum.idle import Asked, Demand, Idle

PAGE = 4
"""Tokens of a page."""


def drawn(rng: Random, **pools: int | None) -> Tiny:
    """Prompts that branch off each other, and come again."""
    prompts: list[tuple[tuple[int, ...], bool]] = []
    for _ in range(rng.randint(2, 6)):
        base = rng.choice(prompts)[0] if prompts and rng.random() < 0.8 else ()
        base = base[: rng.randint(0, len(base))]
        longer = tuple(rng.randint(0, 2) for _ in range(rng.randint(0, 2)))
        prompt = (base + longer)[:4] or (0,)
        prompts.append((prompt, rng.random() < 0.7))
    return Tiny(tuple(prompts), **pools)  # type: ignore[arg-type]


def idle_of(tiny: Tiny, block_tokens: int = PAGE) -> Idle:
    """The same prompts in tokens; a page is one block, or several. Where requests pin, there is a moment at which each runs."""
    ids: dict[tuple[int, ...], int] = {}
    per_page = PAGE // block_tokens

    def asked() -> Iterable[Asked | None]:
        for at, (prompt, has_more) in enumerate(tiny.prompts):
            pages = [ids.setdefault(prompt[:length], len(ids)) for length in range(1, len(prompt) + 1)]
            blocks = np.array([page * per_page + part for page in pages for part in range(per_page)], np.int64)
            tokens = len(prompt) * PAGE + (rng.randint(1, PAGE - 1) if has_more else 0)
            if tiny.pins:
                running, done = 2 * at + 1, 2 * at + 2
            else:
                running = done = at + 1
            yield Asked(blocks=blocks, block_tokens=block_tokens, prompt_tokens=tokens, prompt_done=running, done=done)
            if tiny.pins:
                yield None

    rng = Random(0)
    return Idle(asked(), 100, PAGE)


def descent(idle: Idle, demand: Demand) -> Descent:
    """Of what fits alone, as for a row."""
    some = idle if demand.path_tokens is None else idle.fitting(demand.path_tokens)
    found = Descent(some, demand, math.inf)
    found.go()
    return found


def bound(idle: Idle, demand: Demand) -> int:
    return whole_tokens(descent(idle, demand).bound)
