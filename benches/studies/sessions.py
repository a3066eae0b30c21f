"""`python -m benches.studies.sessions TRACE`: how many agents at once does a memory serve, with and without hints of sessions?

Question: on agents' sessions with their own pauses and subagents (kv-cache-tester's format), for a model with a linear state,
what share of the prompt tokens is hit when so many sessions run at once, each followed by another when it ends? `today` knows
nothing of sessions; `inferred` supersedes what came before the state that a request resumed from; `named` also names sessions
and subagents, and ends them; `retained` also retains each between its turns, and `expected` those whose next turn comes within
30 s, as a client that waits for a tool knows. Returns are the turns after a pause of 30 s or more. `ceiling`, where states have
a pool of their own, is what no order exceeds that knows the future. Each block of the trace is a token here, with the bytes of
a block. A state takes as much as 48 blocks, about as in Qwen3-Next-80B; both live in one budget, or states in a pool of their
own; `--states 0` is a model of full attention. `--fit SHARE` sets the memory to this share of the least in which the contexts
of all open agents fit, and prints which share of the hits of returns without a bound is left, and the tokens of returns that
were computed because a pool had evicted. Silent on: host memory, stores, waiting (a request runs as long as it did in the
trace), and answers, whose tokens the trace does not have.

The ceiling: a turn resumes from a state only if that was held since the last turn whose prompt passed its length, at least. So
each turn has candidates (a length, and since when), and at each moment no more states are held than there are pages beside
those of the running turns. Prices of pages by moment bound the hits from above, whatever the prices are (weak duality); they
descend for some rounds. Paths have room.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree import BlockBudget, Component, Key, OutOfPagesError, Path, Point
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache import Lease
from unified_tree.controllers.workbench.traces.workload import expand_runs

STATE_BLOCKS = 48
PAUSE_S = 30.0
RETRY_S = 1.0
OWN = 1 << 40
ARMS = ("today", "inferred", "named", "retained", "expected")
NAMED = ARMS[2:]
ROUNDS = 100
"""Of descending prices."""
Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Agent:
    """One agent: its turns, and the subagents that it starts.

    Attributes:
        turns: of each the pause before it, how long it ran, and its blocks as runs.
        parts: subagents, by the turn before which they start.
    """

    number: int
    parent: int | None
    base: int
    turns: list[tuple[float, float, Any]] = field(default_factory=list)
    parts: list[tuple[int, Agent]] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """The tokens that were served, those of them that hit, and the turns as they ran.

    Attributes:
        returned_evicted: tokens of returns that were computed because a pool had evicted, by pool.
    """

    prompt: int = 0
    hit: int = 0
    returned: int = 0
    returned_hit: int = 0
    returned_evicted: Counter[str] = field(default_factory=Counter)
    turns: list[Served] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Hit tokens of all."""
        return self.hit / max(1, self.prompt)


def agents(path: File, most: int) -> list[Agent]:
    """The first sessions of a trace."""
    found: list[Agent] = []
    count = base = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if len(found) == most:
                break
            numbers: list[Agent] = []
            agent = _agent(json.loads(line), None, base, count, numbers)
            found.append(agent)
            count += len(numbers)
            base += 1 + max(
                (int((runs[::2] + runs[1::2]).max()) for each in numbers for *_, runs in each.turns if runs.size), default=0
            )
    return found


def _agent(fields: dict[str, Any], parent: int | None, base: int, count: int, numbers: list[Agent]) -> Agent:
    agent = Agent(count + len(numbers), parent, base)
    numbers.append(agent)
    ended = 0.0
    for entry in fields["requests"]:
        if "requests" in entry:
            agent.parts.append((len(agent.turns), _agent(entry, agent.number, base, count, numbers)))
            continue
        ran = float(entry.get("api_time") or 1.0)
        agent.turns.append((max(0.0, entry["t"] - ended), ran, np.array(entry["hash_runs"], np.int64)))
        ended = entry["t"] + ran
    return agent


