"""What a rank does in the tests: functions of a consensus, or of a process group, that run in threads and processes alike."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rank_workers import die, stop
from scenario import rank_scenario
from sim_server import SimServer
from waiting import PATIENCE_S, wait_until

from unified_tree import Key, Tier
from unified_tree.controllers.ranks import Agreement, Consensus, MessageShape, RankWatch, TickedConsensus
from unified_tree.terms.errors import RankError

Plain = tuple[Any, ...]


def plain(agreement: Agreement) -> Plain:
    """An agreement that can be compared and sent to another process."""
    decisions = tuple((decision.ticket, tuple(np.flatnonzero(decision.lengths).tolist())) for decision in agreement.decisions)
    finished = tuple((done.kind, tuple(done.numbers), tuple(sorted(done.failed))) for done in agreement.finished)
    return (agreement.tick, decisions, agreement.cancelled, finished)


def vote_of(rank: int, ticket: int, seed: int, page_count: int) -> list[bool]:
    """What a rank can restore of a ticket, dense or sparse, sometimes an array that ends early."""
    random = Random(f"{seed} {rank} {ticket}")
    share = Random(f"{seed} {ticket}").choice([0.02, 0.5, 0.9, 1])
    lengths = [True] + [random.random() < share for _ in range(page_count)]
    return lengths[: random.randrange(1, page_count + 2)] if random.random() < 0.2 else lengths


def page_count_of(ticket: int, seed: int) -> int:
    """Few pages, or more than a message's candidates."""
    return Random(f"pages {seed} {ticket}").choice([0, 1, 7, 40, 200])


def random_run(consensus: Consensus, rank: int, *, seed: int, tickets: int, operations: int, ticks: int) -> list[Plain]:
    """Open and vote, finish and fail, at times of this rank's own; the agreements of all ticks."""
    random = Random(f"run {seed} {rank}")
    opened, unvoted = 0, []
    numbers = [(kind, number) for kind in MessageShape().kinds for number in range(operations)]
    random.shuffle(numbers)
    agreements = []
    for _ in range(ticks):
        for _ in range(random.randrange(4)):
            if opened < tickets:
                page_count = page_count_of(opened, seed)
                assert consensus.open(f"{seed} {opened}".encode(), page_count) == opened
                unvoted.append(opened)
                opened += 1
        random.shuffle(unvoted)
        for _ in range(min(len(unvoted), random.randrange(6))):
            ticket = unvoted.pop()
            if ticket % 11 == 3 and rank == ticket % 2:
                consensus.cancel(ticket)
            else:
                consensus.propose(ticket, np.array(vote_of(rank, ticket, seed, page_count_of(ticket, seed))))
        for _ in range(min(len(numbers), random.randrange(9))):
            kind, number = numbers.pop()
            consensus.finished(kind, number, failed=fails(rank, number, kind, seed))
        agreement = consensus.tick()
        cancelled = set(agreement.cancelled)
        unvoted = [ticket for ticket in unvoted if ticket not in cancelled]
        agreements.append(plain(agreement))
        consensus.record(repr(agreements[-1]).encode())
    return agreements


def fails(rank: int, number: int, kind: str, seed: int) -> bool:
    """Whether an operation fails on a rank."""
    return Random(f"fails {seed} {rank} {number} {kind}").random() < 0.1


def over(group: Any, shape: MessageShape | None = None) -> TickedConsensus:
    """The consensus of a process group, which no machine is too slow for."""
    from unified_tree.controllers.ranks import DistributedConsensus

    return DistributedConsensus(group, shape, timeout_s=PATIENCE_S, join_timeout_s=PATIENCE_S)


def limit(consensus: TickedConsensus, timeout_s: float) -> None:
    """Messages have this time-out from now on: whoever is waited for after it will not come."""
    reduction: Any = consensus._reduction
    reduction._limit_s = reduction._timeout_s = timeout_s


def random_run_over_group(group: Any, rank: int, **given: Any) -> list[Plain]:
    """`random_run` in a process."""
    consensus = over(group)
    try:
        return random_run(consensus, rank, **given)
    finally:
        consensus.tick()
        consensus.tick()  # so that the last message has reached all before this rank goes
        consensus.close()


def random_run_over_new_group(group: Any, rank: int, *, store: str, **given: Any) -> list[Plain]:
    """`random_run` as a server does it: a group of its own beside the default one, which is destroyed at work."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=group.size())
    consensus = over(dist.new_group(backend="gloo"))
    agreements = random_run(consensus, rank, **given)
    consensus.tick()
    consensus.close()
    dist.destroy_process_group()
    return agreements


def stop_under_watch(group: Any, rank: int, *, store: str, who: int, timeout_s: float) -> tuple[str, list[str]]:
    """Tick under a watch until an error, while one rank stops at its fifth; the error's text, and what the log said."""
    import torch.distributed as dist

    from unified_tree.controllers.ranks import DistributedConsensus

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=group.size())
    own = dist.new_group(backend="gloo")
    assert own is not None
    watch, told = RankWatch.of(own, timeout_s=timeout_s), ToldLines()
    logging.getLogger(RankWatch.__module__).addHandler(told)
    consensus = DistributedConsensus(own, timeout_s=PATIENCE_S, watch=watch)
    text = ""
    for ticks in range(1000):
        if ticks == 4:
            limit(consensus, timeout_s)
        if rank == who and ticks == 5:
            stop()
        try:
            consensus.tick()
        except RankError as error:
            text = str(error)
            break
        time.sleep(0.05)
    while not any(line.startswith(f"rank {who} ") for line in told.lines):  # on a slow machine others may be named, too
        time.sleep(0.05)
    consensus.close()
    watch.close()
    return text, told.lines


