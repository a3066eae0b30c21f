"""Dynamo's request traces (`dynamo.request.trace.v1`): one event a line, of which the ends of requests are read.

A `request_end` has in `request.replay` the `trace_block_size`, the `input_length` and the `input_sequence_hashes`: unsigned
64-bit hashes, each of a block and all before it. `request_received_ms` is when the request came, in milliseconds since 1970;
without it `event_time_unix_ms` minus `total_time_ms`, or that alone. Requests of one trajectory (or session) follow one
another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.block_ids import BlockLists
from unified_tree.controllers.workbench.traces.clock import Clock
from unified_tree.controllers.workbench.traces.trace_records import TraceFormat
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload, in_arrival_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions

SCHEMA = "dynamo.request.trace"
END = "request_end"
TRAJECTORY = ("trajectory_id", "session_id")
DEFAULT_BLOCK_TOKENS = 16


def _event(record: Record) -> Record:
    """The event itself, which some sinks put into an envelope."""
    return record.record("event") if isinstance(record.fields.get("event"), dict) else record


def _matches(records: Sequence[Record]) -> bool:
    events = [_event(record).fields for record in records]
    return any(str(event.get("schema", "")).startswith(SCHEMA) for event in events)


def _read(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    clock = Clock(options.clock_unit, "ms", "request_received_ms")
    blocks, chains = BlockLists(), dict[object, int]()
    rows: list[tuple[float, int, int, int, int]] = []
    others = without = 0
    for record in records:
        event = _event(record)
        if event.fields.get("event_type") != END:
            others += 1
            continue
        if options.max_requests is not None and len(rows) >= options.max_requests:
            break
        request = event.record("request")
        time_s = _received(event, request, clock)
        output_tokens = request.integer("output_tokens") if "output_tokens" in request.fields else 0
        if "replay" in request.fields:
            replay = request.record("replay")
            blocks.add(replay, "input_sequence_hashes")
            prompt_tokens, size = replay.integer("input_length"), replay.integer("trace_block_size", 1)
        else:
            without += 1
            blocks.add_list([], request, "replay")
            prompt_tokens, size = request.integer("input_tokens"), DEFAULT_BLOCK_TOKENS
        rows.append((time_s, prompt_tokens, output_tokens, options.block_tokens or size, _chain(event, chains)))
    prompts, sizes = (np.array([row[column] for row in rows], np.int64) for column in (1, 3))
    runs, block_count = blocks.numbered(prompts // sizes, 0)
    first_s = min((row[0] for row in rows), default=0.0)
    requests = in_arrival_order(
        Request(
            index=i,
            arrival_s=time_s - first_s,
            runs=listed,
            block_tokens=size,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            chain=chain,
        )
        for i, ((time_s, prompt_tokens, output_tokens, size, chain), listed) in enumerate(zip(rows, runs, strict=True))
    )
    notes = [f"blocks of {', '.join(map(str, np.unique(sizes).tolist()))} tokens", clock.note("as Dynamo has it")]
    if others:
        notes.append(f"events that end no request, left out: {others}")
    if without:
        notes.append(f"requests without replay hashes, whose prompts are taken for their own: {without}")
    return Workload(name=name, requests=requests, block_count=block_count, notes=tuple(notes))


def _received(event: Record, request: Record, clock: Clock) -> float:
    if "request_received_ms" in request.fields:
        return clock.seconds(request, "request_received_ms")
    end_s = clock.seconds(event, "event_time_unix_ms")
    return max(0.0, end_s - clock.duration(request, "total_time_ms")) if "total_time_ms" in request.fields else end_s


def _chain(event: Record, chains: dict[object, int]) -> int:
    """The chain of an event's trajectory."""
    if "agent_context" not in event.fields:
        return NO_CHAIN
    context = event.record("agent_context")
    name = next((name for name in TRAJECTORY if name in context.fields), None)
    return NO_CHAIN if name is None else chains.setdefault(context.text(name), len(chains))


DYNAMO = TraceFormat(
    name="Dynamo request traces",
    fields=("schema", "event_type", "request"),
    clock="request_received_ms, milliseconds since 1970",
    matches=_matches,
    read=_read,
)
