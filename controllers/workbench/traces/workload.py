"""What is replayed: requests whose prompts are sequences of content blocks.

Serving traces do not hold text. They hold one id per block of tokens, equal ids for equal blocks. A `Request` keeps those ids
packed as runs of consecutive numbers and makes token ids only when it is served: every token of a block carries the
block's id, so equal blocks are equal tokens. What the trace cannot identify (the rest of a partly filled last block, and
the answer) is the request's own: its tokens carry an id that no block and no other request has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Int64s: TypeAlias = NDArray[np.int64]


OWN_TOKENS = 1 << 40
"""Token ids from here on belong to one request each; block ids are below."""
NO_CHAIN = -1
NO_BLOCKS = np.empty(0, np.int64)
FEW_RUNS = 4
"""So many are joined one by one, which takes half the time of doing it for all at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a workload.

    Attributes:
        index: its place in arrival order, from zero.
        arrival_s: seconds after the workload's start, before any scaling.
        runs: int64, `[first id, count, first id, count, …]` of the prompt's whole blocks; ids are dense over the workload.
        block_tokens: tokens in a block.
        prompt_tokens, output_tokens: lengths of the prompt and of the answer.
        priority: for the policy of that name; higher stays longer.
        answer_runs: as `runs`, of the whole blocks behind those of the prompt, which end in the answer, where later prompts go
            on from it; else its tokens are nobody else's.
        chain: requests of one chain are turns of one agent, each arriving only after the one before has finished;
            `NO_CHAIN` for a request on its own.
        parent_chain: that of the agent that started this one, as a subagent; `NO_CHAIN` for none.
        namespace: whose it is; equal prompts of two share nothing.
        checkpoints: lengths at which later prompts are known to branch off; None for the end of what they can share.
    """

    index: int
    arrival_s: float
    runs: Int64s
    block_tokens: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    chain: int = NO_CHAIN
    parent_chain: int = NO_CHAIN
    answer_runs: Int64s | None = None
    checkpoints: tuple[int, ...] | None = None
    namespace: str = ""

    @property
    def shared_tokens(self) -> int:
        """Tokens in whole blocks: the only ones that another request may share."""
        return int(self.runs[1::2].sum()) * self.block_tokens

    @property
    def save_points(self) -> tuple[int, ...]:
        """Lengths at which to save what later prompts resume from."""
        if self.checkpoints is not None:
            return self.checkpoints
        shared_tokens = self.shared_tokens
        return (shared_tokens,) if shared_tokens else ()

    def blocks(self) -> Int64s:
        """The ids of the prompt's whole blocks, shape [blocks]."""
        return expand_runs(self.runs)

    def tokens(self, group_tokens: int = 1) -> Int64s:
        """Token ids of the prompt and then the answer, shape [prompt_tokens + output_tokens]. Cost: O(length), in numpy.

        Args:
            group_tokens: eight for one id a group of eight, as `packed_key` takes them; a block must be whole groups.
        """
        size = self.block_tokens // group_tokens
        ids = np.empty(-(-(self.prompt_tokens + self.output_tokens) // group_tokens), np.int64)
        blocks = self.blocks()
        if self.answer_runs is not None:
            blocks = np.concatenate((blocks, expand_runs(self.answer_runs)))
        end = blocks.size * size
        ids[:end].reshape(-1, size)[:] = blocks[:, np.newaxis]
        ids[end:] = OWN_TOKENS + self.index
        return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in arrival order.

    Attributes:
        name: what the report calls it.
        requests: by arrival, `requests[i].index == i`.
        block_count: all block ids are below it.
        parallel: requests out at the same time in a closed loop; None where they arrive at their times.
        notes: what the reader had to decide or leave out, one line each.
        tells_sharing: whether it says which prompts begin alike; False for lengths alone, of which no hit can be told.
    """

    name: str
    requests: tuple[Request, ...]
    block_count: int
    notes: tuple[str, ...] = ()
    parallel: int | None = None
    tells_sharing: bool = True

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.prompt_tokens for request in self.requests)


def expand_runs(runs: Int64s) -> Int64s:
    """`[start, count, …]` to the ids it stands for.

    >>> expand_runs(np.array([7, 3, 1, 2])).tolist()
    [7, 8, 9, 1, 2]
    """
    if runs.size <= 2 * FEW_RUNS:
        numbers = runs.tolist()
        parts = [np.arange(first, first + count) for first, count in zip(numbers[::2], numbers[1::2], strict=True)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else runs
    starts, counts = runs[::2], runs[1::2]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


def begins_run(ids: Int64s) -> NDArray[np.bool_]:
    """Which ids from the second on do not follow the one before. The least id follows none, though it is the largest plus one
    in 64 bits.
    """
    begins: NDArray[np.bool_] = (ids[1:] - 1 != ids[:-1]) | (ids[1:] < ids[:-1])
    return begins


def pack_runs(ids: Int64s) -> Int64s:
    """Ids to `[start, count, …]`, the inverse of `expand_runs`.

    >>> pack_runs(np.array([7, 8, 9, 1, 2])).tolist()
    [7, 3, 1, 2]
    """
    if ids.size == 0:
        return np.empty(0, np.int64)
    firsts = np.flatnonzero(np.concatenate(([True], begins_run(ids))))
    runs = np.empty(2 * firsts.size, np.int64)
    runs[::2] = ids[firsts]
    runs[1::2] = np.diff(firsts, append=ids.size)
    return runs


def cut_runs(runs: Int64s, count: int) -> Int64s:
    """The runs of the first `count` ids of `runs`; all of them if there are no more."""
    ends = np.cumsum(runs[1::2])
    if not ends.size or count >= ends[-1]:
        return runs
    if count <= 0:
        return np.empty(0, np.int64)
    last = int(np.searchsorted(ends, count))
    cut = runs[: 2 * (last + 1)].copy()
    cut[-1] -= ends[last] - count
    return cut


def runs_behind(runs: Int64s, count: int) -> Int64s | None:
    """The runs of the ids behind the first `count`; None if there are none."""
    ends = np.cumsum(runs[1::2])
    if not ends.size or ends[-1] <= count:
        return None
    at = int(np.searchsorted(ends, count, side="right"))
    rest = runs[2 * at :].copy()
    skipped = rest[1] - (ends[at] - count)
    rest[0] += skipped
    rest[1] -= skipped
    return rest


def in_arrival_order(requests: Iterable[Request]) -> tuple[Request, ...]:
    """The requests sorted by arrival (equal times keep their order) and numbered."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    return tuple(request if request.index == i else replace(request, index=i) for i, request in enumerate(ordered))


def mixed(workloads: Mapping[str, Workload]) -> Workload:
    """One workload of several, in arrival order, each in the namespace of its name. No two share blocks or chains.

    Raises TraceError for none, and for workloads of which one is a closed loop. Cost: one pass.
    """
    if not workloads:
        raise TraceError("a mix needs workloads")
    closed = [name for name, workload in workloads.items() if workload.parallel is not None]
    if closed and len(workloads) > 1:
        raise TraceError(f"{closed[0]!r} is a closed loop, whose requests have no times: it cannot be mixed")
    requests: list[Request] = []
    blocks = chains = 0
    for name, workload in workloads.items():
        requests += _apart(workload, name, blocks, chains)
        blocks += workload.block_count
        chains += 1 + max((max(request.chain, request.parent_chain) for request in workload.requests), default=0)
    return Workload(
        name=" + ".join(workload.name for workload in workloads.values()),
        requests=in_arrival_order(requests),
        block_count=blocks,
        notes=tuple(f"{name or 'no group'}: {note}" for name, each in workloads.items() for note in each.notes),
        parallel=next(iter(workloads.values())).parallel,
        tells_sharing=all(workload.tells_sharing for workload in workloads.values()),
    )


def isolated(workload: Workload) -> Workload:
    """The same requests; equal blocks of two namespaces have two numbers. Cost: a sort of the blocks of all prompts."""
    spaces: dict[str, int] = {}
    for request in workload.requests:
        spaces.setdefault(request.namespace, len(spaces))
    if len(spaces) < 2:
        return workload
    lists = [each for request in workload.requests for each in _lists_of(request)]
    owners = np.array([spaces[request.namespace] for request in workload.requests for _ in _lists_of(request)], np.int64)
    blocks = [expand_runs(each) for each in lists]
    sizes = np.array([each.size for each in blocks], np.int64)
    names = np.repeat(owners, sizes) * workload.block_count + np.concatenate(blocks)
    unique, numbers = np.unique(names, return_inverse=True)
    parts = iter([pack_runs(part) for part in np.split(numbers.astype(np.int64), np.cumsum(sizes)[:-1])])
    requests = tuple(
        replace(request, runs=next(parts), answer_runs=None if request.answer_runs is None else next(parts))
        for request in workload.requests
    )
    return replace(workload, requests=requests, block_count=unique.size)


def _lists_of(request: Request) -> tuple[Int64s, ...]:
    return (request.runs,) if request.answer_runs is None else (request.runs, request.answer_runs)


def _apart(workload: Workload, name: str, blocks: int, chains: int) -> Iterator[Request]:
    """The requests of a workload, with numbers of their own."""
    for request in workload.requests:
        yield replace(
            request,
            namespace=name,
            runs=_shifted(request.runs, blocks),
            answer_runs=None if request.answer_runs is None else _shifted(request.answer_runs, blocks),
            chain=_moved(request.chain, chains),
            parent_chain=_moved(request.parent_chain, chains),
        )


def _moved(chain: int, chains: int) -> int:
    return NO_CHAIN if chain == NO_CHAIN else chain + chains


def _shifted(runs: Int64s, blocks: int) -> Int64s:
    shifted = runs.copy()
    shifted[::2] += blocks
    return shifted
