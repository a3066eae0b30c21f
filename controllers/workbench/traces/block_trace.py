"""Block traces (Mooncake's format): one request a line, block ids shared by the whole file.

`timestamp` (ms), `input_length`, `output_length`, `hash_ids`: one id per block of 512 tokens. In Mooncake's files the ids count
the partly filled last block too. Its id stands for fewer tokens than a block and nobody can tell which, so only the
`input_length // block` whole blocks are shared; the rest of the prompt is the request's own. A line with fewer ids than
that has a longer rest of its own; ids past the prompt's end are left out and noted, and so is what follows where one is there
a second time, for an id stands for a block and all that come before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.workload import (
    Request,
    Workload,
    cut_runs,
    expand_runs,
    in_arrival_order,
    pack_runs,
    until_repeated,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import Record
    from unified_tree.controllers.workbench.traces.workload import Int64s


MOONCAKE_BLOCK_TOKENS = 512
INFERENCE_LINES = 256


@dataclass(frozen=True, slots=True)
class _Line:
    timestamp_s: float
    prompt_tokens: int
    output_tokens: int
    runs: Int64s
    block_tokens: int | None

    @property
    def id_count(self) -> int:
        return int(self.runs[1::2].sum())


def is_block_record(record: Record) -> bool:
    """Whether a trace's first object is a line of a block trace."""
    return not {"timestamp", "input_length", "hash_ids"}.isdisjoint(record.fields)


def read_block_trace(
    name: str, records: Iterable[Record], *, block_tokens: int | None = None, most: int | None = None
) -> Workload:
    """The workload of a block trace; arrivals count from its first request.

    Args:
        block_tokens: tokens in a block; None for a line's `block_size` or else 512, or, where the first lines list more ids
            than 512-token blocks fit, the power of two that their lengths agree with.
        most: read so many requests and no more.

    Raises TraceError with file and line for a missing field, a wrong type or a negative number.
    """
    lines = [_read_line(record) for record in islice(records, most)]
    inferred = block_tokens or _infer_block_tokens(lines[:INFERENCE_LINES])
    sizes = [block_tokens or line.block_tokens or inferred for line in lines]
    whole = [cut_runs(line.runs, line.prompt_tokens // size) for line, size in zip(lines, sizes, strict=True)]
    shared = [until_repeated(runs) for runs in whole]
    dense, block_count = densify(shared, 0)
    first_s = min((line.timestamp_s for line in lines), default=0.0)
    requests, surplus = [], 0
    for i, (line, size, runs) in enumerate(zip(lines, sizes, dense, strict=True)):
        surplus += line.id_count > -(-line.prompt_tokens // size)
        requests.append(
            Request(
                index=i,
                arrival_s=line.timestamp_s - first_s,
                runs=runs,
                block_tokens=size,
                prompt_tokens=line.prompt_tokens,
                output_tokens=line.output_tokens,
            )
        )
    notes = [f"blocks of {inferred} tokens"]
    if surplus:
        notes.append(f"{surplus} requests list more blocks than their prompt holds; the surplus was left out")
    repeated = sum(kept is not runs for kept, runs in zip(shared, whole, strict=True))
    if repeated:
        notes.append(f"{repeated} requests list a block twice; from there on their blocks were left out")
    return Workload(name=name, requests=in_arrival_order(requests), block_count=block_count, notes=tuple(notes))


def _read_line(record: Record) -> _Line:
    return _Line(
        timestamp_s=record.seconds("timestamp", per_second=1000),
        prompt_tokens=record.integer("input_length"),
        output_tokens=record.integer("output_length"),
        runs=record.block_runs(),
        block_tokens=record.integer("block_size", minimum=1) if "block_size" in record.fields else None,
    )


def _infer_block_tokens(lines: list[_Line]) -> int:
    """512, or the largest smaller power of two whose blocks are as many as most of these lines list."""
    size = MOONCAKE_BLOCK_TOKENS
    while size > 1 and 2 * sum(line.id_count > -(-line.prompt_tokens // size) for line in lines) > len(lines):
        size //= 2
    return size


SLACK_IDS = 1 << 16


def densify(scope: Sequence[Int64s], base: int) -> tuple[list[Int64s], int]:
    """Renumber the ids of one scope (a file, a session) from `base` on; ids that are dense already are only shifted.

    Args:
        scope: runs, one array a request; equal ids anywhere in the scope are equal blocks.
        base: the first id that no earlier scope uses.

    Returns the new runs and the first id that is free after them. Cost: O(runs), or a sort of the ids where they are sparse
    (64-bit hashes, say).
    """
    listed = sum(int(runs[1::2].sum()) for runs in scope)
    highest = max((int((runs[::2] + runs[1::2]).max()) for runs in scope if runs.size), default=0)
    if 0 <= highest <= 4 * listed + SLACK_IDS:
        return [_shift(runs, base) for runs in scope], base + highest
    ids = [expand_runs(runs) for runs in scope]
    unique, dense = np.unique(np.concatenate(ids), return_inverse=True)
    cuts = np.cumsum([part.size for part in ids])[:-1]
    return [_shift(pack_runs(part), base) for part in np.split(dense.astype(np.int64), cuts)], base + unique.size


def _shift(runs: Int64s, base: int) -> Int64s:
    if base == 0:
        return runs
    shifted = runs.copy()
    shifted[::2] += base
    return shifted
