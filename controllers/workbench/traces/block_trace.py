"""Block traces: one request a line, with its lengths and one id per block of its prompt, shared by the whole file.

Mooncake's files are the model: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`, blocks of 512 tokens. Others
write the same with changes. Bailian's have `chat_id`, `parent_chat_id`, a `timestamp` in seconds and blocks of 16 tokens;
aiperf's have `session_id` and a `delay` (ms) instead of the time; kvcache-simulator's need `block_size` and no time at all.

The ids often count the partly filled last block too. Its id stands for fewer tokens than a block and nobody can tell which, so
only the `input_length // block` whole blocks are shared; the rest of the prompt is the request's own. A line with fewer ids
than that has a longer rest of its own; ids past the prompt's end are left out and noted. A recorder may also tell the blocks
that end in the answer, as `output_hash_ids`.

Dynamo's request traces (`dynamo.request.trace.v1`) have one event a line, of which the ends of requests are read. A
`request_end` has in `request.replay` the `trace_block_size`, the `input_length` and the `input_sequence_hashes`: unsigned
64-bit hashes, each of a block and all before it. `request_received_ms` is when the request came, in milliseconds since 1970;
without it `event_time_unix_ms` minus `total_time_ms`, or that alone. Requests of one trajectory (or session) follow one
another.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.block_ids import BlockLists
from unified_tree.controllers.workbench.traces.trace_records import Clock, Starts, TraceFormat
from unified_tree.controllers.workbench.traces.workload import (
    NO_CHAIN,
    Request,
    Workload,
    cut_runs,
    in_arrival_order,
    runs_behind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions


MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
INFERENCE_LINES = 256
IN_FILE_ORDER = 0
"""The chain of a file without a clock: each request arrives when the one before has ended."""


class _Lines:
    """The lines of a file, column by column."""

    def __init__(self, clock: Clock, starts: Starts) -> None:
        self.clock = clock
        self.starts = starts
        self.blocks = BlockLists()
        self.times: list[float] = []
        self.prompt_tokens: list[int] = []
        self.output_tokens: list[int] = []
        self.block_tokens: list[int] = []
        """0 where a line does not say."""
        self.has_answer: list[bool] = []
        """Whether the blocks go on with those that end in the answer."""
        self.chains: list[int] = []
        self.tenants: list[str] = []
        self.has_delays = self.has_starts = False
        self._chain_of: dict[object, int] = {}
        self._time_of: dict[int, float] = {}

    def read(self, records: Iterable[Record]) -> None:
        """All of the records."""
        for record in records:
            chain = self._chain(record)
            time_s = self._time(record, chain)
            self.chains.append(chain)
            self.tenants.append(str(record.key("tenant")) if "tenant" in record.fields else "")
            self.times.append(time_s)
            self.prompt_tokens.append(record.integer("input_length"))
            self.output_tokens.append(record.integer("output_length") if "output_length" in record.fields else 0)
            self.block_tokens.append(record.integer("block_size", 1) if "block_size" in record.fields else 0)
            self.has_answer.append(self._add_blocks(record))

    def _add_blocks(self, record: Record) -> bool:
        """The blocks of a prompt, and of its answer where they are told. Whether they are."""
        size = self.block_tokens[-1]
        if size and "output_hash_ids" in record.fields and "hash_ids" in record.fields:
            prompt = record.items("hash_ids")
            if len(prompt) == self.prompt_tokens[-1] // size:
                self.blocks.add_list([*prompt, *record.items("output_hash_ids")], record, "output_hash_ids")
                return True
        self.blocks.add(record)
        return False

    def _chain(self, record: Record) -> int:
        fields = record.fields
        if "session_id" in fields:
            return self._chain_of.setdefault(record.key("session_id"), len(self._chain_of))
        if "chat_id" in fields and "parent_chat_id" in fields:
            chat, parent = ("chat", record.key("chat_id")), ("chat", record.key("parent_chat_id"))
            chain = self._chain_of.get(parent)
            if chain is None:
                chain = len(self._chain_of)
            self._chain_of[chat] = chain
            return chain
        return NO_CHAIN

    def _time(self, record: Record, chain: int) -> float:
        if "timestamp" in record.fields:
            time_s = self.clock.seconds(record, "timestamp")
        elif chain in self._time_of:
            time_s = self._time_of[chain]
            if "delay" in record.fields:
                self.has_delays = True
                time_s += self.clock.duration(record, "delay")
        else:
            self.clock.untimed(record, "timestamp")
            self.has_starts |= chain != NO_CHAIN
            time_s = 0.0 if chain == NO_CHAIN else self.starts.next()
        if chain != NO_CHAIN:
            self._time_of[chain] = time_s
        return time_s


def _read(
    name: str, records: Iterable[Record], options: TraceOptions, *, unit: str, why: str, own_block_tokens: int | None = None
) -> Workload:
    clock = Clock(options.clock_unit, unit)
    lines = _Lines(clock, Starts(options))
    lines.read(islice(records, options.max_requests))
    prompts, counts = np.array(lines.prompt_tokens, np.int64), lines.blocks.counts()
    default = options.block_tokens or own_block_tokens or _infer_block_tokens(prompts, counts)
    stated = np.array(lines.block_tokens, np.int64)
    sizes = np.full_like(stated, default) if options.block_tokens else np.where(stated > 0, stated, default)
    has_answer = np.array(lines.has_answer, np.bool_) & (sizes == stated)
    known = prompts + np.where(has_answer, np.array(lines.output_tokens, np.int64), 0)
    runs, block_count = lines.blocks.numbered(known // sizes, 0)
    is_timed = clock.was_read or lines.has_starts
    first_s = min(lines.times, default=0.0)
    requests = [
        Request(
            index=i,
            arrival_s=time_s - first_s,
            runs=cut_runs(blocks, prompt_tokens // size) if answered else blocks,
            answer_runs=runs_behind(blocks, prompt_tokens // size) if answered else None,
            block_tokens=size,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            chain=chain if is_timed else IN_FILE_ORDER,
            namespace=tenant,
        )
        for i, (time_s, blocks, size, prompt_tokens, output_tokens, chain, tenant, answered) in enumerate(
            zip(
                lines.times,
                runs,
                sizes.tolist(),
                lines.prompt_tokens,
                lines.output_tokens,
                lines.chains,
                lines.tenants,
                has_answer.tolist(),
                strict=True,
            )
        )
    ]
    notes = [f"blocks of {', '.join(map(str, np.unique(sizes).tolist()))} tokens"]
    if not is_timed:
        notes.append("it has no clock: each request arrives when the one before has ended")
    notes += [clock.note(why)] if clock.was_read else []
    notes += [lines.starts.note] if lines.has_starts else []
    notes += [clock.note(why, "delay")] if lines.has_delays else []
    surplus = int((counts > -(-known // sizes)).sum())
    if surplus:
        notes.append(f"{surplus} requests list more blocks than their prompt holds; the surplus was left out")
    return Workload(name=name, requests=in_arrival_order(requests), block_count=block_count, notes=tuple(notes))


def _infer_block_tokens(prompts: np.ndarray, counts: np.ndarray) -> int:
    """512, or the largest smaller power of two whose blocks are as many as most of the first lines list."""
    prompts, counts = prompts[:INFERENCE_LINES], counts[:INFERENCE_LINES]
    size = MOONCAKE_BLOCK_TOKENS
    while size > 1 and 2 * int((counts > -(-prompts // size)).sum()) > counts.size:
        size //= 2
    return size


BAILIAN = TraceFormat(
    name="Bailian traces",
    fields=("chat_id", "parent_chat_id", "timestamp", "input_length", "hash_ids"),
    clock="timestamp, seconds",
    matches=lambda records: records[0].has("chat_id", "parent_chat_id", "hash_ids"),
    read=partial(_read, unit="s", why="as Bailian's traces have it", own_block_tokens=BAILIAN_BLOCK_TOKENS),
)
MOONCAKE = TraceFormat(
    name="block traces (Mooncake)",
    fields=("input_length", "hash_ids"),
    clock="timestamp, milliseconds; or session_id with delay, milliseconds; or none",
    matches=lambda records: "hash_ids" in records[0].fields or records[0].has("timestamp", "input_length", "hash_runs"),
    read=partial(_read, unit="ms", why="as Mooncake's traces have it"),
)


SCHEMA = "dynamo.request.trace"
END = "request_end"
TRAJECTORY = ("trajectory_id", "session_id")
DEFAULT_BLOCK_TOKENS = 16


def _dynamo_event(record: Record) -> Record:
    """The event itself, which some sinks put into an envelope."""
    return record.record("event") if isinstance(record.fields.get("event"), dict) else record


def _read_dynamo(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    clock = Clock(options.clock_unit, "ms", "request_received_ms")
    blocks, chains = BlockLists(), dict[object, int]()
    rows: list[tuple[float, int, int, int, int]] = []
    others = without = 0
    for record in records:
        event = _dynamo_event(record)
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
        rows.append((time_s, prompt_tokens, output_tokens, options.block_tokens or size, _trajectory(event, chains)))
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


def _trajectory(event: Record, chains: dict[object, int]) -> int:
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
    matches=lambda records: any(str(_dynamo_event(record).fields.get("schema", "")).startswith(SCHEMA) for record in records),
    read=_read_dynamo,
)
