"""The last requests, with why their tokens were computed, and their keys so that they can be walked again."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from unified_tree.inputs.printable import printable
from unified_tree.misses.explain import why_evicted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unified_tree.controllers.counters.observers import ObservedRequest
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import Miss
    from unified_tree.state.tree_state import TreeState

MAX_UNTOLD = 32
MAX_KEYS = 256
MAX_KEY_TOKENS = 1 << 20
MAX_COPIED_TOKENS = 1 << 16
"""Of a prompt that its caller may change, and which would have to be copied in the middle of a step."""
MAX_MISSES = 256
"""Of a prompt; a path of many ghosts has more."""


class RecentRequests:
    """Requests since the last telling, at most MAX_UNTOLD of them: the last.

    Attributes:
        count: how many requests there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._untold: deque[tuple[int, float, float, str, ObservedRequest, int, int, int]] = deque(maxlen=MAX_UNTOLD)
        self._keys: OrderedDict[int, Key] = OrderedDict()
        self._key_tokens = 0

    def add(self, request: ObservedRequest, key: Key, now_s: float, tree_s: float) -> int:
        """Note a request. Returns its number."""
        self.count += 1
        cached = (request.cached_tokens, request.compute_from, request.host_tokens)
        self._untold.append((self.count, now_s, tree_s, key.namespace, request, *cached))
        most = MAX_KEY_TOKENS if isinstance(key.data, bytes) else MAX_COPIED_TOKENS
        if 0 < key.length <= most:
            self._keys[self.count] = key.owned()
            self._key_tokens += key.length
            while self._key_tokens > MAX_KEY_TOKENS or len(self._keys) > MAX_KEYS:
                self._key_tokens -= self._keys.popitem(last=False)[1].length
        return self.count

    def key(self, number: int) -> Key | None:
        """The prompt of a request; None if it is too long ago."""
        return self._keys.get(number)

    def take(self, state: TreeState, limit: int) -> list[dict[str, Any]]:
        """The oldest requests, which were not told before.

        Args:
            state: of the tree whose misses they are.
        """
        told: list[dict[str, Any]] = []
        while self._untold and len(told) < limit:
            number, now_s, tree_s, namespace, request, cached, compute_from, host = self._untold.popleft()
            told.append(
                {
                    "number": number,
                    "at_s": now_s,
                    "namespace": printable(namespace),
                    "prompt": request.prompt_tokens,
                    "cached": cached,
                    "compute_from": compute_from,
                    "host": host,
                    "misses": misses_shown(request.misses, state, tree_s),
                }
            )
        return told


def misses_shown(misses: Sequence[Miss], state: TreeState, now_s: float) -> list[dict[str, Any]]:
    """The first MAX_MISSES misses for a page; `now_s` is on the clock of evictions."""
    return [_miss(miss, state, now_s) for miss in misses[:MAX_MISSES]]


def _miss(miss: Miss, state: TreeState, now_s: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"cause": miss.code, "begin": miss.begin, "end": miss.end}
    if miss.detail is not None:
        shown["detail"] = printable(miss.detail)
    eviction = miss.eviction
    if eviction is not None:
        shown["evicted"] = {
            "component": state.components[eviction.component].name,
            "tier": int(eviction.tier),
            "ago_s": round(now_s - eviction.at_s, 3),
            "for": None if eviction.beneficiary is None else printable(eviction.beneficiary),
            "why": why_evicted(state, eviction),
        }
    return shown


def page_clock(ghosts: Any) -> Callable[[], float]:
    """The clock of evictions, set to the time of day; the time of day where none are remembered."""
    if ghosts is None:
        return time.time
    own_s = ghosts.time_s
    offset_s = time.time() - own_s()
    return lambda: offset_s + own_s()


def tree_clock(ghosts: Any) -> Callable[[], float]:
    """The clock of evictions; a constant where none are remembered."""
    return (lambda: 0.0) if ghosts is None else ghosts.time_s
