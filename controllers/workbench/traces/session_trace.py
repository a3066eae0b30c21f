"""Agent session traces (kv-cache-tester's format, by Weka): one session an object, its turns in `requests`.

A turn has `t` (seconds on the session's own clock), `in`, `out` and its block ids, as `hash_ids` or packed as `hash_runs`. The
ids name the `in // block_size` whole blocks of the prompt; the rest is the turn's own. An entry that itself holds
`requests` is a sub-agent: its turns share the session's ids. Unless a session says `"hash_id_scope": "global"`, its ids mean
nothing outside it.

The times of a sub-agent's turns count from its own `t` in kv-cache-tester's files, and from the session's start in the AgentX
corpus, which is otherwise alike. Both cannot be: a turn before its agent's start shows the former, and then it is so in the
whole file. Where every turn is at or after its agent's start, the times are taken to count from the session's start.

Every session's clock starts at zero and the trace does not say when sessions begin. Here they begin one after the other with
exponentially distributed gaps (a Poisson process), drawn from a seed. A turn never arrives before the one before it has
finished, which is what the request's `chain` says; a sub-agent is a chain of its own, running beside its parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.block_ids import BlockLists
from unified_tree.controllers.workbench.traces.trace_records import Clock, Starts, TraceFormat
from unified_tree.controllers.workbench.traces.workload import NO_BLOCKS, NO_CHAIN, Request, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unified_tree.controllers.workbench.traces.trace_records import Record, TraceOptions


@dataclass(slots=True)
class _Turn:
    """A turn, whose request arrives by the clock of its agent until its place is known."""

    agent_s: float
    """When its sub-agent starts, where times count from there."""
    request: Request


@dataclass(slots=True)
class _Scope:
    """Turns whose ids mean the same."""

    blocks: BlockLists = field(default_factory=BlockLists)
    turns: list[_Turn] = field(default_factory=list)
    surplus: int = 0

    def number(self, base: int) -> int:
        """Give the turns their blocks, from `base` on; the first id that is free after them."""
        prompts = np.array([turn.request.prompt_tokens for turn in self.turns], np.int64)
        sizes = np.array([turn.request.block_tokens for turn in self.turns], np.int64)
        self.surplus = int((self.blocks.counts() > -(-prompts // sizes)).sum())
        runs, base = self.blocks.numbered(prompts // sizes, base)
        for turn, blocks in zip(self.turns, runs, strict=True):
            turn.request = replace(turn.request, runs=blocks)
        return base


@dataclass(slots=True)
class _Reader:
    """What carries over from one session to the next."""

    options: TraceOptions
    clock: Clock
    turns: list[_Turn] = field(default_factory=list)
    chain_count: int = 0
    surplus: int = 0
    agent_count: int = 0
    has_early_turns: bool = False
    block_sizes: set[int] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        most = self.options.max_requests
        return most is not None and len(self.turns) >= most

    def read_session(self, session: Record, scope: _Scope) -> None:
        block_tokens = self.options.block_tokens or session.integer("block_size", minimum=1)
        self.block_sizes.add(block_tokens)
        self._read_agent(session, block_tokens, scope, 0.0, 0.0, NO_CHAIN)

    def _read_agent(
        self, agent: Record, block_tokens: int, scope: _Scope, own_s: float, agent_s: float, parent_chain: int
    ) -> None:
        """The turns of an agent that starts at `own_s` by the clock of the one that holds it, `agent_s` by their sum."""
        chain = self.chain_count
        self.chain_count += 1
        for entry in agent.records("requests"):
            if "requests" in entry.fields:
                self.agent_count += 1
                at_s = self.clock.seconds(entry, "t")
                self.has_early_turns |= at_s < own_s
                self._read_agent(entry, block_tokens, scope, at_s, agent_s + at_s, chain)
            elif not self.is_full:
                request = Request(
                    index=0,
                    arrival_s=self.clock.seconds(entry, "t"),
                    runs=NO_BLOCKS,
                    block_tokens=block_tokens,
                    prompt_tokens=entry.integer("in"),
                    output_tokens=entry.integer("out"),
                    chain=chain,
                    parent_chain=parent_chain,
                )
                turn = _Turn(agent_s, request)
                scope.blocks.add(entry)
                scope.turns.append(turn)
                self.turns.append(turn)
                self.has_early_turns |= request.arrival_s < own_s

    @property
    def counts_from_parent(self) -> bool:
        """Whether sub-agents' times count from their own start."""
        given = self.options.sub_agent_clock
        return self.has_early_turns if given is None else given == "parent"

    def sub_agent_note(self) -> str:
        place = "their own start" if self.counts_from_parent else "the session's start"
        if self.options.sub_agent_clock is not None:
            return f"times of sub-agents count from {place}, as given"
        why = "some are before it" if self.has_early_turns else "none is before its agent's"
        return f"times of sub-agents count from {place}, for {why}; --sub-agent-clock overrides"


def _read(name: str, records: Iterable[Record], options: TraceOptions) -> Workload:
    reader = _Reader(options, Clock(options.clock_unit, "s", "t"))
    starts = Starts(options)
    session_count, block_count = 0, 0
    begins: list[float] = []
    shared = _Scope()
    for record in records:
        is_shared = record.fields.get("hash_id_scope") == "global"
        scope = shared if is_shared else _Scope()
        reader.read_session(record, scope)
        begin_s = starts.next()
        session_count += 1
        begins += [begin_s] * (len(reader.turns) - len(begins))
        if not is_shared:
            block_count = scope.number(block_count)
            reader.surplus += scope.surplus
        if reader.is_full:
            break
    block_count = shared.number(block_count)
    reader.surplus += shared.surplus
    return _workload(name, reader, begins, session_count, block_count)


def _workload(name: str, reader: _Reader, begins: list[float], session_count: int, block_count: int) -> Workload:
    from_parent = reader.counts_from_parent
    timed = [
        (begin_s + (turn.agent_s * from_parent + turn.request.arrival_s), turn)
        for turn, begin_s in zip(reader.turns, begins, strict=True)
    ]
    timed.sort(key=itemgetter(0))
    requests = tuple(replace(turn.request, index=i, arrival_s=at_s) for i, (at_s, turn) in enumerate(timed))
    notes = [
        f"{session_count} session{'s' * (session_count != 1)}, starting {reader.options.session_gap_s:g} s apart on average",
        f"blocks of {', '.join(map(str, sorted(reader.block_sizes)))} tokens",
    ]
    if reader.surplus:
        notes.append(f"{reader.surplus} requests list more blocks than their prompt holds; the surplus was left out")
    if reader.options.clock_unit is not None:
        notes.append(reader.clock.note(""))
    if reader.agent_count:
        notes.append(reader.sub_agent_note())
    return Workload(name=name, requests=requests, block_count=block_count, notes=tuple(notes))


SESSIONS = TraceFormat(
    name="kv-cache-tester sessions (Weka, AgentX)",
    fields=("block_size", "requests"),
    clock="t, seconds from the session's start; sub-agents' from their own or the session's, by evidence",
    matches=lambda records: isinstance(records[0].fields.get("requests"), list),
    read=_read,
)
