"""One request at a time over blocks of equal size: what the tree hits, what a given order hits, and what is possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benches.studies.foreseen_uses import AGE_BOUNDS_S, UNIT_TOKENS, Prompt, Uses
from unified_tree import Component, Key, Path, UnifiedTree
from unified_tree.controllers.workbench.optimum.idle import Asked, Idle
from unified_tree.controllers.workbench.optimum.paths import most_path_hits

FULL = Component(name="full", coverage=Path(), page_bytes=1)


def hit_by_tree(prompts: list[Prompt], capacity: int, policy: str) -> float:
    """Share of the prompt tokens that a tree of so many units hits."""
    tree, free, hit = UnifiedTree([FULL], 1, policy=policy, page_counts={"full": capacity}), list(range(capacity)), 0
    for prompt in prompts:
        units = prompt.units[:capacity]
        key = Key(units)
        found = tree.match_prefix(key)
        lock, cached = tree.lock(found.device), found.device.length
        hit += hit_tokens(prompt, cached)
        missing = units.size - cached
        if len(free) < missing:
            free += tree.evict({"full": missing - len(free)}, cut_pages=1).freed["full"].tolist()
        tree.insert(key, {"full": np.array(free[:missing], np.int64)})
        del free[:missing]
        tree.unlock(lock)
    return hit / sum(prompt.prompt_tokens for prompt in prompts)


def hit_tokens(prompt: Prompt, units: int) -> int:
    """The last token of a prompt is always computed."""
    return min(units * UNIT_TOKENS, prompt.prompt_tokens - 1)


class Order:
    """What each last use of a block is worth now.

    Args:
        worth: float32 [uses, ages]; None for recency.
    """

    def __init__(self, uses: Uses, worth: NDArray[np.float32] | None) -> None:
        self._uses = uses
        self._worth = worth

    def of(self, requests: NDArray[np.int64], last: NDArray[np.int64], now_s: float) -> NDArray[np.float64]:
        """For the last blocks that are left of each of these requests: between two ages in proportion."""
        if self._worth is None:
            return requests.astype(np.float64)
        ages = now_s - self._uses.at_s[requests]
        most = self._worth.shape[1] - 1
        begin = np.minimum(np.searchsorted(AGE_BOUNDS_S, ages, side="right") - 1, most)
        part = np.clip((ages - AGE_BOUNDS_S[begin]) / (AGE_BOUNDS_S[begin + 1] - AGE_BOUNDS_S[begin]), 0.0, 1.0)
        use = self._uses.first[requests] + last
        young, old = self._worth[use, begin], self._worth[use, np.minimum(begin + 1, most)]
        return np.asarray((1.0 - part) * young + part * old, np.float64)


class Held:
    """What is held, by the request that used it last: its blocks and their places, ascending."""

    def __init__(self) -> None:
        self._by_request: dict[int, dict[int, int]] = {}
        self._last: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def use(self, request: int, units: list[int]) -> int:
        """A request has these blocks now; returns how many were there, from the first on."""
        cached = next((at for at, unit in enumerate(units) if unit not in self._last), len(units))
        for unit in units:
            before = self._last.get(unit)
            if before is not None:
                self._drop(before, unit)
            self._last[unit] = request
        self._by_request[request] = {unit: at for at, unit in enumerate(units)}
        return cached

    def evict(self, count: int, order: Order, now_s: float) -> None:
        """Give up so many blocks: of the request whose last one is worth least the last one, and so on. A request under way has
        the last place of all, so what it holds stays.
        """
        running = next(reversed(self._by_request))
        requests = np.array([request for request in self._by_request if request != running], np.int64)
        last = np.array([next(reversed(self._by_request[request].values())) for request in requests.tolist()], np.int64)
        waiting = [(value, i) for i, value in enumerate(order.of(requests, last, now_s).tolist())]
        waiting.sort(reverse=True)
        while count > 0:
            _, i = waiting.pop()
            request, limit = int(requests[i]), waiting[-1][0] if waiting else np.inf
            value = -np.inf
            while count > 0 and value <= limit:
                blocks = self._by_request[request]
                unit = next(reversed(blocks))
                self._drop(request, unit)
                del self._last[unit]
                count -= 1
                if request not in self._by_request:
                    break
                left = next(reversed(blocks.values()))
                value = float(order.of(requests[i : i + 1], np.array([left]), now_s)[0])
            else:
                waiting.append((value, i))
                waiting.sort(reverse=True)

    def _drop(self, request: int, unit: int) -> None:
        blocks = self._by_request[request]
        del blocks[unit]
        if not blocks:
            del self._by_request[request]


def hit_by_order(prompts: list[Prompt], capacity: int, order: Order) -> float:
    """Share of the prompt tokens that an order hits with room for so many units.

    Cost: O(n log n) a request and a change of the victim, over n requests that hold some.
    """
    held, hit = Held(), 0
    for request, prompt in enumerate(prompts):
        units = prompt.units[:capacity].tolist()
        if not units:
            continue
        hit += hit_tokens(prompt, held.use(request, units))
        if len(held) > capacity:
            held.evict(len(held) - capacity, order, prompt.arrival_s)
    return hit / sum(prompt.prompt_tokens for prompt in prompts)


def most_possible(prompts: list[Prompt], capacity: int) -> float:
    """Share of the prompt tokens that the best order hits, which knows all. Cost: as `most_path_hits`."""
    asked = [
        Asked(blocks=each.units, block_tokens=UNIT_TOKENS, prompt_tokens=each.prompt_tokens, prompt_done=i + 1, done=i + 1)
        for i, each in enumerate(prompts)
    ]
    idle = Idle(asked, 1 + max(int(each.units.max(initial=0)) for each in prompts), UNIT_TOKENS)
    return int(most_path_hits(idle, capacity * UNIT_TOKENS).sum()) / sum(each.prompt_tokens for each in prompts)