def serve(
    sessions: list[Agent], at_once: int, block_count: int | None, arm: str, policy: str, states: int | None = None
) -> Tally:
    """Run the sessions, so many at once.

    Args:
        states: how many the memory has room for, and so many blocks beside; None for one budget of both, 0 for a model
            without states.
    """
    kinds = [
        Component(name="full", coverage=Path(), page_bytes=1),
        Component(name="mamba", coverage=Point(), save_grid_tokens=1, page_bytes=STATE_BLOCKS),
    ][: 1 if states == 0 else 2]
    budget = None
    counts = None if states is None or block_count is None else {"full": block_count, "mamba": states}
    if counts is not None and not states:
        del counts["mamba"]
    if block_count is not None and counts is None:
        budget = BlockBudget(block_count=block_count, block_bytes=1, page_blocks={"full": 1, "mamba": STATE_BLOCKS})
    cache = PrefixCache(kinds, 1, counts, budget=budget, policy=policy, infer_sessions=arm != "today")
    tally, events, order = Tally(), list[tuple[float, int, Agent, int, Lease | None]](), 0
    waiting = iter(sessions)

    def start(agent: Agent, at_s: float) -> None:
        nonlocal order
        order += 1
        first = agent.turns[0][0] if agent.parent is not None and agent.turns else 0.0
        heappush(events, (at_s + first, order, agent, 0, None))

    for _ in range(at_once):
        agent = next(waiting, None)
        if agent is not None:
            start(agent, 0.0)
    while events:
        now, _, agent, at, lease = heappop(events)
        if lease is not None:
            cache.release(lease)
            at += 1
            is_expected = arm == "expected" and at < len(agent.turns) and agent.turns[at][0] < PAUSE_S
            if arm == "retained" or is_expected:
                cache.hints.retain(agent.number)
        if at >= len(agent.turns):
            if arm in NAMED:
                cache.end_session(agent.number)
            following = next(waiting, None) if agent.parent is None else None
            if following is not None:
                start(following, now)
            continue
        pause, ran, runs = agent.turns[at]
        if lease is not None:
            order += 1
            heappush(events, (now + pause, order, agent, at, None))
            continue
        for before, part in agent.parts:
            if before == at:
                start(part, now)
        agent.parts = [each for each in agent.parts if each[0] != at]
        blocks = expand_runs(runs) + agent.base
        admitted = _admit(cache, agent, blocks, arm, order)
        order += 1
        if admitted is None:
            heappush(events, (now + RETRY_S, order, agent, at, None))
            continue
        if block_count is None:
            tally.turns.append(Served(now, now + ran, agent.base, blocks, agent.number))
        tally.prompt += admitted.prompt_tokens
        tally.hit += admitted.cached_tokens
        if pause >= PAUSE_S and at:
            tally.returned += admitted.prompt_tokens
            tally.returned_hit += admitted.cached_tokens
            for miss in admitted.misses:
                if miss.eviction is not None:
                    tally.returned_evicted[kinds[miss.eviction.component].name] += miss.end - miss.begin
        heappush(events, (now + ran, order, agent, at, admitted))
    return tally


def fitting(turns: Sequence[Served], state_blocks: int) -> int:
    """The least memory, in blocks, that has room at all times for the contexts of all open agents.

    An agent is open from its first turn to the end of its last one; its context is the prompt of its last turn. Agents of a
    root share the blocks that are equal. Each has a state, and while a turn runs a block and a state more.
    """
    changes: list[tuple[float, int, Served]] = []
    last = {turn.agent: turn for turn in turns}
    for turn in turns:
        changes += [(turn.begin_s, 1, turn), (turn.end_s, 0, turn)]
    contexts: dict[int, dict[int, Int64s]] = {}
    sizes: dict[int, int] = {}
    running = most = 0
    for _, is_begin, turn in sorted(changes, key=lambda change: change[:2]):
        running += 1 if is_begin else -1
        of_root = contexts.setdefault(turn.root, {})
        if is_begin:
            of_root[turn.agent] = turn.blocks
        elif last[turn.agent] is turn:
            del of_root[turn.agent]
        else:
            continue
        sizes[turn.root] = np.unique(np.concatenate(list(of_root.values()))).size if of_root else 0
        open_count = sum(map(len, contexts.values()))
        most = max(most, sum(sizes.values()) + running + state_blocks * (open_count + running))
    return most


def _admit(cache: PrefixCache, agent: Agent, blocks: Any, arm: str, number: int) -> Lease | None:
    """A lease whose prompt is computed and published; None if there is no room."""
    prompt, session = np.append(blocks, OWN + number), None
    if arm in NAMED:
        session = agent.number
        if agent.parent is not None and cache.sessions.find(session) is None:
            cache.open_session(session, agent.parent if cache.sessions.find(agent.parent) is not None else None)
    try:
        lease = cache.acquire(Key(prompt), [blocks.size], save_output=False, session=session, reserve_tokens=prompt.size)
    except OutOfPagesError:
        return None
    if blocks.size > lease.cached_tokens:
        cache.commit(lease, blocks.size, states={at: page for at, page in lease.save_pages.items() if at <= blocks.size})
    return lease


def _cell(tally: Tally) -> str:
    return f"{tally.rate:.1%} ({tally.returned_hit / max(1, tally.returned):.1%})"


