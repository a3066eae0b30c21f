"""Reading a trace of a format found out from its content."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.block_trace import BAILIAN, DYNAMO, MOONCAKE
from unified_tree.controllers.workbench.traces.chat_log import BATCH, CHAT_LOG, LMCACHE, PROMPTS, SAGEMAKER, SINGLE_TURNS
from unified_tree.controllers.workbench.traces.conversations import CLAUDE_CODE, MULTI_TURNS, SHARE_GPT
from unified_tree.controllers.workbench.traces.kv_events import KV_EVENTS
from unified_tree.controllers.workbench.traces.lengths_trace import AZURE, BENCH_RESULTS, BURST_GPT, LENGTHS
from unified_tree.controllers.workbench.traces.session_trace import SESSIONS
from unified_tree.controllers.workbench.traces.trace_files import read_records
from unified_tree.controllers.workbench.traces.trace_records import TraceOptions, plain
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceFormat
    from unified_tree.controllers.workbench.traces.workload import Workload

__all__ = ["FORMATS", "TraceOptions", "read_trace"]

FORMATS: tuple[TraceFormat, ...] = (
    DYNAMO,
    KV_EVENTS,
    SESSIONS,
    BAILIAN,
    MOONCAKE,
    BURST_GPT,
    AZURE,
    BENCH_RESULTS,
    SAGEMAKER,
    CLAUDE_CODE,
    BATCH,
    LMCACHE,
    SHARE_GPT,
    MULTI_TURNS,
    SINGLE_TURNS,
    CHAT_LOG,
    PROMPTS,
    LENGTHS,
)
"""The first that matches reads a file."""
FIRST_RECORDS = 32
"""A format may look at so many of them."""


def read_trace(
    path: str | PathLike[str], options: TraceOptions | None = None, progress: Callable[[int], None] | None = None
) -> Workload:
    """Read a trace, plain or compressed; its format shows in its first records. `FORMATS` are known.

    Args:
        progress: see `read_records`.

    Raises TraceError, `FILE:LINE: what is wrong`, for a file that cannot be read, is of no known format, has a line that cannot
    be parsed, misses a field or holds a wrong one, or has no requests. Cost: one pass; memory is O(runs of block ids).
    """
    options = options or TraceOptions()
    records = read_records(Path(path), progress)
    first = list(islice(records, min(FIRST_RECORDS, options.max_requests or FIRST_RECORDS)))
    if not first:
        raise TraceError(f"{path}: holds no requests; a trace is one JSON object a line")
    found = next((each for each in FORMATS if each.matches(first)), None)
    if found is None:
        raise first[0].error(_nearest(first[0]), list(first[0].fields))
    workload = found.read(printable(Path(path).name), chain(first, records), options)
    if not workload.requests:
        raise TraceError(f"{path}: holds no requests")
    span_s = workload.requests[-1].arrival_s - workload.requests[0].arrival_s
    notes = (f"read as {found.name}; the last request arrives {span_s:,.6g} s after the first", *workload.notes)
    return replace(workload, notes=notes)


def _nearest(record: Record) -> str:
    """The format nearest to a record that is of no format, in words."""
    given = list(record.fields)

    def likeness(form: TraceFormat) -> float:
        missing = _missing(form, given)
        found = len(form.fields) - sum(0.1 if near else 1.0 for near in missing.values())
        return found / (len(given) + len(form.fields) - found)

    best = max((form for form in FORMATS if not record.has_blocks or "hash_ids" in form.fields), key=likeness)
    columns = _columns_of_lengths(given) if record.is_flat else {}
    if {"input_length", "output_length"} <= columns.keys() and not any(form.fields[0] in given for form in FORMATS):
        names = ", ".join(f"{printable(given_name, 30)} to {name}" for name, given_name in columns.items())
        return f"is of no known format; nearest is {LENGTHS.name} (timestamp in milliseconds): rename {names}; it has"
    if likeness(best) <= 0:
        return "has no field of any trace (docs/traces.md lists the formats); it has"
    missing = _missing(best, given)
    if missing:
        names = ", ".join(f"{name} (but with {printable(near, 30)})" if near else name for name, near in missing.items())
        return f"is of no known format; nearest is {best.name}, without {names}; it has"
    return f"is nearly of the format {best.name}, but {', '.join(best.fields)} hold something else; it has"


def _missing(form: TraceFormat, given: Sequence[str]) -> dict[str, str | None]:
    """The fields of a format that are not given, each with a given one that is spelled nearly so, if there is one."""
    others = {plain(name): name for name in given if name not in form.fields and isinstance(name, str)}
    near = {name: get_close_matches(plain(name), others, 1, 0.8) for name in form.fields if name not in given}
    return {name: others[found[0]] if found else None for name, found in near.items()}


WORDS = {
    "input_length": {"prompt", "input", "context", "prefill", "request"},
    "output_length": {"completion", "output", "generated", "decode", "response", "answer"},
    "timestamp": {"timestamp", "time", "arrival", "arrived", "arrive", "start", "date"},
}
"""By which a column of lengths or times is known, whatever it is called."""
COUNTS = {"tokens", "token", "length", "len", "size", "count"}


def _columns_of_lengths(given: Sequence[object]) -> dict[str, str]:
    """Of a table the columns that seem to hold what a trace of lengths needs, by their names there."""
    found: dict[str, str] = {}
    for name in given:
        words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)} if isinstance(name, str) else set()
        for needed, known in WORDS.items():
            if words & known and (needed == "timestamp" or words & COUNTS):
                found.setdefault(needed, str(name))
    return {needed: found[needed] for needed in WORDS if found.get(needed, needed) != needed}
