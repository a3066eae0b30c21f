"""Recordings of the KV events that vLLM and SGLang publish: batches of BlockStored, BlockRemoved and AllBlocksCleared.

A batch has `ts` (seconds) and `events`, as an object or as an array `[ts, events, rank]`; an event is an object with its
`type`, or an array that begins with it. Events by themselves, one a line, are read too.

Events say what was computed and not what was asked. An event stores blocks behind a parent: a prompt is the way from the root
to the last of them. Chunks of one prompt, and the blocks of its answer, come as events that go on from one another; within two
seconds they are taken for one request, and all of it for its prompt. A prompt that was found whole left no event. So fewer
requests are read than there were, and their hits are a lower bound. Removals tell what that cache evicted, and are not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.workbench.traces.trace_records import MAX_TOKENS, Clock, Record, TraceFormat
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN, Request, Workload, in_arrival_order, pack_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unified_tree.controllers.workbench.traces.trace_records import TraceOptions

STORED = "BlockStored"
KINDS = (STORED, "BlockRemoved", "AllBlocksCleared")
ARRAYS = {
    STORED: ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
DEVICE = (None, "GPU")
SAME_REQUEST_S = 2.0
"""Events that go on from one another within that time are of one request."""


def _kind(event: Any) -> object:
    if isinstance(event, dict):
        return event.get("type", event.get("event_type"))
    return event[0] if isinstance(event, list) and event else None


def _matches(records: Sequence[Record]) -> bool:
    for record in records:
        events = record.fields.get("events")
        if any(_kind(event) in KINDS for event in (events if isinstance(events, list) else [record.fields])):
            return True
    return False


def _events(record: Record) -> Iterator[tuple[Record, Record]]:
    """The events of a record, each with the record that tells its time."""
    if "events" not in record.fields:
        yield record, record
        return
    for i, event in enumerate(record.items("events")):
        path = f"events[{i}]"
        if isinstance(event, list):
            names = ARRAYS.get(event[0]) if event and isinstance(event[0], str) else None
            if names is None:
                raise Record({}, record.where, path).error(f"is none of {', '.join(KINDS)}", event)
            event = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
        yield Record(event, record.where, path), record


@dataclass(slots=True)
class _Prompt:
    """A request that is being put together."""

    begin_s: float
    last_s: float
    path: list[int]
    block_tokens: int


@dataclass(slots=True)
class _Recording:
    """State that carries over from one event to the next."""

    clock: Clock
    most: int | None
    prompts: list[_Prompt] = field(default_factory=list)
    ends: dict[int, _Prompt] = field(default_factory=dict)
    """By the last block of a prompt: the prompt, while nothing else has gone on from there."""
    numbers: dict[tuple[int, object], int] = field(default_factory=dict)
    """By the block before it and its hash: a block's number."""
    latest: dict[object, int] = field(default_factory=dict)
    """By its hash: a block's number, as it was stored last."""
    parents: list[int] = field(default_factory=list)
    unused: int = 0
    copies: int = 0
    orphans: int = 0
    first_group: object = None
    has_times: bool = True

    def add(self, event: Record, time: Record) -> None:
        """One more event."""
        kind = _kind(event.fields)
        if kind not in KINDS:
            raise event.error(f"is none of {', '.join(KINDS)}", kind)
        if kind != STORED:
            self.unused += 1
            return
        group = event.fields.get("group_idx") or 0
        self.first_group = group if self.first_group is None else self.first_group
        if event.fields.get("medium") not in DEVICE or group != self.first_group:
            self.copies += 1
            return
        hashes, size = event.items("block_hashes"), event.integer("block_size", 1)
        names = [self._name(event, "block_hashes", value) for value in hashes]
        if not names:
            return
        parent = event.fields.get("parent_block_hash")
        at = -1
        if parent is not None:
            at = self.latest.get(self._name(event, "parent_block_hash", parent), -1)
            self.orphans += at < 0
        self._store(at, names, size, self._seconds(time), event)

    def _seconds(self, time: Record) -> float:
        name = next((name for name in ("ts", "timestamp") if name in time.fields), None)
        if name is None:
            self.has_times = False
            return 0.0
        return self.clock.seconds(time, name)

    def _name(self, event: Record, field_name: str, value: Any) -> object:
        if type(value) not in (int, str, bytes):
            raise event.inner(field_name).error("must be of integers, strings or bytes", value)
        return value

    def _store(self, parent: int, names: list[object], size: int, at_s: float, event: Record) -> None:
        going_on = self.ends.pop(parent, None) if self.has_times else None
        if going_on is None or at_s - going_on.last_s > SAME_REQUEST_S or going_on.block_tokens != size:
            going_on = _Prompt(at_s, at_s, self._way_to(parent), size)
            self.prompts.append(going_on)
        at = parent
        for name in names:
            number = self.numbers.setdefault((at, name), len(self.parents))
            if number == len(self.parents):
                self.parents.append(at)
            at = self.latest[name] = number
            going_on.path.append(at)
        if len(going_on.path) * size > MAX_TOKENS:
            raise event.error(f"makes a prompt longer than {MAX_TOKENS} tokens", len(going_on.path) * size)
        going_on.last_s = at_s
        self.ends[at] = going_on

    def _way_to(self, block: int) -> list[int]:
        way = []
        while block >= 0:
            way.append(block)
            block = self.parents[block]
        return way[::-1]

    @property
    def is_full(self) -> bool:
        """Whether there are as many requests as are wanted."""
        return self.most is not None and len(self.prompts) > self.most


def _read(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    found = _Recording(Clock(options.clock_unit, "s", "ts"), options.max_requests)
    for record in records:
        for event, time in _events(record):
            found.add(event, time)
        if found.is_full:
            break
    prompts = found.prompts[: options.max_requests]
    first_s = min((prompt.begin_s for prompt in prompts), default=0.0)
    requests = in_arrival_order(
        Request(
            index=i,
            arrival_s=prompt.begin_s - first_s,
            runs=pack_runs(np.array(prompt.path, np.int64)),
            block_tokens=prompt.block_tokens,
            prompt_tokens=len(prompt.path) * prompt.block_tokens,
            output_tokens=0,
            chain=NO_CHAIN if found.has_times else 0,
        )
        for i, prompt in enumerate(prompts)
    )
    sizes = sorted({prompt.block_tokens for prompt in prompts})
    notes = [
        "prompts are put together from what was stored; those found whole left no event, so hits are a lower bound",
        f"blocks of {', '.join(map(str, sizes))} tokens",
        found.clock.note("as the engines have it") if found.has_times else "it has no clock: requests follow one another",
    ]
    if found.unused:
        notes.append(f"removals, which tell what that cache evicted, left out: {found.unused}")
    if found.copies:
        notes.append(f"events of other tiers or groups of layers, left out: {found.copies}")
    if found.orphans:
        notes.append(
            f"events that go on from what was stored before the recording, and are taken to begin there: {found.orphans}"
        )
    return Workload(name=name, requests=requests, block_count=len(found.parents), notes=tuple(notes))


KV_EVENTS = TraceFormat(
    name="KV events of vLLM or SGLang",
    fields=("ts", "events"),
    clock="ts, seconds since 1970",
    matches=_matches,
    read=_read,
)
