"""Ids of blocks, as traces give them, made dense: equal ids are equal blocks behind equal prompts.

Some traces number a block together with all that comes before it (a prefix hash), others by its own content. Both are known by
their ids: a prefix hash stands behind one other id wherever it is listed. Where one stands behind two, the ids of that scope
name contents, and each block is numbered anew by what comes before it. The alternative, to ask each format, was rejected:
files of one format differ in it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.traces.workload import begins_run, cut_runs, expand_runs, pack_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import Record
    from unified_tree.controllers.workbench.traces.workload import Int64s

SLACK_IDS = 1 << 16
FIRST_RUNS = 1 << 14
"""Ids that name contents show it in these, mostly."""


class BlockLists:
    """The block ids of the requests of one scope (a file, a session), in `hash_ids`, or packed in `hash_runs`.

    An id is an integer of any size, or a string. Lists are kept flat, packed ones as they are while there are no others.
    """

    def __init__(self) -> None:
        self._ids = array("q")
        self._counts: list[int] = []
        self._packed: list[Int64s] = []
        self._names: dict[object, int] | None = None

    def add(self, record: Record, name: str = "hash_ids") -> None:
        """The ids of one more request. Raises TraceError. Cost: O(ids); O(runs) for packed ones."""
        if "hash_runs" in record.fields:
            runs = record.block_runs()
            self._packed.append(runs)
            self._counts.append(int(runs[1::2].sum()))
        else:
            self.add_list(record.items(name), record, name)

    def add_list(self, value: list[Any], record: Record, name: str) -> None:
        """A list of ids; `record` and `name` are for the error."""
        self._unpack()
        kinds = set(map(type, value))
        for kind in kinds - {int, str}:
            wrong = next(item for item in value if type(item) is kind)
            raise record.inner(name).error("must be a list of integers or strings", wrong)
        self._counts.append(len(value))
        if self._names is None:
            known = len(self._ids)
            try:
                self._ids.extend(value)
                return
            except (OverflowError, TypeError):
                del self._ids[known:]
            self._names = {}
            self._ids = array("q", self._numbers(self._ids, self._names))
        self._ids.extend(self._numbers(map(_key, value) if str in kinds else value, self._names))

    def _unpack(self) -> None:
        packed, self._packed = self._packed, []
        for runs in packed:
            ids = expand_runs(runs)
            if self._names is None:
                self._ids.frombytes(ids.tobytes())
            else:
                self._ids.extend(self._numbers(ids.tolist(), self._names))

    @staticmethod
    def _numbers(keys: Iterable[object], names: dict[object, int]) -> list[int]:
        return [names.setdefault(key, len(names)) for key in keys]

    def counts(self) -> Int64s:
        """Ids of each request, shape [requests]."""
        return np.array(self._counts, np.int64)

    def numbered(self, most: Int64s, base: int) -> tuple[list[Int64s], int]:
        """The first `most[i]` ids of each request as runs, dense from `base` on, and the first id that is free after them."""
        if len(self._packed) == len(self._counts):
            return densify([cut_runs(runs, count) for runs, count in zip(self._packed, most.tolist(), strict=True)], base)
        self._unpack()
        return densify(self._runs(most), base)

    def _runs(self, most: Int64s) -> list[Int64s]:
        counts = self.counts()
        ids, kept = np.frombuffer(self._ids, np.int64) if self._ids else np.empty(0, np.int64), np.minimum(counts, most)
        begins = np.cumsum(counts) - counts
        if (kept < counts).any():
            is_kept = np.arange(ids.size) - np.repeat(begins, counts) < np.repeat(kept, counts)
            ids, begins = ids[is_kept], np.cumsum(kept) - kept
        is_first = np.ones(ids.size, np.bool_)
        is_first[1:] = begins_run(ids)
        is_first[begins[kept > 0]] = True  # of a request
        firsts = np.flatnonzero(is_first)
        runs = np.empty(2 * firsts.size, np.int64)
        runs[::2] = ids[firsts]
        runs[1::2] = np.diff(firsts, append=ids.size)
        cuts = (2 * np.searchsorted(firsts, begins)).tolist()
        ends = [*cuts[1:], runs.size]
        return [runs[begin:end] for begin, end in zip(cuts, ends, strict=True)]


def _key(value: Any) -> object:
    """An id as a key: a number that is written as a string is the number."""
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 40
    return int(value) if is_number else value


def densify(scope: Sequence[Int64s], base: int) -> tuple[list[Int64s], int]:
    """Number the blocks of one scope (a file, a session) from `base` on; ids that are dense prefix hashes are only shifted.

    Args:
        scope: runs, one array a request; equal ids anywhere in the scope, behind equal ids, are equal blocks.
        base: the first id that no earlier scope uses.

    Returns the new runs and the first id that is free after them. Cost: O(runs log runs); a sort of the ids where they are
    sparse (64-bit hashes, say), and O(ids) in Python where they name contents.
    """
    runs = np.concatenate([np.empty(0, np.int64), *scope])
    if not runs.size:
        return list(scope), base
    sizes = np.array([request.size for request in scope])
    ends = np.cumsum(sizes)
    lowest, highest = int(runs[::2].min()), int(runs[::2].max())
    if lowest < 0 or highest > 4 * int(runs[1::2].sum()) + SLACK_IDS:
        ids = [expand_runs(request) for request in scope]
        ranks = _by_appearance(np.concatenate(ids))
        scope = [pack_runs(part) for part in np.split(ranks, np.cumsum([part.size for part in ids])[:-1])]
        return densify(scope, base)
    begins = (ends - sizes)[sizes > 0] // 2
    if not (_are_prefix_hashes(runs[: 2 * FIRST_RUNS], begins[begins < FIRST_RUNS]) and _are_prefix_hashes(runs, begins)):
        numbers: dict[int, int] = {}
        span = int((runs[::2] + runs[1::2]).max())
        return [_behind(numbers, expand_runs(request).tolist(), span, base) for request in scope], base + len(numbers)
    highest = int((runs[::2] + runs[1::2]).max())
    runs[::2] += base
    cuts = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
    return [runs[begin:end] for begin, end in cuts], base + highest


def _by_appearance(ids: Int64s) -> Int64s:
    """The ids numbered in the order in which they first appear."""
    unique, firsts, inverse = np.unique(ids, return_index=True, return_inverse=True)
    ranks = np.empty(unique.size, np.int64)
    ranks[np.argsort(firsts)] = np.arange(unique.size)
    numbered: Int64s = ranks[inverse]
    return numbered


def _are_prefix_hashes(runs: Int64s, first_runs: Int64s) -> bool:
    """Whether every id stands behind one other id alone, or first, wherever it is listed."""
    starts, counts = runs[::2], runs[1::2]
    before = np.empty(starts.size, np.int64)
    before[1:] = starts[:-1] + counts[:-1] - 1
    before[first_runs] = -1
    order = np.lexsort((before, starts))
    starts, before, ends = starts[order], before[order], np.maximum.accumulate((starts + counts)[order])
    if ((starts[1:] == starts[:-1]) & (before[1:] != before[:-1])).any():
        return False
    jumps = starts[before != starts - 1]
    earlier = np.searchsorted(starts, jumps)
    return not (ends[np.maximum(earlier - 1, 0)][earlier > 0] > jumps[earlier > 0]).any()


def _behind(numbers: dict[int, int], ids: list[int], span: int, base: int) -> Int64s:
    """A request's ids, all below `span`, numbered from `base` on by what comes before each, as runs."""
    at, path = -1, []
    for block in ids:
        at = numbers.setdefault(at * span + block, len(numbers))
        path.append(at)
    return pack_runs(np.array(path, np.int64) + base)
