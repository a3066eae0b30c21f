"""Traces of lengths alone: when requests came and how long they were, and nothing on what they said.

BurstGPT and Azure publish such traces as CSV; the benchmarks of vLLM and SGLang write the lengths of their requests, random
ones or sets with shared prefixes alike, into their results. Which prompts begin alike is not in them. So every prompt is taken
for one of its own, and nothing hits: they can say what the requests that run take, and nothing on what a cache brings.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.trace_records import Clock, Record, TraceFormat
from unified_tree.controllers.workbench.traces.workload import Request, Workload, in_arrival_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import TraceOptions

NO_SHARING = "it holds lengths alone: every prompt is taken for its own and nothing hits; it cannot say what a cache brings"
BLOCK_TOKENS = 1


def _rows(time: str, prompt: str, answer: str) -> Callable[[Iterable[Record], Clock], Iterator[tuple[float, int, int]]]:
    """A reader of rows with these columns: the time in seconds, and the lengths of prompt and answer."""

    def read(records: Iterable[Record], clock: Clock) -> Iterator[tuple[float, int, int]]:
        for record in records:
            time_s = clock.seconds(record, time) if time in record.fields else 0.0
            yield time_s, record.integer(prompt), record.integer(answer) if answer in record.fields else 0

    return read


def _results(records: Iterable[Record], clock: Clock) -> Iterator[tuple[float, int, int]]:
    """The requests of the results of benchmarks; runs follow one another."""
    begin_s = 0.0
    for record in records:
        prompts, answers = record.items("input_lens"), record.items("output_lens")
        times = record.fields.get("start_times")
        if len(answers) != len(prompts) or (times is not None and (not isinstance(times, list) or len(times) != len(prompts))):
            raise record.inner("output_lens").error(f"must be as many as input_lens, {len(prompts)}", answers)
        rows = [
            Record({"start_times": at, "input_lens": prompt, "output_lens": answer}, record.where, f"[{i}]")
            for i, (at, prompt, answer) in enumerate(zip(times or [0.0] * len(prompts), prompts, answers, strict=True))
        ]
        seconds = [clock.seconds(row, "start_times") if times else 0.0 for row in rows]
        first_s = min(seconds, default=0.0)
        for row, at_s in zip(rows, seconds, strict=True):
            yield begin_s + at_s - first_s, row.integer("input_lens"), row.integer("output_lens")
        duration_s = clock.duration(record, "duration") if "duration" in record.fields else 0.0
        begin_s += max([duration_s, *(at_s - first_s for at_s in seconds)])


def _format(
    name: str,
    fields: tuple[str, ...],
    time: str,
    unit: str,
    matches: Callable[[Sequence[Record]], bool],
    rows: Callable[[Iterable[Record], Clock], Iterator[tuple[float, int, int]]],
) -> TraceFormat:
    def read(file: str, records: Iterable[Record], options: TraceOptions) -> Workload:
        clock = Clock(options.clock_unit, unit, time)
        lengths = list(islice(rows(records, clock), options.max_requests))
        first_s = min((time_s for time_s, _, _ in lengths), default=0.0)
        requests = in_arrival_order(
            Request(
                index=i,
                arrival_s=time_s - first_s,
                runs=np.empty(0, np.int64),
                block_tokens=BLOCK_TOKENS,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
            )
            for i, (time_s, prompt_tokens, output_tokens) in enumerate(lengths)
        )
        when = clock.note(f"as {name} have it") if clock.was_read else "it has no clock: the requests of a run come all at once"
        return Workload(name=file, requests=requests, block_count=0, notes=(NO_SHARING, when), tells_sharing=False)

    return TraceFormat(name=name, fields=fields, clock=f"{time}, {unit}", matches=matches, read=read)


def _has(*names: str) -> Callable[[Sequence[Record]], bool]:
    return lambda records: records[0].has(*names)


BURST_GPT = _format(
    "BurstGPT traces",
    ("Timestamp", "Request tokens", "Response tokens"),
    "Timestamp",
    "s",
    _has("Timestamp", "Request tokens", "Response tokens"),
    _rows("Timestamp", "Request tokens", "Response tokens"),
)
AZURE = _format(
    "Azure LLM inference traces",
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "TIMESTAMP",
    "s",
    _has("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _rows("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)
BENCH_RESULTS = _format(
    "results of vLLM's and SGLang's benchmarks",
    ("input_lens", "output_lens"),
    "start_times",
    "s",
    _has("input_lens", "output_lens"),
    _results,
)
LENGTHS = _format(
    "lengths without hash_ids",
    ("input_length", "output_length"),
    "timestamp",
    "ms",
    lambda records: records[0].has("input_length", "output_length") and not records[0].has_blocks,
    _rows("timestamp", "input_length", "output_length"),
)
