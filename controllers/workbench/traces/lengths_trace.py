"""Traces of lengths alone: when requests came and how long they were, and nothing on what they said.

BurstGPT and Azure publish such traces as CSV; the benchmarks of vLLM and SGLang write the lengths of their requests, random
ones or sets with shared prefixes alike, into their results. Which prompts begin alike is not in them. So every prompt is taken
for one of its own, and nothing hits: they can say what the requests that run take, and nothing on what a cache brings.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from unified_tree.controllers.workbench.traces.trace_records import Clock, Record, TraceFormat
from unified_tree.controllers.workbench.traces.workload import NO_BLOCKS, Request, Workload, in_arrival_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import TraceOptions

    Row = tuple[float, int, int]
    """Of a request the time in seconds, and the lengths of prompt and answer."""

NO_SHARING = "it holds lengths alone: every prompt is taken for its own and nothing hits; it cannot say what a cache brings"
BLOCK_TOKENS = 1


def _rows(records: Iterable[Record], clock: Clock, time: str, prompt: str, answer: str) -> Iterator[Row]:
    """The requests of rows with these columns."""
    for record in records:
        time_s = 0.0
        if time in record.fields:
            time_s = clock.seconds(record, time)
        else:
            clock.untimed(record, time)
        yield time_s, record.integer(prompt), record.integer(answer) if answer in record.fields else 0


def _results(records: Iterable[Record], clock: Clock, time: str, prompt: str, answer: str) -> Iterator[Row]:
    """The requests of the results of benchmarks; runs follow one another."""
    begin_s = 0.0
    for record in records:
        prompts, answers, times = record.items(prompt), record.items(answer), record.fields.get(time)
        if len(answers) != len(prompts) or (times is not None and (not isinstance(times, list) or len(times) != len(prompts))):
            raise record.inner(answer).error(f"must be as many as {prompt}, {len(prompts)}", answers)
        rows = [
            Record({time: at, prompt: asked, answer: said}, record.where, f"[{i}]")
            for i, (at, asked, said) in enumerate(zip(times or [0.0] * len(prompts), prompts, answers, strict=True))
        ]
        seconds = [clock.seconds(row, time) if times else 0.0 for row in rows]
        first_s = min(seconds, default=0.0)
        for row, at_s in zip(rows, seconds, strict=True):
            yield begin_s + at_s - first_s, row.integer(prompt), row.integer(answer)
        duration_s = clock.duration(record, "duration") if "duration" in record.fields else 0.0
        begin_s += max([duration_s, *(at_s - first_s for at_s in seconds)])


def _format(
    name: str, fields: tuple[str, ...], time: str, unit: str, rows: Callable[..., Iterator[Row]] = _rows
) -> TraceFormat:
    """A format whose last two fields are the lengths of prompt and answer."""

    def read(file: str, records: Iterable[Record], options: TraceOptions) -> Workload:
        clock = Clock(options.clock_unit, unit, time)
        lengths = list(islice(rows(records, clock, time, *fields[-2:]), options.max_requests))
        first_s = min((time_s for time_s, _, _ in lengths), default=0.0)
        requests = in_arrival_order(
            Request(
                index=i,
                arrival_s=time_s - first_s,
                runs=NO_BLOCKS,
                block_tokens=BLOCK_TOKENS,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
            )
            for i, (time_s, prompt_tokens, output_tokens) in enumerate(lengths)
        )
        when = clock.note(f"as {name} have it") if clock.was_read else "it has no clock: the requests of a run come all at once"
        return Workload(name=file, requests=requests, block_count=0, notes=(NO_SHARING, when), tells_sharing=False)

    def matches(records: Sequence[Record]) -> bool:
        return records[0].has(*fields) and not records[0].has_blocks

    return TraceFormat(name=name, fields=fields, clock=f"{time}, {unit}", matches=matches, read=read)


BURST_GPT = _format("BurstGPT traces", ("Timestamp", "Request tokens", "Response tokens"), "Timestamp", "s")
AZURE = _format("Azure LLM inference traces", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "TIMESTAMP", "s")
BENCH_RESULTS = _format(
    "results of vLLM's and SGLang's benchmarks", ("input_lens", "output_lens"), "start_times", "s", _results
)
LENGTHS = _format("lengths without hash_ids", ("input_length", "output_length"), "timestamp", "ms")
