"""A model of a cache under LRU: paths of one size are evicted for real, of windows and states only the recency is kept.

Under LRU a window or a state is there if fewer others than fit were used since its own last use. So one pass over a workload
says, for one size of the paths and *every* size of the other pools at once, how many tokens are hit (Mattson's stack distances,
1970). Windows and states whose path is evicted leave the order, as they leave the cache.

A model knows pages only by numbers, keeps nothing of their content, and works on whole prompts in numpy.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.sizing.needs import Needs

    Int64s = NDArray[np.int64]


class HitCounts(Counter[int]):
    """Counted so far: from a room for values of this weight on, so many tokens more are hit.

    >>> counts = HitCounts()
    >>> counts[0] += 64  # whatever there is room for
    >>> counts[3 * WHOLE] += 100  # so many more if three values fit
    >>> counts.curve().tokens(2), counts.curve().tokens(3)
    (64, 164)
    """

    def curve(self) -> HitCurve:
        """What was counted, for all sizes. Cost: O(n log n)."""
        rooms = sorted(self)
        return HitCurve(rooms=np.array(rooms) / WHOLE, sums=np.cumsum(np.array([self[room] for room in rooms], np.int64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HitCurve:
    """Tokens hit over room: `sums[i]` from `rooms[i]` on."""

    rooms: NDArray[np.float64]
    sums: NDArray[np.int64]

    def tokens(self, room: float) -> int:
        """Tokens hit where so many values fit. Cost: O(log n)."""
        index = int(np.searchsorted(self.rooms, room, side="right"))
        return int(self.sums[index - 1]) if index else 0


NOT_HERE = -1


@dataclass(slots=True)
class Held:
    """A request at work.

    Attributes:
        ids: of the units of its prompt that others may share, in order; `unit_tokens` each.
        known: how many of them were there when it was admitted.
        own_tokens: of the prompt, and in the end of the answer, what is behind them; `output_tokens` of the answer alone.
        own_value: when the window at its prompt's end was saved, where that is no end of a unit.
        resumed: the deepest length from which it can resume if all windows and states fit.
        hit_tokens: what it hits then.
        time: when it ended; `is_next` once it is the least recently used.
    """

    ids: Int64s
    unit_tokens: int
    known: int
    prompt_tokens: int
    own_tokens: int
    output_tokens: int
    own_value: int | None = None
    resumed: int = 0
    hit_tokens: int = 0
    time: int = 0
    is_next: bool = False


class ModelCache:
    """The model of one cache. Call `begin` when a request is admitted, and `end` when it is over.

    Args:
        room_tokens: for paths, of running requests and of others; None for no end.
        needs: what the model's boundaries need.
        unit_count: ids of units are below it.

    Attributes:
        hits: what was hit, for all sizes of the other pools; `far_hits` on host or in a store, where no window is rebuilt.
        pinned_tokens: the path of running requests.
    """

    def __init__(self, room_tokens: int | None, needs: Needs, unit_count: int) -> None:
        self.hits = HitCounts()
        self.far_hits = HitCounts()
        self.pinned_tokens = 0
        self._room_tokens = room_tokens
        self._needs = needs
        self._used = np.full(unit_count, NOT_HERE, np.int64)  # when each unit was last used
        self._pins = np.zeros(unit_count, np.int32)
        self._value = np.full(unit_count, NOT_HERE, np.int64)  # when the value at the end of each unit was last used
        self._weight = np.full(unit_count, WHOLE, np.int32)
        self._ends_prompt = np.zeros(unit_count, np.bool_)  # whether a prompt that was computed ends with the unit
        self._values = ValueOrder()
        self._left: deque[Held] = deque()
        self._idle_tokens = 0
        self._stranded_tokens = 0  # behind the last length that anybody can resume from: these go first
        self._time = 0

    def missing_tokens(self, ids: Int64s, unit_tokens: int) -> int:
        """Of these units the tokens that no running request has."""
        return int(np.count_nonzero(self._pins[ids] == 0)) * unit_tokens

    def known(self, ids: Int64s) -> int:
        """How many of these units are there, from the first on."""
        absent = np.flatnonzero(self._used[ids] == NOT_HERE)
        return int(absent[0]) if absent.size else ids.size

    def has(self, unit: int) -> bool:
        """Whether a unit is there."""
        return bool(self._used[unit] != NOT_HERE)

    def touch(self, ids: Int64s, unit_tokens: int) -> None:
        """What is known of a prompt that was offered and found no room is the most recent."""
        known = ids[: self.known(ids)]
        idle = known[self._pins[known] == 0]
        if idle.size:
            self._leave(Held(idle, unit_tokens, 0, 0, 0, 0))

    def begin(self, ids: Int64s, unit_tokens: int, prompt_tokens: int, output_tokens: int) -> Held:
        """A request is admitted: count what it hits, and hold that."""
        page = self._needs.page_tokens
        known = self.known(ids)
        shared_tokens = ids.size * unit_tokens
        held = Held(
            ids,
            unit_tokens,
            known,
            prompt_tokens=prompt_tokens,
            own_tokens=max(0, prompt_tokens // page * page - shared_tokens),
            output_tokens=(prompt_tokens + output_tokens) // page * page - prompt_tokens // page * page,
        )
        path = min(known * unit_tokens, (prompt_tokens - 1) // page * page)
        if self._needs.is_gated:
            self._resume(held, path)
        else:
            held.hit_tokens = path
            self.hits[0] += path
            self.far_hits[0] += path
        self._pin(ids[:known], unit_tokens)
        return held

    def compute(self, held: Held) -> None:
        """Its prompt is computed: what was missing is there, and it saves what it saves."""
        self._pin(held.ids[held.known :], held.unit_tokens)
        held.own_tokens += held.output_tokens // 2  # on average it has half of its answer
        self.pinned_tokens += held.own_tokens
        if self._needs.is_gated:
            self._save(held)
        self._evict()

    def end(self, held: Held) -> None:
        """A request is over: what it alone held is idle, and the most recent."""
        ids = held.ids
        left = self._pins[ids] - 1
        self._pins[ids] = left
        held.ids = idle = ids[left == 0]
        self.pinned_tokens -= idle.size * held.unit_tokens + held.own_tokens
        held.own_tokens += held.output_tokens - held.output_tokens // 2
        if self._needs.is_exact:
            self._stranded_tokens += held.own_tokens
            held.own_tokens = 0
        self._idle_tokens += idle.size * held.unit_tokens + held.own_tokens
        self._leave(held)

    def _leave(self, held: Held) -> None:
        """Its units are idle and the most recently used."""
        self._time += 1
        held.time = self._time
        self._used[held.ids] = self._time
        self._left.append(held)

    def _pin(self, ids: Int64s, unit_tokens: int) -> None:
        """Hold these units of a path, new ones or those that were idle."""
        before = self._pins[ids]
        fresh = ids[before == 0]
        self._pins[ids] = before + 1
        self.pinned_tokens += fresh.size * unit_tokens
        self._idle_tokens -= int(np.count_nonzero(self._used[fresh] != NOT_HERE)) * unit_tokens
        self._used[fresh] = self._time

    def compact(self) -> None:
        """Free the memory of what was used since, or is gone. Whoever goes on for ever calls it now and then; nothing changes.

        Cost: O(requests since the last time, and units).
        """
        self._left = deque(left for left in self._left if left.own_tokens or self._still_of(left, left.ids).size)
        renumbered = self._values.compact()
        has_value = self._value != NOT_HERE
        self._value[has_value] = renumbered[self._value[has_value]]
        for left in self._left:
            if left.own_value is not None:
                left.own_value = int(renumbered[left.own_value])

    # -- windows and states

    def _resume(self, held: Held, path: int) -> None:
        """Count what a request hits by how much room there is for values."""
        needs, unit, ids = self._needs, held.unit_tokens, held.ids
        times = self._value[ids[: held.known]]
        rebuilt = 0 if needs.rebuild_tokens is None else max(0, path - needs.rebuild_tokens)
        steps: list[tuple[int, int]] = []  # (length, what room it takes), deepest first
        for index in np.flatnonzero(times != NOT_HERE)[::-1].tolist():
            length = (index + 1) * unit
            if length == held.prompt_tokens and needs.is_boundary(length) and self._ends_prompt[ids[index]]:
                length = needs.floor(length - 1)  # where a repeat resumes; it is kept with the prompt's end
            if not 0 < length <= path or not needs.is_boundary(length):
                continue
            if not held.resumed:
                held.resumed = length
            time = int(times[index])
            least = 0 if self._pins[ids[index]] else self._values.above(time) + int(self._weight[ids[index]])
            if not steps or least < steps[-1][1]:
                steps.append((length, least))
            if least == 0:
                break
        steps.reverse()
        held.hit_tokens = _count(self.hits, steps, rebuilt)
        _count(self.far_hits, steps, 0)
        if held.resumed:
            last = held.resumed // unit
            first = max(0, last - max(1, needs.window_tokens // unit))
            for index in (first + np.flatnonzero(times[first:last] != NOT_HERE)).tolist():
                self._use_value(int(ids[index]))

    def _save(self, held: Held) -> None:
        """A request saves where it branches off, at the end of what it shares, and its windows at its prompt's end."""
        needs, unit, ids = self._needs, held.unit_tokens, held.ids
        end = needs.floor(ids.size * unit)
        if ids.size and end == held.prompt_tokens:
            self._ends_prompt[ids[-1]] = True
        before = held.resumed
        for length in sorted({needs.floor(held.known * unit), end}):
            if length > before and length % unit == 0:
                self._weight[ids[length // unit - 1]] = self._window_weight(length - before)
                self._use_value(int(ids[length // unit - 1]))
                before = length
        if needs.window_tokens and needs.floor(held.prompt_tokens) > end:
            held.own_value = self._values.add(self._window_weight(needs.floor(held.prompt_tokens) - before))

    def _window_weight(self, tokens: int) -> int:
        """What a value weighs that has so many tokens since the one before it on its path: of windows only these are added."""
        return max(1, min(WHOLE, WHOLE * tokens // self._needs.window_tokens)) if self._needs.window_tokens else WHOLE

    def _use_value(self, unit: int) -> None:
        time = self._value[unit]
        if time != NOT_HERE:
            self._values.remove(int(time))
        self._value[unit] = self._values.add(int(self._weight[unit]))

    # -- eviction

    def _evict(self) -> None:
        """Let the least recently used go, the ends of paths first, until the rest fits."""
        if self._room_tokens is None:
            return
        excess = self._stranded_tokens + self._idle_tokens + self.pinned_tokens - self._room_tokens
        stranded = max(0, min(self._stranded_tokens, excess))
        self._stranded_tokens -= stranded
        excess -= stranded
        while excess > 0 and self._left:
            gone = self._evict_from(self._left[0], excess)
            excess -= gone
            self._idle_tokens -= gone

    def _evict_from(self, oldest: Held, excess: int) -> int:
        """Let as much as needed go of what one request was the last to use. Returns how many tokens did."""
        if oldest.own_tokens:
            page = self._needs.page_tokens
            gone = min(oldest.own_tokens, -(-excess // page) * page)
            oldest.own_tokens -= gone
            if oldest.own_value is not None:
                self._values.remove(oldest.own_value)
                oldest.own_value = None
            return gone
        if not oldest.is_next:
            oldest.is_next = True
            oldest.ids = self._still_of(oldest, oldest.ids)
        count = -(-excess // oldest.unit_tokens)
        ends = self._still_of(oldest, oldest.ids[-count:])
        oldest.ids = oldest.ids[:-count]
        self._forget(ends)
        if not oldest.ids.size:
            self._left.popleft()
        return ends.size * oldest.unit_tokens

    def _still_of(self, left: Held, ids: Int64s) -> Int64s:
        """Those of these units that nobody has used since."""
        still: Int64s = ids[(self._used[ids] == left.time) & (self._pins[ids] == 0)]
        return still

    def _forget(self, ids: Int64s) -> None:
        self._used[ids] = NOT_HERE
        times = self._value[ids]
        for time in times[times != NOT_HERE].tolist():
            self._values.remove(time)
        self._value[ids] = NOT_HERE


def _count(hits: HitCounts, steps: list[tuple[int, int]], rebuilt: int) -> int:
    """Count what a request hits by room, which is at least what it has by rebuilding windows. Returns the most."""
    reached = rebuilt
    hits[0] += rebuilt
    for length, least in steps:
        if length > reached:
            hits[least] += length - reached
            reached = length
    return reached


CHUNK = 512
WHOLE = 64
"""The weight of a value that shares its pages with no other."""


class ValueOrder:
    """Weights by time, and their sums from any time on.

    >>> order = ValueOrder()
    >>> old = order.add()
    >>> new = order.add(WHOLE // 2)
    >>> order.above(old), order.above(new)
    (32, 0)
    >>> order.remove(new)
    >>> order.above(old)
    0

    Cost: O(1) to add and remove; a distance is a sum over n / 512 chunks, with n the times so far, in numpy.
    """

    def __init__(self) -> None:
        self.now = 0
        self._weights = np.zeros(2 * CHUNK, np.int64)
        self._chunks = np.zeros(2, np.int64)

    def add(self, weight: int = WHOLE) -> int:
        """A value is used now. Returns the time, which is its own.

        Args:
            weight: 64 for a whole value; a window that shares pages with the one before it takes a part of that.
        """
        if self.now == self._weights.size:
            self._weights = np.concatenate([self._weights, np.zeros_like(self._weights)])
            self._chunks = np.concatenate([self._chunks, np.zeros_like(self._chunks)])
        time = self.now
        self.now += 1
        self._weights[time] = weight
        self._chunks[time // CHUNK] += weight
        return time

    def remove(self, time: int) -> None:
        """The value last used at `time` is gone, or used anew."""
        self._chunks[time // CHUNK] -= self._weights[time]
        self._weights[time] = 0

    def compact(self) -> NDArray[np.int64]:
        """Number the times anew, without gaps. Returns the new ones by the old ones. Cost: O(times so far)."""
        weights = self._weights[: self.now]
        renumbered = np.cumsum(weights > 0) - 1
        kept = weights[weights > 0]
        self.now = kept.size
        size = max(2, -(-self.now // CHUNK))
        self._weights = np.zeros(size * CHUNK, np.int64)
        self._weights[: self.now] = kept
        self._chunks = self._weights.reshape(size, CHUNK).sum(axis=1)
        return renumbered

    def above(self, time: int) -> int:
        """What the values weigh that were used after `time`."""
        chunk = time // CHUNK
        return int(self._weights[time + 1 : (chunk + 1) * CHUNK].sum() + self._chunks[chunk + 1 :].sum())
