"""Ranks that are forks of this process, joined by gloo: each runs the scheduler's model over pools and a cache of its own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from model_caches import our_cache
from scheduler_model import Case, Counts, Pools, Scheduler, run
from sglang.srt.runtime_context import get_parallel

PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a server of several ranks.

    Attributes:
        ranks: how many; a multiple of those that divide a page.
        write_policy: None for no host tier.
        files: the folder of a store; None for no store.
        longest, waiting: as in `run`.
        plant: a defect, planted in each rank before it starts.
    """

    case: Case
    ranks: int = 2
    write_policy: str | None = None
    files: Path | None = None
    requests: int = 60
    seed: int = 0
    policy: str = "lru"
    longest: int | None = None
    waiting: int = 6
    plant: Callable[[int], object] | None = None

    def on(self, rank: int) -> tuple[Counts, str]:
        """The counts of a rank, and its tree in the end. Raises at the first error."""
        if self.plant is not None:
            self.plant(rank)
        group = torch.distributed.group.WORLD
        with get_parallel().override(attn_dcp_size=self.case.division, attn_dcp_rank=rank % self.case.division):
            pools = Pools(self.case, rank, self.ranks)
            cache = our_cache(
                pools,
                params=replace(pools.params, tp_cache_group=group),
                policy=self.policy,
                write_policy=self.write_policy,
                files=self.files,
            )
            try:
                counts = run(
                    Scheduler(pools, cache, has_host=self.write_policy is not None, has_store=self.files is not None),
                    requests=self.requests,
                    seed=self.seed,
                    longest=self.longest,
                    waiting=self.waiting,
                    flush=self.files is None,
                )
                cache.sanity_check()
                return counts, cache.tree.dump()
            finally:
                cache.release_host_resources()

    def serve(self, folder: Path) -> Counts:
        """The counts, alike on all ranks. Raises AssertionError if a rank fails, or if ranks differ.

        Args:
            folder: an empty one, where the ranks meet.
        """
        context = multiprocessing.get_context("fork")
        ends = [context.Pipe(duplex=False) for _ in range(self.ranks)]
        processes = [
            context.Process(target=_rank, args=(self, rank, end, folder / "meeting"), daemon=True)
            for rank, (_, end) in enumerate(ends)
        ]
        for process, (_, end) in zip(processes, ends, strict=True):
            process.start()
            end.close()
        try:
            answers = [answer.recv() if answer.poll(PATIENCE_S) else "it hangs" for answer, _ in ends]
        finally:
            for process in processes:
                process.kill()
                process.join()
        errors = [f"rank {rank}: {each}" for rank, each in enumerate(answers) if isinstance(each, str)]
        assert not errors, "\n".join(errors)
        done: list[tuple[Counts, str]] = [each for each in answers if not isinstance(each, str)]
        assert all(each == done[0] for each in done), f"the ranks differ: {[counts for counts, _ in done]}"
        return done[0][0]


def _rank(life: Life, rank: int, end: Connection, meeting: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=life.ranks)
        end.send(life.on(rank))
    except BaseException:
        end.send(traceback.format_exc())
    end.close()