class ToldLines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.lines.append(record.getMessage())


def fault_at_fifth_tick(
    group: Any, rank: int, *, who: int, fault: str, timeout_s: float = PATIENCE_S, ended: Path | None = None
) -> Plain:
    """Tick until an error or the twentieth tick; one rank fails at its fifth.

    Args:
        timeout_s: of what is sent from then on.
        ended: a folder in which ranks say that they have ended; a rank that is late waits for all others.

    Returns the ticks that were agreed on, the error's type and text, and that of the next call.
    """
    consensus = over(group)
    agreed = 0

    def late() -> None:
        assert ended is not None
        wait_until(lambda: len(list(ended.iterdir())) == group.size() - 1, "the others go on waiting")

    while True:
        if agreed == 4:
            limit(consensus, timeout_s)
        if rank == who and agreed == 5:
            faults = {"die": die, "stop": stop, "sleep": lambda: time.sleep(0.5), "late": late, "close": consensus.close}
            faults.get(fault, lambda: None)()
            if fault == "close":
                return (agreed, "closed", "", "")
            if fault == "diverge":
                consensus.record(b"something else")
        consensus.record(b"what all do")
        try:
            consensus.tick()
        except RankError as error:
            next_said = "no error"
            try:
                consensus.tick()
            except RankError as again:
                next_said = str(again)
            consensus.close()
            if ended is not None:
                (ended / str(rank)).touch()
            return (agreed, type(error).__name__, str(error), next_said)
        agreed += 1
        if agreed == 20:
            consensus.close()
            return (agreed, "", "", "")


def missing_page(group: Any, rank: int, *, who: int) -> Plain:
    """All can restore 0 … 6 pages at even lengths; one has lost page 4, and so what lies beyond. What is agreed on."""
    consensus = over(group)
    ticket = consensus.open(b"prefix", 6)
    lengths = np.array([True, False, True, False, True, False, True])
    if rank == who:
        lengths[5:] = False
    consensus.propose(ticket, lengths)
    agreements = [plain(consensus.tick()) for _ in range(4)]
    consensus.close()
    return tuple(agreements)


def other_settings(group: Any, rank: int, *, setting: str) -> Plain:
    """Ranks are not set up alike; what the first ticks say."""
    shape = MessageShape(slots=8 + rank) if setting == "shape" else MessageShape()
    consensus = over(group, shape)
    if setting == "identity":
        consensus.open(b"request of rank 0 or 1" if rank < 2 else b"another request", 5)
    try:
        for _ in range(3):
            consensus.tick()
    except RankError as error:
        consensus.close()
        return (type(error).__name__, str(error))
    return ("", "")


def simulated_servers(group: Any, rank: int, *, seeds: list[int]) -> list[tuple[str, int, int]]:
    """Whole servers, one after another; of each the digest of its history, and how many tokens it had from its store."""
    lives = []
    for seed in seeds:
        consensus = over(group)
        server = SimServer(rank_scenario(seed), rank=rank, ranks=consensus)
        server.run()
        history = hashlib.sha256("\n".join(server.history[:-1]).encode()).hexdigest()
        lives.append((history, server.events["prefetched"], server.events["storage_hits"]))
    return lives


def simulated_server_with_a_fault(group: Any, rank: int, *, seed: int, tick: int) -> Plain:
    """A server whose ranks fall apart; whether it was told, and whether closing it closed everything."""
    consensus = over(group)
    server = SimServer(rank_scenario(seed), rank=rank, ranks=consensus)
    told = False
    prompts = 0
    while not told and server.tick < 2 * tick + 40:
        if server.tick == tick and rank == 1:
            consensus.record(b"something else")
        try:
            prompts += server.cache.prefetch(("open", server.tick), Key([server.tick, *range(30)]))
            server._one_tick()
        except RankError:
            told = True
        server.tick += 1
    storage = server.cache.storage
    server.cache.close()
    server.cache.close()
    try:
        consensus.tick()
        closed = "no"
    except RankError as error:
        closed = str(error)
    host = server.cache.stats().host_pools
    allocators = server.cache.controller.host.allocators if server.cache.controller is not None else {}
    out = {name: pool.used - pool.tree for name, pool in host.items() if name in allocators}
    hoarded = sum(len(ids) for (tier, _), ids in server.runner.hoard.items() if tier is Tier.HOST)
    return (told, prompts > 0, storage is not None and server.cache.storage is None, closed, sum(out.values()) - hoarded)
