"""`python -m benches.ranks`: what agreeing costs a tick, alone and between processes over gloo on loopback.

Question: how long does `tick` keep a scheduler, on the rank where it takes longest, with nothing to say and with all slots
voted in? Not: what a network between machines adds, or what the votes themselves cost to find.

`at once`: ticks follow each other, so each waits for a whole exchange. `after a step`: every rank sleeps between ticks, as long
as a short model step, and the exchange happens meanwhile. With more processes than cores, gloo's threads wait for a core.
`load` is the system's load average: beyond the number of cores others were at work, and a row says little.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benches.rounds import options_of, told, written
from unified_tree.controllers.ranks import Consensus, LocalConsensus, MessageShape
from unified_tree.controllers.ranks.message import message_bytes

STEP_S = 0.005
PAGES = 2000
LIMIT_S = 120
HEAD = f"{'ranks':>5}  {'ticks':<14}{'votes':<7}{'bytes':>6}{'min µs':>9}{'median':>9}{'max':>10}{'load':>6}  answers"
CASES = [(paced, voting) for paced in (False, True) for voting in (False, True)]


def measure(consensus: Consensus, ticks: int) -> list[tuple[list[int], str]]:
    """For each case nanoseconds of every tick but the first tenth, and a digest of what was agreed on."""
    found = []
    lengths = np.ones(PAGES + 1, np.bool_)
    for paced, voting in CASES:
        answers, times = hashlib.sha256(), []
        for _ in range(ticks + ticks // 10):
            for _ in range(MessageShape().slots if voting else 0):
                consensus.propose(consensus.open(b"a request", PAGES), lengths)
            if paced:
                time.sleep(STEP_S)
            start = time.perf_counter_ns()
            agreement = consensus.tick()
            times.append(time.perf_counter_ns() - start)
            answers.update(b"".join(decision.lengths.tobytes() for decision in agreement.decisions))
        found.append((times[ticks // 10 :], answers.hexdigest()[:12]))
    return found


def serve(pipe: Connection, rank: int, ranks: int, store: str, ticks: int) -> None:
    """A rank's process."""
    import torch
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import ProcessGroupGloo

    from unified_tree.controllers.ranks import DistributedConsensus

    torch.set_num_threads(1)
    group: Any = ProcessGroupGloo(FileStore(store, ranks), rank, ranks, timedelta(seconds=LIMIT_S))
    consensus = DistributedConsensus(group)
    pipe.send(measure(consensus, ticks))
    pipe.recv()  # no rank goes before all have ended
    consensus.close()


def between_processes(ranks: int, ticks: int) -> list[list[tuple[list[int], str]]]:
    """What each rank measured. Raises TimeoutError, with all processes ended, if one does not answer."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, ranks, str(Path(folder) / "store"), ticks)
            processes.append(context.Process(target=serve, args=arguments, daemon=True))
            pipes.append(ours)
            processes[-1].start()
        try:
            found = []
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(LIMIT_S):
                    raise TimeoutError(f"rank {rank} of {ranks} gave no answer in {LIMIT_S} s")
                found.append(pipe.recv())
            for pipe in pipes:
                pipe.send("all have ended")
            for process in processes:
                process.join(LIMIT_S)
            return found
        finally:
            for process in processes:
                process.kill()


def rows_of(ranks: int, by_rank: list[list[tuple[list[int], str]]]) -> list[dict[str, Any]]:
    """One object a case for the JSON file; a tick counts as long as on the slowest rank."""
    rows = []
    for number, (paced, voting) in enumerate(CASES):
        slowest = [max(times) / 1e3 for times in zip(*(found[number][0] for found in by_rank), strict=True)]
        rows.append(
            {
                "ranks": ranks,
                "ticks": "after a step" if paced else "at once",
                "votes": MessageShape().slots if voting else 0,
                "message_bytes": message_bytes(MessageShape(), ranks),
                "min_us": round(min(slowest), 1),
                "median_us": round(statistics.median(slowest), 1),
                "max_us": round(max(slowest), 1),
                "load": round(os.getloadavg()[0], 2),
                "hash": by_rank[0][number][1],
                "right": len({found[number][1] for found in by_rank}) == 1,
            }
        )
    return rows


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['ranks']:>5}  {row['ticks']:<14}{row['votes']:<7}{row['message_bytes']:>6}{row['min_us']:>9.1f}"
        f"{row['median_us']:>9.1f}{row['max_us']:>10.1f}{row['load']:>6.1f}  {row['hash']}{'' if row['right'] else ' WRONG'}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; 1 if ranks did not agree on the same."""
    options = options_of("ranks", __doc__, quick="few ticks of two ranks", rounds=1000, what="ticks a row").parse_args(
        arguments
    )
    ticks = 20 if options.quick else options.ticks
    where = told(HEAD)
    found = []
    for ranks in (1, 2) if options.quick else (1, 2, 4):
        rows = rows_of(ranks, [measure(LocalConsensus(), ticks)] if ranks == 1 else between_processes(ranks, ticks))
        found += rows
        print("\n".join(line_of(row) for row in rows), flush=True)
    return written(found, where, options.json)


if __name__ == "__main__":
    sys.exit(main())
