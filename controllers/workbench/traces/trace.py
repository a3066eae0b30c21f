"""Reading a trace of a kind found out from its content."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.block_trace import is_block_record, read_block_trace
from unified_tree.controllers.workbench.traces.session_trace import is_session_record, read_session_trace
from unified_tree.controllers.workbench.traces.trace_records import read_records
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from os import PathLike

    from unified_tree.controllers.workbench.traces.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How to read a trace.

    Attributes:
        block_tokens: tokens in a block; None for what the trace says, or 512 for a block trace that does not.
        max_requests: read no more than so many requests; None for all.
        session_gap_s: mean seconds between the starts of two sessions (session traces only).
        seed: of the sessions' starts.
    """

    block_tokens: int | None = None
    max_requests: int | None = None
    session_gap_s: float = 30.0
    seed: int = 0


def read_trace(path: str | PathLike[str], options: TraceOptions | None = None) -> Workload:
    """Read a block trace or a session trace, plain or gzip; which of them it is shows in its first object.

    Raises TraceError, `FILE:LINE: what is wrong`, for a file that cannot be read, is of neither kind, has a line that is not
    JSON, misses a field or holds a wrong one, or has no requests. Cost: one pass; memory is O(runs of block ids).
    """
    options = options or TraceOptions()
    records = read_records(Path(path))
    first = next(records, None)
    if first is None:
        raise TraceError(f"{path}: holds no requests; a trace is one JSON object a line")
    records = chain((first,), records)
    name = printable(Path(path).name)
    if is_session_record(first):
        workload = read_session_trace(
            name,
            records,
            block_tokens=options.block_tokens,
            most=options.max_requests,
            session_gap_s=options.session_gap_s,
            seed=options.seed,
        )
    elif is_block_record(first):
        workload = read_block_trace(name, records, block_tokens=options.block_tokens, most=options.max_requests)
    else:
        raise first.error(
            "is of no known kind (a block trace has timestamp, input_length, output_length, hash_ids; a session has requests)",
            list(first.fields),
        )
    if not workload.requests:
        raise TraceError(f"{path}: holds no requests")
    return workload
