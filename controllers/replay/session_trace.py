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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.replay.dense_blocks import densify
from unified_tree.controllers.replay.workload import Request, Workload, cut_runs, in_arrival_order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unified_tree.controllers.replay.trace_records import Record
    from unified_tree.controllers.replay.workload import Int64s


@dataclass(frozen=True, slots=True)
class _Turn:
    offset_s: float
    prompt_tokens: int
    output_tokens: int
    runs: Int64s
    block_tokens: int
    chain: int


@dataclass(slots=True)
class _Reader:
    """What carries over from one session to the next."""

    block_tokens: int | None
    most: int | None
    turn_count: int = 0
    chain_count: int = 0
    surplus: int = 0
    block_sizes: set[int] = field(default_factory=set)

    def read_session(self, session: Record) -> list[_Turn]:
        block_tokens = self.block_tokens or session.integer("block_size", minimum=1)
        self.block_sizes.add(block_tokens)
        return self._read_agent(session, block_tokens, 0.0)

    def _read_agent(self, agent: Record, block_tokens: int, start_s: float) -> list[_Turn]:
        chain = self.chain_count
        self.chain_count += 1
        turns: list[_Turn] = []
        for entry in agent.records("requests"):
            if "requests" in entry.fields:
                turns += self._read_agent(entry, block_tokens, start_s + entry.seconds("t"))
            elif self.most is None or self.turn_count < self.most:
                turns.append(self._read_turn(entry, block_tokens, start_s, chain))
        return turns

    def _read_turn(self, entry: Record, block_tokens: int, start_s: float, chain: int) -> _Turn:
        prompt_tokens, runs = entry.integer("in"), entry.block_runs()
        self.surplus += int(runs[1::2].sum()) > -(-prompt_tokens // block_tokens)
        self.turn_count += 1
        return _Turn(
            offset_s=start_s + entry.seconds("t"),
            prompt_tokens=prompt_tokens,
            output_tokens=entry.integer("out"),
            runs=cut_runs(runs, prompt_tokens // block_tokens),
            block_tokens=block_tokens,
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
    sessions: list[list[_Turn]] = []
    starts_s: list[float] = []
    scopes: dict[object, list[_Turn]] = {}
    for record in records:
        turns = reader.read_session(record)
        starts_s.append(starts_s[-1] + session_gap_s * gaps.exponential() if starts_s else 0.0)
        sessions.append(turns)
        scope = "global" if record.fields.get("hash_id_scope") == "global" else len(sessions)
        scopes.setdefault(scope, []).extend(turns)
        if most is not None and reader.turn_count >= most:
            break
    runs_of, block_count = _dense_runs(scopes.values())
    requests = [
        Request(
            index=0,
            arrival_s=start_s + turn.offset_s,
            runs=runs_of[id(turn)],
            block_tokens=turn.block_tokens,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            chain=turn.chain,
        )
        for start_s, turns in zip(starts_s, sessions, strict=True)
        for turn in turns
    ]
    notes = [
        f"{len(sessions)} sessions, starting {session_gap_s:g} s apart on average",
        f"blocks of {_listed(reader.block_sizes)} tokens",
    ]
    if reader.surplus:
        notes.append(f"{reader.surplus} requests list more blocks than their prompt holds; the surplus was left out")
    return Workload(name=name, requests=in_arrival_order(requests), block_count=block_count, notes=tuple(notes))


def _dense_runs(scopes: Iterable[list[_Turn]]) -> tuple[dict[int, Int64s], int]:
    """The runs of every turn (by identity), renumbered so that no two scopes share an id; and the number of ids."""
    runs_of: dict[int, Int64s] = {}
    base = 0
    for turns in scopes:
        dense, base = densify([turn.runs for turn in turns], base)
        runs_of.update(zip(map(id, turns), dense, strict=True))
    return runs_of, base


def _listed(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))