def _returns(tally: Tally, unbounded: Tally) -> str:
    lost = ", ".join(f"{name} {count:,}" for name, count in sorted(tally.returned_evicted.items()))
    return f"{tally.returned_hit / max(1, unbounded.returned_hit):.3f} ({lost or 0})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=File)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=36_000)
    parser.add_argument("--fit", type=float, help="memory, as a share of the least in which all open agents' contexts fit")
    parser.add_argument("--states", type=int, help="states in a pool of their own; by default both share one budget")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 12, 16, 20, 24, 32, 48])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--policies", nargs="+", default=["density", "lru"])
    given = parser.parse_args()
    print(f"first {given.sessions} sessions; {given.blocks:,} blocks; share of prompt tokens hit (of those after pauses)")
    print("| policy | sessions at once | unbounded | ceiling | " + " | ".join(given.arms) + " |", flush=True)
    for policy in given.policies:
        for at_once in given.at_once:
            unbounded = serve(agents(given.trace, given.sessions), at_once, None, "today", policy, given.states)
            most = None if not given.states else ceiling(unbounded.turns, given.states) / unbounded.prompt
            cells = [_cell(unbounded), "" if most is None else f"{most:.1%}"]
            blocks = given.blocks
            if given.fit is not None:
                blocks = int(given.fit * fitting(unbounded.turns, 0 if given.states == 0 else STATE_BLOCKS))
                cells[1] = f"{blocks:,} blocks"
            for arm in given.arms:
                started = agents(given.trace, given.sessions)
                tally = serve(started, at_once, blocks, arm, policy, given.states)
                cells += [_cell(tally) if given.fit is None else _returns(tally, unbounded)]
            print(f"| {policy} | {at_once} | " + " | ".join(cells) + " |", flush=True)


@dataclass(frozen=True, slots=True)
class Served:
    """One turn as it ran.

    Attributes:
        root: turns of other roots have no block in common with it.
        agent: whose turn it is.
    """

    begin_s: float
    end_s: float
    root: int
    blocks: Int64s
    agent: int


def ceiling(turns: Sequence[Served], states: int) -> int:
    """Blocks that at most hit, of turns in the order in which they began. Cost: a comparison of each two turns of a root."""
    at, lengths, since = _candidates(turns)
    if not at.size:
        return 0
    begins, ends = np.array([each.begin_s for each in turns]), np.sort([each.end_s for each in turns])
    running = np.arange(1, begins.size + 1) - np.searchsorted(ends, begins, side="right")
    room = np.maximum(0, states - running).astype(np.float64)
    firsts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    counts = np.diff(firsts, append=at.size)
    prices, best, step = np.zeros(begins.size), np.inf, lengths.mean() / 50
    for turn in range(ROUNDS):
        paid = np.append(0.0, np.cumsum(prices))
        gains = lengths - (paid[at] - paid[since])
        most = np.maximum.reduceat(gains, firsts)
        best = min(best, float(np.maximum(0.0, most).sum() + prices @ room))
        chosen = np.flatnonzero((gains == np.repeat(most, counts)) & (gains > 0))
        chosen = chosen[np.unique(at[chosen], return_index=True)[1]]
        held = np.zeros(begins.size + 1)
        np.add.at(held, since[chosen], 1.0)
        np.add.at(held, at[chosen], -1.0)
        prices = np.maximum(0.0, prices + step / (1 + turn / 20) * (np.cumsum(held)[:-1] - room))
    return int(best)


def _candidates(turns: Sequence[Served]) -> tuple[Int64s, Int64s, Int64s]:
    """Which turn could resume at which length if a state is held since which turn; by turn, the longest last.

    States are saved where a prompt ended, and where one left the path of another.
    """
    found: list[tuple[int, int, int]] = []
    roots: dict[int, list[tuple[int, Int64s, int]]] = {}
    for i, turn in enumerate(turns):
        before = roots.setdefault(turn.root, [])
        common = [_common(blocks, turn.blocks) for _, blocks, _ in before]
        ends = {blocks.size for (_, blocks, _), same in zip(before, common, strict=True) if same == blocks.size}
        forks = {fork for (_, _, fork), same in zip(before, common, strict=True) if fork <= same}
        saved, longest = np.array(sorted(ends | forks), np.int64), 0
        for (earlier, _, _), same in zip(reversed(before), reversed(common), strict=True):
            fitting = int(np.searchsorted(saved, same, side="right"))
            if fitting and saved[fitting - 1] > longest:
                longest = int(saved[fitting - 1])
                found.append((i, longest, earlier))
        before.append((i, turn.blocks, max(common, default=0)))
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _common(one: Int64s, other: Int64s) -> int:
    """How many blocks two prompts begin with alike."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


if __name__ == "__main__":
    main()
