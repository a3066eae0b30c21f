"""Agent session traces (kv-cache-tester's format): one session an object, its turns in `requests`.

A turn has `t` (seconds on the session's own clock), `in`, `out` and its block ids, as `hash_ids` or packed as `hash_runs`. The
ids name the `in // block_size` whole blocks of the prompt; the rest is the turn's own. An entry that itself holds
`requests` is a sub-agent: its turns count time from that entry's `t` and share the session's ids. Unless a session says
`"hash_id_scope": "global"`, its ids mean nothing outside it.

Every session's clock starts at zero and the trace does not say when sessions begin. Here they begin one after the other with
exponentially distributed gaps (a Poisson process), drawn from a seed. A turn never arrives before the one before it has
finished, which is what the request's `chain` says; a sub-agent is a chain of its own, running beside its parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.traces.block_trace import densify
from unified_tree.controllers.workbench.traces.workload import Request, Workload, cut_runs, in_arrival_order, until_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unified_tree.controllers.workbench.traces.trace_records import Record


@dataclass(slots=True)
class _Reader:
    """What carries over from one session to the next."""

    block_tokens: int | None
    most: int | None
    turn_count: int = 0
    chain_count: int = 0
    surplus: int = 0
    repeated: int = 0
    block_sizes: set[int] = field(default_factory=set)

    def read_session(self, session: Record) -> list[Request]:
        block_tokens = self.block_tokens or session.integer("block_size", minimum=1)
        self.block_sizes.add(block_tokens)
        return self._read_agent(session, block_tokens, 0.0)

    def _read_agent(self, agent: Record, block_tokens: int, start_s: float) -> list[Request]:
        chain = self.chain_count
        self.chain_count += 1
        turns: list[Request] = []
        for entry in agent.records("requests"):
            if "requests" in entry.fields:
                turns += self._read_agent(entry, block_tokens, start_s + entry.seconds("t"))
            elif self.most is None or self.turn_count < self.most:
                turns.append(self._read_turn(entry, block_tokens, start_s, chain))
        return turns

    def _read_turn(self, entry: Record, block_tokens: int, start_s: float, chain: int) -> Request:
        prompt_tokens, runs = entry.integer("in"), entry.block_runs()
        self.surplus += int(runs[1::2].sum()) > -(-prompt_tokens // block_tokens)
        self.turn_count += 1
        whole = cut_runs(runs, prompt_tokens // block_tokens)
        shared = until_repeated(whole)
        self.repeated += shared is not whole
        return Request(
            index=self.turn_count,
            arrival_s=start_s + entry.seconds("t"),
            runs=shared,
            block_tokens=block_tokens,
            prompt_tokens=prompt_tokens,
            output_tokens=entry.integer("out"),
            chain=chain,
        )


def is_session_record(record: Record) -> bool:
    """Whether a trace's first object is an agent session."""
    return "requests" in record.fields


def read_session_trace(
    name: str,
    records: Iterable[Record],
    *,
    block_tokens: int | None = None,
    most: int | None = None,
    session_gap_s: float = 30.0,
    seed: int = 0,
) -> Workload:
    """The workload of a session trace.

    Args:
        block_tokens: tokens in a block; None for each session's `block_size`.
        most: read so many requests (whole sessions up to there) and no more.
        session_gap_s: mean seconds between the starts of two sessions; zero starts all at once.
        seed: of the gaps.

    Raises TraceError with file and line for a missing field, a wrong type or a negative number.
    """
    reader = _Reader(block_tokens, most)
    gaps = np.random.default_rng(seed)
    start_s, session_count = 0.0, 0
    scopes: dict[object, list[Request]] = {}
    for record in records:
        turns = reader.read_session(record)
        start_s += session_gap_s * gaps.exponential() if session_count else 0.0
        session_count += 1
        scope = "global" if record.fields.get("hash_id_scope") == "global" else session_count
        scopes.setdefault(scope, []).extend(replace(turn, arrival_s=start_s + turn.arrival_s) for turn in turns)
        if most is not None and reader.turn_count >= most:
            break
    requests: list[Request] = []
    block_count = 0
    for turns in scopes.values():
        dense, block_count = densify([turn.runs for turn in turns], block_count)
        requests += [replace(turn, runs=runs) for turn, runs in zip(turns, dense, strict=True)]
    requests.sort(key=lambda turn: turn.index)  # as they were read, whatever their scope
    notes = [
        f"{session_count} sessions, starting {session_gap_s:g} s apart on average",
        f"blocks of {', '.join(map(str, sorted(reader.block_sizes)))} tokens",
    ]
    if reader.surplus:
        notes.append(f"{reader.surplus} requests list more blocks than their prompt holds; the surplus was left out")
    if reader.repeated:
        notes.append(f"{reader.repeated} requests list a block twice; from there on their blocks were left out")
    return Workload(name=name, requests=in_arrival_order(requests), block_count=block_count, notes=tuple(notes))
