"""Hits over all sizes of all pools, from one pass over the workload for each of a few sizes of the paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import ceil, log
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.sizing.model_cache import ModelCache
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.workbench.server.server_settings import ServerSettings
    from unified_tree.controllers.workbench.sizing.model_cache import Held, HitCurve
    from unified_tree.controllers.workbench.sizing.needs import Needs
    from unified_tree.controllers.workbench.sizing.sample import Sample
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request, Workload


FEW_REQUESTS = 20_000
"""So many requests, all passes together, take no longer than starting processes for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The requests that can never have a place.

    Attributes:
        requests: how many of the workload.
        token_share: of all prompt tokens those that are theirs.
        longest_tokens: prompt and answer of the longest request there is.
    """

    requests: int
    token_share: float
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class Surface:
    """The hit rate of any split.

    Attributes:
        needs: what a boundary takes of each pool.
        passes: what each pass gave, by size of the paths, ascending; sizes are those of the whole workload.
        prompt_tokens, output_tokens: of the sampled requests.
        share: of the workload that was sampled.
    """

    needs: Needs
    passes: Sequence[Served]
    prompt_tokens: Int64s
    output_tokens: Int64s
    share: float = 1.0

    def hit_rate(self, page_counts: Mapping[str, int], *behind: Mapping[str, int] | None) -> float:
        """The share of prompt tokens hit with these device pools; one that is left out is without end. A request that does not
        fit is rejected, and missed.

        Args:
            behind: the pools of each tier behind the device; None for no such tier. Under LRU a larger tier has all that a
                smaller one has.
        """
        rates = [self.served_hit_rate(counts, serves=False) for counts in behind if counts is not None]
        return max([self.served_hit_rate(page_counts), *rates]) * (1.0 - self.rejected(page_counts).token_share)

    def rejected(self, page_counts: Mapping[str, int]) -> Rejected:
        """The requests that do not fit into these device pools. Cost: O(requests), in numpy."""
        misfits = ~self.needs.fit(self.prompt_tokens, self.output_tokens, page_counts)
        tokens, count = int(self.prompt_tokens[misfits].sum()), int(misfits.sum())
        return Rejected(
            requests=round(count / self.share) if count else 0,
            token_share=tokens / max(1, int(self.prompt_tokens.sum())),
            longest_tokens=int((self.prompt_tokens + self.output_tokens).max(initial=0)),
        )

    def served_hit_rate(self, page_counts: Mapping[str, int], *, serves: bool = True) -> float:
        """Of the prompt tokens of requests that fit the share hit with these pools.

        Between two passes it is interpolated over the logarithm of the size.

        Args:
            serves: whether running requests take pages of these pools, as on device.
        """
        path_tokens = self.needs.path_tokens(page_counts)
        below = above = self.passes[-1]
        if path_tokens is not None:
            for served in reversed(self.passes):
                if served.path_tokens is not None and served.path_tokens < path_tokens:
                    below = served
                    break
                below = above = served
        low = self._rate(below, page_counts, serves)
        if below is above:
            return low
        assert path_tokens is not None and below.path_tokens is not None
        ends = above.path_tokens if above.path_tokens is not None else 2 * path_tokens
        weight = log(path_tokens / below.path_tokens) / log(ends / below.path_tokens)
        return low + weight * (self._rate(above, page_counts, serves) - low)

    def _rate(self, served: Served, page_counts: Mapping[str, int], serves: bool) -> float:
        room = self.needs.room(page_counts, served.running / self.share if serves else None)
        return served.hit_rate(room * self.share, serves=serves)


def survey(
    sample: Sample,
    needs: Needs,
    settings: ServerSettings,
    path_tokens: Sequence[int | None],
    jobs: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Surface:
    """Go over the sampled workload once for each of these sizes of the paths, several at once where there are cores.

    Args:
        path_tokens: room for paths of the whole workload; None for no end.
        jobs: processes; None for one a core.
        progress: called after each pass.
    """
    sizes = sorted(set(path_tokens), key=lambda tokens: float("inf") if tokens is None else tokens)
    jobs = min(jobs or os.cpu_count() or 1, len(sizes))
    passes: list[Served] = []
    with ExitStack() as pool:
        served: Iterable[Served] = (one_pass(sample, needs, settings, tokens) for tokens in reversed(sizes))
        if jobs > 1 and len(sizes) * len(sample.workload.requests) > FEW_REQUESTS:
            executor = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_keep, initargs=(sample, needs, settings))
            served = pool.enter_context(executor).map(_kept_pass, reversed(sizes))
        for each in served:  # the largest first
            passes.insert(0, each)
            if progress is not None:
                progress()
    requests = sample.workload.requests
    prompt_tokens = np.array([request.prompt_tokens for request in requests], np.int64)
    output_tokens = np.array([request.output_tokens for request in requests], np.int64)
    return Surface(needs, passes, prompt_tokens, output_tokens, sample.share)


def one_pass(sample: Sample, needs: Needs, settings: ServerSettings, path_tokens: int | None) -> Served:
    """Serve a sample with its share of the memory and of the places."""
    places = max(1, ceil(settings.concurrency * sample.share))
    served = ModelServer(sample.workload, needs, replace(settings, concurrency=places), sample.scaled(path_tokens)).run()
    return replace(served, path_tokens=path_tokens)


_kept: list[tuple[Sample, Needs, ServerSettings]] = []


def _keep(sample: Sample, needs: Needs, settings: ServerSettings) -> None:
    """What all passes of a process have in common, sent to it once."""
    _kept[:] = [(sample, needs, settings)]


def _kept_pass(path_tokens: int | None) -> Served:
    return one_pass(*_kept[0], path_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one pass over a workload gave.

    Attributes:
        path_tokens: the room for paths; None for no end.
        hits: tokens hit, by how many windows or states there is room for; `far_hits` on a tier where no window is rebuilt.
        prompt_tokens: of the requests served. Those that are larger than the paths' room are not; the surface counts them.
        running: requests at work, beside the one that is admitted, on average.
    """

    path_tokens: int | None
    hits: HitCurve
    far_hits: HitCurve
    prompt_tokens: int
    running: float

    def hit_rate(self, room: float, *, serves: bool = True) -> float:
        """The share of the served prompts' tokens hit where so many values fit; on device if the tier serves requests."""
        hits = self.hits if serves else self.far_hits
        return hits.tokens(room) / self.prompt_tokens if self.prompt_tokens else 0.0


class ModelServer:
    """One pass over a workload.

    Args:
        path_tokens: room for paths; None for no end.
    """

    def __init__(self, workload: Workload, needs: Needs, settings: ServerSettings, path_tokens: int | None) -> None:
        self._requests = workload.requests
        self._needs = needs
        self._settings = settings
        self._room = path_tokens
        self._cache = ModelCache(path_tokens, needs, workload.block_count)
        self._step_s = settings.step_ms / 1000.0
        self._running: list[tuple[float, int, Held]] = []  # a heap by what comes next: computed, or the end
        self._prefilling: dict[int, int] = {}
        self._pending_tokens = 0
        self._coming: list[tuple[float, int]] = []  # a heap by arrival
        self._waiting: list[int] = []  # a heap by number
        self._following: dict[int, Request] = {}
        self._prefilled_s = 0.0

    def run(self) -> Served:
        """Serve all, once. Cost: O(blocks listed), in numpy."""
        limit = self._settings.concurrency
        now_s, running, prompt_tokens, admitted = 0.0, 0, 0, 0
        self._coming = [(request.arrival_s * self._settings.time_scale, request.index) for request in self._firsts()]
        heapify(self._coming)
        while self._coming or self._waiting or self._running:
            while self._running and self._running[0][0] <= now_s:
                self._step()
            while self._coming and self._coming[0][0] <= now_s:
                heappush(self._waiting, heappop(self._coming)[1])
            if self._waiting and len(self._running) < limit:
                request = self._requests[self._waiting[0]]
                if self._room is not None and request.prompt_tokens + request.output_tokens > self._room:
                    heappop(self._waiting)
                    self._follow(request, now_s)
                    continue
                if not self._running or self._fits(request):
                    heappop(self._waiting)
                    running += len(self._running)
                    admitted += 1
                    prompt_tokens += request.prompt_tokens
                    self._begin(request, now_s)
                    continue
            now_s = min((events[0][0] for events in (self._coming, self._running) if events), default=now_s)
        return Served(
            path_tokens=self._room,
            hits=self._cache.hits.curve(),
            far_hits=self._cache.far_hits.curve(),
            prompt_tokens=prompt_tokens,
            running=running / admitted if admitted else 0.0,
        )

    def _firsts(self) -> list[Request]:
        """The requests that wait for no other; the others are noted behind those that they wait for."""
        firsts, last = [], dict[int, int]()
        for request in self._requests:
            if request.chain != NO_CHAIN and request.chain in last:
                self._following[last[request.chain]] = request
            else:
                firsts.append(request)
            if request.chain != NO_CHAIN:
                last[request.chain] = request.index
        return firsts

    def _fits(self, request: Request) -> bool:
        """Whether a prompt finds room beside the running ones. One that would, were nothing of it idle, was looked up."""
        if self._room is None:
            return True
        ids, unit_tokens = self._units(request)
        own_tokens = request.prompt_tokens - ids.size * unit_tokens
        missing_tokens = self._cache.missing_tokens(ids, unit_tokens) + own_tokens
        free_tokens = self._room - self._cache.pinned_tokens - self._pending_tokens
        if missing_tokens <= free_tokens:
            return True
        if request.prompt_tokens - self._cache.known(ids) * unit_tokens <= free_tokens:
            self._cache.touch(ids, unit_tokens)
        return False

    def _begin(self, request: Request, now_s: float) -> None:
        ids, unit_tokens = self._units(request)
        held = self._cache.begin(ids, unit_tokens, request.prompt_tokens, request.output_tokens)
        missing = request.prompt_tokens - held.hit_tokens
        self._prefilled_s = max(self._prefilled_s, now_s) + missing / self._settings.chunk_tokens * self._step_s
        self._pending_tokens += missing
        heappush(self._running, (self._prefilled_s, request.index, held))
        self._prefilling[request.index] = missing

    def _step(self) -> None:
        """The next prompt is computed, or the next answer."""
        at_s, index, held = heappop(self._running)
        missing = self._prefilling.pop(index, None)
        if missing is None:
            self._cache.end(held)
            self._follow(self._requests[index], at_s)
        else:
            self._pending_tokens -= missing
            self._cache.compute(held)
            heappush(self._running, (at_s + self._step_s * (1 + self._requests[index].output_tokens), index, held))

    def _follow(self, request: Request, end_s: float) -> None:
        following = self._following.pop(request.index, None)
        if following is not None:
            heappush(self._coming, (max(following.arrival_s * self._settings.time_scale, end_s), following.index))

    def _units(self, request: Request) -> tuple[Int64s, int]:
        """What others can share of a prompt: whole blocks, and pages where these are larger."""
        page, blocks = self._needs.page_tokens, request.blocks()
        if page > request.block_tokens and page % request.block_tokens == 0:
            ratio = page // request.block_tokens
            return blocks[ratio - 1 :: ratio], page  # a page is there with its last block
        return blocks, request.block_tokens
